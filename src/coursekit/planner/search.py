"""All legal layouts of a question, solved at once, and the fastest of those that fit."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from math import gcd, isqrt

import numpy as np

from coursekit.formulas.presets import GPUS
from coursekit.formulas.registry import BOOK, InvalidQuantity, show
from coursekit.formulas.subset import EXACT_LIMIT, Values
from coursekit.sentences import data_text

from .layout import (
    EXCHANGED,
    GATHERED,
    MIXES,
    RANK_NEEDED,
    RING,
    RankLayout,
    divides_heads,
    gigabytes,
    in_library,
    option,
)
from .speeds import OF_A_STEP, PARTS, WORK, Speed, parts_of, step_given, step_values

MOST_BATCH = 1_000_000
CONTEXTS = (1, 2, 4, 8)  # tried where nothing fits in whole sequences

WORTH = 0.005  # a difference of seconds that is no difference: formulas are not that exact
# The simplest of layouts that are alike is shown: the one with less of these, in this order.
SIMPLEST = (
    "offload",
    "zero_stage",
    "shard_groups",
    "recompute_policy",
    "shorter_ends",
    "stages_per_rank",
    "accumulation_steps",
)
ENOUGH_ROWS = 4096  # of a product that keeps a GPU busy: no formula has the cost of smaller ones


# Knobs of a layout, each with its rule. The book's own rules hold beside these.
_KNOBS = data_text("knobs.md").partition("\n## layouts that cannot be")[0]
RULES = dict(re.findall(r"(?m)^- (\w+): (.+)", _KNOBS.replace("\n  ", " ")))


@dataclass(frozen=True)
class Candidate:
    """One layout with its fullest rank's bytes and its step's seconds."""

    layout: RankLayout
    needed_bytes: int
    memory_bytes: int
    seconds: float
    tokens_per_second_per_gpu: float
    utilisation: float
    parts: dict  # of PARTS -> seconds
    binds: str  # what makes the step longer, or what the memory rules out
    zero_stages_as_fast: tuple  # with which these degrees are as fast, within WORTH

    @property
    def data_parallel(self) -> int:
        return self.layout.given["data_parallel"] // self.layout.context_parallel

    def __str__(self):
        steps, copies, stages = self.layout.steps, self.data_parallel, self.zero_stages_as_fast
        shares = sorted(self.parts.items(), key=lambda part: -part[1])
        said = ", ".join(
            f"{PARTS[name]} {taken / self.seconds:.0%}"
            for name, taken in shares
            if taken > 0.01 * self.seconds
        )
        said_stages = ", ".join(map(str, stages))
        return "\n".join(
            (
                f"{self.seconds:.3g} s, {self.tokens_per_second_per_gpu:,.0f} tokens/s a GPU, MFU"
                f" {self.utilisation:.1%}, {gigabytes(self.needed_bytes)} of"
                f" {gigabytes(self.memory_bytes)}",
                f"   {options(self.layout)}",
                *([f"   within {WORTH:.1%}: ZeRO {said_stages}"] if len(stages) > 1 else []),
                f"   {copies:,} data-parallel {'rank' if copies == 1 else 'ranks'}, {steps:,}"
                f" {'microbatch' if steps == 1 else 'microbatches'} each",
                f"   {said}",
                f"   binds: {self.binds}",
            )
        )


@dataclass(frozen=True)
class Search:
    """All layouts of a question as columns, a place for each; `places` are those that no rule
    forbids."""

    asked: RankLayout
    batch: int
    speed: Speed
    fixed: dict
    contexts: tuple = (1,)  # degrees of context parallelism, where none is fixed

    @cached_property
    def rows(self) -> list:
        """The knobs of every layout that RULES and what is fixed allow."""
        return list(self._allowed())

    def _allowed(self) -> Iterator[dict]:
        fixed = self.fixed.items()
        yield from (row for row in self._rows() if all(row[name] in of for name, of in fixed))

    @cached_property
    def columns(self) -> dict:
        """Knob -> values of every layout."""
        if not self.rows:
            self._refuse()
        return {name: np.array([row[name] for row in self.rows]) for name in self.rows[0]}

    def _rows(self) -> Iterator[dict]:
        asked, sizes = self.asked, self.asked.sizes
        node, fixed = asked.links.joined_gpus, self.fixed
        policies = (0, 1, 3) if in_library(asked.kernels) else (0, 1, 2, 3)
        for t in divisors(asked.gpus):
            if sizes["key_value_heads"] % t or (node % t and t % node):
                continue
            if (t > node or (sizes.get("experts") and t > 1)) and "tensor_parallel" not in fixed:
                continue
            for p, d, v, ends, c in self._pipelines(t):
                cuts = (0, 1) if t > 1 and asked.sequence // c % t == 0 else (0,)
                if t > 1 and sizes.get("experts"):
                    cuts = cuts[1:]
                copies = d // c
                stages = (0,) if d == 1 else (0, 1, 2, 3)
                if p > 1:
                    with_3 = in_library(asked.kernels) and "zero_stage" in fixed
                    stages = tuple(z for z in stages if z < 2 or (z == 3 and with_3))
                shares = divisors(gcd(d, sizes.get("experts") or 1))
                states = [(z, g, o) for z in stages for g, o in self._places(z, d)]
                for b in divisors(self.batch // copies):
                    m = self.batch // (copies * b)
                    if m < p or (v > 1 and m % p):
                        continue
                    choices = product(states, cuts, policies, shares, self._mixes(t, c))
                    for (z, g, o), cut, policy, e, mix in choices:
                        if d % (g * e):
                            continue
                        yield dict(
                            tensor_parallel=t,
                            pipeline_parallel=p,
                            stages_per_rank=v,
                            shorter_ends=ends,
                            context_parallel=c,
                            context_mix=mix,
                            expert_parallel=e,
                            microbatch=b,
                            zero_stage=z,
                            shard_groups=g,
                            offload=o,
                            sequence_parallel=cut,
                            recompute_policy=policy,
                            accumulation_steps=m,
                        )

    def _places(self, stage, d) -> list:
        """(groups, offload): where states of ZeRO may lie."""
        if stage == 0:
            alone = self.asked.gpus == 1
            return [(1, o) for o in (self.fixed.get("offload", (0,)) if alone else (0,))]
        groups = self.fixed.get("shard_groups", (1,)) if in_library(self.asked.kernels) else (1,)
        groups = [g for g in groups if g in divisors(d)]
        return list(product(groups, self.fixed.get("offload", (0,))))

    def _pipelines(self, t):
        """Degrees, stages and ends beside tensor parallelism of degree t."""
        layers = self.asked.sizes["layers"]
        for p in divisors(self.asked.gpus // t):
            d = self.asked.gpus // (t * p)
            for c in self._contexts(t, d):
                if self.batch % (d // c) or p > layers:
                    continue
                if layers % p == 0:
                    yield p, d, 1, 0, c
                    if p > 1:
                        yield from ((p, d, v, 0, c) for v in divisors(layers // p) if v > 1)
                if p > 1 and (layers + 2) % p == 0:
                    most = (layers + 2) // p
                    several = in_library(self.asked.kernels) and "shorter_ends" in self.fixed
                    counts = divisors(most) if several else [1]
                    yield from ((p, d, v, 1, c) for v in counts if v < most)

    def _contexts(self, t, d) -> list:
        """Degrees of context parallelism beside these."""
        asked = self.asked
        return [
            c
            for c in divisors(d)
            if c in self.fixed.get("context_parallel", self.contexts)
            and (c == 1 or in_library(asked.kernels) and asked.sequence % (2 * c) == 0)
        ]

    def _mixes(self, t, c) -> tuple:
        """How ranks that share a sequence may attend; one that is not used where none do."""
        if c == 1:
            return (EXCHANGED,)
        return (*MIXES,) if divides_heads(self.asked.sizes, t, c) else (RING, GATHERED)

    @property
    def memory_bytes(self) -> int:
        return GPUS[self.asked.gpu].quantities["gpu_memory_bytes"]

    def _refuse(self):
        """Raises InvalidQuantity for the first fixed knob that no layout has, whatever the others
        and the batch are; where each alone has one, for all together."""
        said = {name: " or ".join(map(str, values)) for name, values in self.fixed.items()}
        for name, values in self.fixed.items():
            alone = replace(self, fixed={name: values}, batch=64 * self.asked.gpus)
            if not any(row[name] in values for row in alone._rows()):
                none = f"{name} = {said[name]} is in no legal layout: {RULES[name]}"
                raise InvalidQuantity(name, values, f"{none}. Here are {self._sizes}.")
        fixed = ", ".join(f"{name} = {values}" for name, values in said.items())
        given = f"batch = {show(self.batch)} on gpus = {show(self.asked.gpus)}"
        why = "; ".join(RULES[name] for name in (*self.fixed, "microbatch"))
        why += f". Here are {self._sizes}" if fixed else ""
        near = " or ".join(f"{batch:,}" for batch in self._near_batches())
        why += f". A batch of {near} has one" if near else ""
        given += f" with {fixed}" if fixed else ""
        raise InvalidQuantity("batch", self.batch, f"{given}: no layout: {why}.")

    def _near_batches(self) -> Iterator[int]:
        """The nearest smaller and larger batch that have a layout: multiples of its copies."""
        copies = divisors(self.asked.gpus)
        below = {self.batch // n * n for n in copies} - {0}
        above = {(self.batch // n + 1) * n for n in copies} - {self.batch}
        for some in (sorted(below, reverse=True), sorted(above)):
            legal = (b for b in some if any(replace(self, batch=b)._allowed()) and b <= MOST_BATCH)
            yield from islice(legal, 1)

    @property
    def _sizes(self) -> str:
        """The numbers that degrees must divide."""
        sizes, heads = self.asked.sizes, "heads of keys and values"
        counts = {"layers": sizes["layers"], heads: sizes["key_value_heads"]}
        counts |= {"experts": sizes["experts"]} if sizes.get("experts") else {}
        counts |= {"GPUs": self.asked.gpus, "sequences in a step": self.batch}
        return ", ".join(f"{count:,} {name}" for name, count in counts.items())

    @cached_property
    def _found(self) -> tuple:
        """(needed bytes, seconds, right) of every layout; bytes are those of the fullest rank."""
        needed, p = 0, self.columns["pipeline_parallel"]
        for rank in (np.zeros_like(p), np.minimum(1, p - 1), p - 1):
            given = step_given(replace(self.asked, **self.columns), self.speed)
            given["pipeline_rank"] = rank
            values, right = solve_many((RANK_NEEDED, "layout_seconds"), given)
            needed = np.maximum(needed, self.asked.needed_bytes(values))
        return needed, values["layout_seconds"], right

    @cached_property
    def legal(self) -> int:
        return int(self._found[2].sum())

    @cached_property
    def _fit(self):
        needed, _, right = self._found
        return right & (needed <= self.memory_bytes)

    @property
    def fitting(self) -> int:
        return int(self._fit.sum())

    @property
    def smallest(self) -> int:
        """The place of the layout that needs the fewest bytes."""
        needed, _, right = self._found
        return int(np.argmin(np.where(right, needed, np.inf)))

    def layout(self, place: int) -> RankLayout:
        row = {name: int(column[place]) for name, column in self.columns.items()}
        row["sequence_parallel"] = bool(row["sequence_parallel"])
        return replace(self.asked, **row)

    def best(self, most: int) -> Iterator[Candidate]:
        """The fastest layouts that fit, one for each pair of degrees. Layouts within WORTH of the
        fastest count as equally fast. The first choice among them has a microbatch nearest to
        ENOUGH_ROWS tokens; of those the simplest is shown."""
        needed, seconds, _ = self._found
        rows = np.minimum(ENOUGH_ROWS, self.columns["microbatch"] * self.asked.sequence)
        left = self._fit.copy()
        for _ in range(most):
            if not left.any():
                return
            fastest = int(np.argmin(np.where(left, seconds, np.inf)))
            alike = left & self._alike(fastest)
            as_fast = alike & (seconds <= (1 + WORTH) * seconds[fastest])
            as_fast &= rows == rows[as_fast].max()
            stages = np.unique(self.columns["zero_stage"][as_fast])
            keys = [needed, *(self.columns[name] for name in reversed(SIMPLEST))]
            order = np.lexsort([key[as_fast] for key in keys])
            place = int(np.flatnonzero(as_fast)[order[0]])
            yield self.candidate(place, tuple(map(int, stages)))
            left &= ~alike

    def _alike(self, place):
        """Whether a layout has the degrees of the one at `place`."""
        names = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        return np.all([self.columns[name] == self.columns[name][place] for name in names], axis=0)

    def candidate(self, place: int, stages: tuple) -> Candidate:
        """One layout, recomputed by itself; `stages` of ZeRO are as fast."""
        layout = self.layout(place)
        values = step_values(layout, self.speed)
        held = layout.solved()
        parts = parts_of(values)
        return Candidate(
            layout,
            layout.needed_bytes(held),
            held["gpu_memory_bytes"],
            *(values[name] for name in OF_A_STEP),
            parts,
            self._binds(place, parts),
            stages,
        )

    def _binds(self, place, parts) -> str:
        """Memory, where the same degrees are faster in a layout that does not fit; else the longest
        wait."""
        needed, seconds, right = self._found
        faster = right & self._alike(place) & (seconds < (1 - WORTH) * seconds[place])
        if faster.any():
            other = int(np.argmin(np.where(faster, needed, np.inf)))
            change = knobs_turned(self.layout(place), self.layout(other))
            missing = needed[other] - self.memory_bytes
            return (
                f"memory: {change} would take {seconds[other]:.3g} s and {gigabytes(missing)} more"
                " than there is"
            )
        waits = {name: taken for name, taken in parts.items() if name not in WORK}
        name = max(waits, key=waits.get)
        share = waits[name] / seconds[place]
        if share < WORTH:
            return "nothing but the GPU's own work"
        return f"{PARTS[name]}, {share:.0%} of the step"


def solve_many(targets, given):
    """(values, right): what solve() finds at each place of the arrays of whole numbers in `given`,
    and whether solve() takes the place. A value is an array, or a number where no array is in it.
    Raises for presets and numbers what solve() raises."""
    flat = BOOK.expand(given)
    arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in flat.items() if name not in arrays}
    formulas, inputs = BOOK.resolve(targets, flat)
    values = BOOK.validate(**numbers) | arrays
    values |= BOOK.assumed(inputs, values)
    right = np.ones(len(next(iter(arrays.values()))), dtype=bool)
    for name, array in arrays.items():
        if name in BOOK.formulas:  # a choice, given
            continue
        quantity = BOOK.find(name)
        right &= (array >= quantity.least) & (array <= quantity.most)
    with np.errstate(all="ignore"):  # a place that is refused may divide by 0
        for name in formulas:
            formula = BOOK.formulas[name]
            value = formula.function(Values(values))
            if not formula.whole:
                value = value.astype(float) if isinstance(value, np.ndarray) else float(value)
            values[name] = value
            right &= np.isfinite(value)
            if formula.whole:
                right &= (value >= 0) & (value <= EXACT_LIMIT)
        for rule in BOOK.applicable_rules(values):
            right &= rule.function(Values({**dict(rule.assumed), **values}))
    return values, right


def divisors(number: int) -> list:
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def knobs(layout: RankLayout) -> dict:
    """The knobs of RULES, and the microbatches, as a layout has them."""
    return {
        **{name: getattr(layout, name) for name in RULES},
        "context_mix": layout.mix,
        "sequence_parallel": int(layout.cuts_tokens),
        "accumulation_steps": layout.steps,
    }


def options(layout: RankLayout) -> str:
    """The knobs as options of `shardlab fits`, without those that are not turned."""
    values = knobs(layout)
    cut = values.pop("sequence_parallel")
    still = dict(stages_per_rank=1, shorter_ends=0, recompute_policy=0)
    still |= dict(context_parallel=1, expert_parallel=1, shard_groups=1, offload=0)
    still |= dict(context_mix=layout.mix if layout.context_parallel == 1 else None)
    said = [f"{option(name)} {value}" for name, value in values.items() if still.get(name) != value]
    if layout.tensor_parallel > 1 and not cut:
        said.append("--no-sequence-parallel")
    return " ".join(said)


def knobs_turned(layout: RankLayout, other: RankLayout) -> str:
    """The knobs of the other layout that differ."""
    before, after = knobs(layout), knobs(other)
    changed = [name for name in RULES if before[name] != after[name]]
    return ", ".join(f"{name} = {after[name]}" for name in changed)
