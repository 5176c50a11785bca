"""Functions of lab 10 beside the reader's own lines: a small GPT under a checkpoint, weighed rung
by rung beside the formulas, timed in turns, trained with a forgetful one, and on ranks.

A vector is the residual stream of one microbatch, [8, 64, 64] in fp32: 131,072 bytes.
"""

import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import thread_time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coursekit.exercises.going_on import gives_numbers, must_be_right
from coursekit.exercises.predictions import NotYet
from coursekit.formulas import RECIPES, evaluate
from coursekit.show.tables import Table
from coursekit.topics.activation_checkpointing.exercises import (
    blocks_for_a_budget,
    forgetful_checkpoint,
    own_checkpoint,
    own_hooks,
)
from coursekit.topics.activation_checkpointing.explorer import RECOMPUTE
from coursekit.topics.activation_checkpointing.figures import live_figure, tradeoff_figure
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.ranks import ranks
from shardlab.recompute import checkpoint
from shardlab.recompute.budget import LayerOption, plan_recomputation
from shardlab.recompute.layers import checkpoint_every, checkpoint_some
from shardlab.recompute.partitioned import checkpoint_partitioned
from shardlab.recompute.selective import checkpoint_selective
from shardlab.tensor_parallel import apply_tensor_parallel, gpt_plan, vocabulary_parallel_loss
from shardlab.text import vocabulary_of_text, windows_of_text

WINDOWS_IN_BATCH, WINDOW_LENGTH, WIDTH = 8, 64, 64
SIZES = dict(layers=16, hidden=WIDTH, heads=4, max_sequence=WINDOW_LENGTH)
VECTOR_BYTES = 4 * WINDOWS_IN_BATCH * WINDOW_LENGTH * WIDTH
ON_RANKS = dict(SIZES, layers=4)
DROPPED = dict(SIZES, layers=2, hidden=32, heads=2, max_sequence=32, dropout=0.1)
DROPPED_STEPS, AVERAGED_STEPS = 150, 20


# --- the GPT and its step -------------------------------------------------------------------------


def build_model(sizes: Mapping = SIZES) -> GPT:
    """One GPT, alike each time, for the characters of the book's text."""
    torch.manual_seed(0)
    return GPT(GPTConfig(**sizes, vocabulary=vocabulary_of_text()))


def batches_of_book(sequences: int = WINDOWS_IN_BATCH, tokens: int = WINDOW_LENGTH):
    """Endless (inputs, targets), both [8, 64], the same each time."""
    return windows_of_text(sequences, tokens)


def in_vectors(nbytes: float) -> float:
    return round(nbytes / VECTOR_BYTES, 1)


class StepFound(NamedTuple):
    """Forward and backward of the GPT: how often a block ran; in bytes what autograd keeps at the
    loss, what is there beside the model, how much there is at most, and after each operation."""

    forwards: int
    kept: int
    held: int
    peak: int
    gradients: list[Tensor]
    live: list[int]


def run_step(apply: Callable[[GPT], None]) -> StepFound:
    """One microbatch of a fresh model with `apply` done to it."""
    model, (inputs, targets), runs = build_model(), next(batches_of_book()), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: runs.append(1))
    apply(model)
    with Ledger(model) as ledger:
        loss = next_token_loss(model(inputs), targets)
        here = ledger.bytes
        loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    held = here.activations + here.temporaries
    live = [line.bytes.total for line in ledger.timeline]
    return StepFound(len(runs), here.activations, held, ledger.peak.bytes.total, gradients, live)


def same_bits(found: StepFound, plain: StepFound) -> str:
    """How many gradients are those of the plain step to the last bit."""
    pairs = zip(found.gradients, plain.gradients, strict=True)
    return f"{sum(torch.equal(*pair) for pair in pairs)} of {len(plain.gradients)}"


def outside_layers() -> int:
    """Bytes that a step keeps outside of its blocks: batch, head and loss."""
    found = rung_by_formula("nothing")
    return found["kept_activation_bytes"] - found["kept_layers_bytes"]


# --- the reader's checkpoints ---------------------------------------------------------------------


def with_call(call: Callable, model: GPT) -> None:
    """Each block in a checkpoint of its own, call(block, x)."""
    model.blocks = checkpoint_every(model.blocks, 1, call)


class ComparedSteps(NamedTuple):
    """Steps by what is done to each block; the first is the plain one."""

    steps: dict[str, StepFound]

    def of_plain_step(self) -> dict[str, float]:
        """The plain step's value, by the name of the prediction."""
        plain, *_ = self.steps.values()
        return {"vectors that 16 blocks keep in a plain step": layers_keep(plain)}

    def by_prediction(self) -> dict[str, float]:
        """Values of the first checkpoint, by the names of the predictions."""
        _, first, *_ = self.steps.values()
        return {
            "forwards of blocks in a step": first.forwards,
            "vectors that 16 blocks keep": layers_keep(first),
        }

    def table(self) -> Table:
        plain = next(iter(self.steps.values()))
        rows = [
            [
                name,
                step.forwards,
                f"{layers_keep(step):.1f}",
                f"{in_vectors(step.peak):.1f}",
                same_bits(step, plain),
            ]
            for name, step in self.steps.items()
        ]
        heads = ["forwards of blocks", "blocks keep", "peak of the step", "gradients, same bits"]
        return Table(["in vectors", *heads], rows)

    def figure(self):
        """A figure of the bytes that are alive after each operation."""
        lines = {name: list(map(in_vectors, step.live)) for name, step in self.steps.items()}
        return live_figure("What is alive during a step", lines, "vectors")


def run_plain() -> ComparedSteps:
    """The GPT without a checkpoint."""
    return compare_calls({})


def run_checkpoint(own: type) -> ComparedSteps:
    """The GPT whose blocks are in the reader's checkpoint beside the plain one. Raises NotYet
    unless its check passes."""
    must_be_right(own_checkpoint, own)
    return compare_calls({"your Checkpoint": own.apply})


def run_hooks(forget: Callable) -> Table:
    """The reader's hooks beside the package's, which keep the state of the random numbers, drop
    what backward has used, and stop the second run where backward needs no more."""
    must_be_right(own_hooks, forget)
    calls = {"your forget": forget, "the package's checkpoint": checkpoint}
    return compare_calls(calls).table()


def compare_calls(calls: Mapping[str, Callable]) -> ComparedSteps:
    ways = {"no checkpoint": lambda model: None}
    ways |= {name: partial(with_call, call) for name, call in calls.items()}
    return ComparedSteps({name: run_step(apply) for name, apply in ways.items()})


def layers_keep(found: StepFound) -> float:
    """Vectors that the blocks keep, in the graph or in a closure."""
    return in_vectors(found.held - outside_layers())


# --- rung by rung ---------------------------------------------------------------------------------


class Rung(NamedTuple):
    """A policy as the formulas number it, and how the model gets it."""

    policy: int
    every: int = 1
    by: Callable = checkpoint

    def apply(self, model: GPT) -> None:
        if self.policy:
            model.blocks = checkpoint_every(model.blocks, self.every, self.by)


RUNGS = {
    "nothing": Rung(0),
    "all but products": Rung(2, by=checkpoint_selective),
    "each block": Rung(3),
    "four blocks in each": Rung(3, every=4),
    "one around all": Rung(3, every=16),
}
FORMULAS = (
    "kept_activation_bytes",
    "kept_layers_bytes",
    "recompute_peak_bytes",
    "recomputed_share",
)


def given_of_rung(rung: Rung) -> dict:
    """The quantities of a rung, in fp32 and without an optimizer: the lab's steps end with
    backward."""
    return dict(
        **RECIPES["fp32 SGD momentum"].quantities | dict(optimizer_moments=0),
        **build_model().config.quantities(),
        dropout=0,
        fused_attention=1,
        microbatch=WINDOWS_IN_BATCH,
        sequence=WINDOW_LENGTH,
        accumulation_steps=1,
        first_step=1,
        recompute_policy=rung.policy,
        recompute_every=rung.every,
    )


def rung_by_formula(name: str) -> dict[str, float]:
    return evaluate(list(FORMULAS), allow_unused=True, **given_of_rung(RUNGS[name]))


class RungFound(NamedTuple):
    kept: int
    peak: int
    kept_by_formula: int
    peak_by_formula: int

    @property
    def agrees(self) -> bool:
        """Kept to the byte, the peak within a percent."""
        return self.kept == self.kept_by_formula and (
            abs(self.peak - self.peak_by_formula) <= 0.01 * self.peak
        )


def weigh_rung(name: str) -> RungFound:
    found, wanted = run_step(RUNGS[name].apply), rung_by_formula(name)
    return RungFound(
        found.kept, found.peak, wanted["kept_activation_bytes"], wanted["recompute_peak_bytes"]
    )


class WeighedRungs(NamedTuple):
    """Rung -> what its step keeps and needs."""

    rungs: dict[str, RungFound]

    def by_prediction(self) -> dict[str, float]:
        """How many blocks the checkpoints have whose step needs least, and the vectors that one
        around all blocks keeps; by the names of the predictions."""
        whole = [name for name in self.rungs if recomputes_whole_blocks(name)]
        peaks = {RUNGS[name].every: self.rungs[name].peak for name in whole}
        one = self.rungs["one around all"]
        return {
            "blocks in a checkpoint, least peak": min(peaks, key=peaks.get),
            "vectors kept by one checkpoint": in_vectors(one.kept - outside_layers()),
        }

    def table(self) -> Table:
        heads = ["kept, formula", "kept, ledger", "peak, formula", "peak, ledger"]
        rows = [
            [name, own.kept_by_formula, own.kept, own.peak_by_formula, own.peak]
            for name, own in self.rungs.items()
        ]
        return Table(["recomputed (columns in bytes)", *heads], rows)


def recomputes_whole_blocks(name: str) -> bool:
    """Whether this rung recomputes all of a block."""
    return RUNGS[name].policy == 3


def weigh_rungs() -> WeighedRungs:
    """Each rung beside the formulas. Raises AssertionError if kept bytes differ by a byte, or a
    peak by more than a percent."""
    found = {name: weigh_rung(name) for name in RUNGS}
    for name, own in found.items():
        assert own.agrees, (name, own)
    return WeighedRungs(found)


def given_to_explorer() -> dict:
    """The GPT with each block in a checkpoint, and what the ledger finds its blocks to keep."""
    given = given_of_rung(RUNGS["each block"]) | dict(sequence_parallel=0, regather=0)
    measured = dict(rank_layers_kept_bytes=weigh_rung("each block").kept - outside_layers())
    return dict(
        measured=measured, **{name: given[name] for name in RECOMPUTE.inputs if name in given}
    )


# --- seconds --------------------------------------------------------------------------------------


class RungTimed(NamedTuple):
    seconds: float  # of one thread, which other work on the machine does not lengthen
    more_percent: int  # than with nothing recomputed
    by_operations_percent: int


class TimedRungs(NamedTuple):
    """Rung -> its seconds."""

    rungs: dict[str, RungTimed]

    def figure(self):
        """Bytes at the peak beside the time of a step."""
        found = {name: (own.seconds, weigh_rung(name).peak) for name, own in self.rungs.items()}
        return tradeoff_figure("Measured here", found)

    def table(self) -> Table:
        rows = [
            [
                name,
                f"{1000 * own.seconds:.0f}",
                f"{own.more_percent:+} %",
                f"{own.by_operations_percent:+} %",
            ]
            for name, own in self.rungs.items()
        ]
        return Table(["recomputed", "CPU, ms", "longer by", "operations by formula"], rows)


def time_rungs(turns: int = 5) -> TimedRungs:
    """A forward and backward of each rung on one thread of the CPU: the fastest of some turns."""
    inputs, targets = next(batches_of_book())
    models = {name: build_model() for name in RUNGS}
    for name, rung in RUNGS.items():
        rung.apply(models[name])
    fastest, threads = dict.fromkeys(RUNGS, math.inf), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(turns):
            for name, model in models.items():
                begin = thread_time()
                next_token_loss(model(inputs), targets).backward()
                fastest[name] = min(fastest[name], thread_time() - begin)
    finally:
        torch.set_num_threads(threads)
    return TimedRungs(
        {
            name: RungTimed(
                seconds,
                round(100 * (seconds / fastest["nothing"] - 1)),
                round(100 * rung_by_formula(name)["recomputed_share"]),
            )
            for name, seconds in fastest.items()
        }
    )


# --- which blocks ---------------------------------------------------------------------------------


class BlockBytes(NamedTuple):
    """The bytes that blocks_to_recompute is given, and those that are there beside them all the
    time."""

    layers: int
    kept: int
    kept_input: int
    work: int
    loss: int
    standing: int


def bytes_of_blocks() -> BlockBytes:
    """The formulas' bytes of a step's second microbatch: gradients are there from the first."""
    names = ["layer_activation_bytes", "residual_bytes", "layer_work_bytes", "logit_bytes"]
    names += ["batch_bytes", "parameter_bytes", "gradient_bytes", "head_gradient_bytes"]
    given = given_of_rung(RUNGS["nothing"]) | dict(accumulation_steps=2)
    of = evaluate([*names, *FORMULAS], allow_unused=True, **given)
    standing = of["parameter_bytes"] + of["gradient_bytes"] + of["batch_bytes"]
    # in a block's backward: its output's gradient, and the tied table's, which waits
    beside_work = of["residual_bytes"] + of["head_gradient_bytes"] + 8
    outside = of["kept_activation_bytes"] - of["kept_layers_bytes"] - of["batch_bytes"]
    return BlockBytes(
        SIZES["layers"],
        of["layer_activation_bytes"],
        of["residual_bytes"],
        of["layer_work_bytes"] + beside_work,
        outside + 2 * of["logit_bytes"] + 8,
        standing,
    )


def peak_with(blocks: Collection[int]) -> int:
    """Bytes at the peak of the second microbatch, with these blocks recomputed."""
    model, data = build_model(), batches_of_book()
    next_token_loss(model(next(data)[0]), next(data)[1]).backward()
    model.blocks = checkpoint_some(model.blocks, blocks)
    inputs, targets = next(data)
    with Ledger(model) as ledger:
        next_token_loss(model(inputs), targets).backward()
    return ledger.peak.bytes.total


def run_plan(own: Callable, share: float) -> tuple[int, Table]:
    """(how many blocks the reader's plan recomputes for that share of the peak, a table: the plan,
    and as many blocks from the end)"""
    own = gives_numbers(blocks_for_a_budget, own)
    of = bytes_of_blocks()
    budget = round(share * peak_with([]))
    least = peak_with(range(of.layers))
    if least > budget:
        raise NotYet(
            f"share = {share:g} allows {budget:,} bytes, and with every block recomputed the peak"
            f" is {least:,}: ask for more."
        )
    blocks = sorted(own(*of[:-1], budget - of.standing))
    assert len(blocks) == len(best_plan(of, budget)), "as many as the package's solver"
    last = [of.layers - 1 - block for block in blocks]
    rows = []
    for words, chosen in (("nothing", []), ("your blocks", blocks), ("as many at the end", last)):
        peak = peak_with(chosen)
        rows.append([words, len(chosen), peak, "yes" if peak <= budget else "no"])
    heads = ["blocks", "peak, ledger", f"within {budget:,}"]
    return len(blocks), Table(["recomputed", *heads], rows)


def best_plan(of: BlockBytes, budget: int) -> list[int]:
    options = [LayerOption(of.kept, of.work, 0.0), LayerOption(of.kept_input, of.work, 1.0)]
    return plan_recomputation([options] * of.layers, budget - of.standing, of.loss).recomputed


# --- dropout --------------------------------------------------------------------------------------


class Dropped(NamedTuple):
    last_loss: float  # the mean of the last twenty steps
    gradient_off: float  # of the first step, relative to that without a checkpoint


def train_with_dropout(call: Callable | None) -> Dropped:
    """150 steps of AdamW on the book's text with dropout, each block in a checkpoint of this
    kind."""
    plain, model = build_model(DROPPED), build_model(DROPPED)
    if call is not None:
        with_call(call, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, off = [], 0.0
    for step, (inputs, targets) in zip(range(DROPPED_STEPS), batches_of_book(8, 32)):
        torch.manual_seed(step)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        if step == 0:
            torch.manual_seed(step)
            next_token_loss(plain(inputs), targets).backward()
            pairs = [(mine.grad, own.grad) for mine, own in pairs_of_parameters(model, plain)]
            mine, own = (torch.cat([g.flatten() for g in each]) for each in zip(*pairs))
            off = ((mine - own).norm() / own.norm()).item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Dropped(sum(losses[-AVERAGED_STEPS:]) / AVERAGED_STEPS, off)


def pairs_of_parameters(*models: nn.Module):
    return zip(*(model.parameters() for model in models), strict=True)


def train_all() -> dict[str, Dropped]:
    """Without a checkpoint, with the package's, and with the one that the bug hunt repairs."""
    forgetful = forgetful_checkpoint.misconceptions[0].solution
    calls = {"no checkpoint": None, "checkpoint": checkpoint, "forgetful": forgetful.apply}
    return {name: train_with_dropout(call) for name, call in calls.items()}


def higher_percent(found: Mapping[str, Dropped]) -> float:
    """The loss at the end with the forgetful checkpoint, over that without one."""
    ratio = found["forgetful"].last_loss / found["no checkpoint"].last_loss
    return round(100 * (ratio - 1), 1)


def table_of_dropout(found: Mapping[str, Dropped]) -> Table:
    rows = [
        [name, f"{own.last_loss:.3f}", "0" if own.gradient_off == 0 else f"{own.gradient_off:.0%}"]
        for name, own in found.items()
    ]
    return Table(["", "loss at the end", "first gradient off by (of its norm)"], rows)


# --- on ranks -------------------------------------------------------------------------------------

PARTS = partial(checkpoint_partitioned, None)
ON_A_RANK = {
    "nothing recomputed": None,
    "each block": checkpoint,
    "each block, inputs in parts": PARTS,
    "all but products": checkpoint_selective,
}


class OnRank(NamedTuple):
    vectors_kept: float
    all_reduces: int
    all_gathers: int
    gradients_same_bits: str


class RanOnRanks(NamedTuple):
    """Way -> rank 0's step."""

    ways: dict[str, OnRank]

    def by_prediction(self) -> dict[str, int]:
        """Values by the names of the predictions."""
        names = ("nothing recomputed", "each block")
        return {f"all-reduces, {name}": self.ways[name].all_reduces for name in names}

    def table(self) -> Table:
        heads = ["vectors kept", "all-reduces", "all-gathers", "gradients, same bits"]
        return Table(["rank 0 of 2", *heads], [[name, *own] for name, own in self.ways.items()])


def run_on_ranks() -> RanOnRanks:
    """A step of four blocks on rank 0 of two, which share each layer by tensor parallelism, each
    way."""
    with ranks(2, device="cpu", announce=False) as world:
        return RanOnRanks(world.run(ways_on_rank)[0])


def ways_on_rank() -> dict[str, OnRank]:
    torch.set_num_threads(1)
    found, plain = {}, None
    for name, call in ON_A_RANK.items():
        kept, totals, gradients = step_on_rank(call)
        plain = plain or gradients
        equal = sum(map(torch.equal, gradients, plain))
        found[name] = OnRank(
            in_vectors(kept),
            *(
                totals[kind].messages if kind in totals else 0
                for kind in ("all_reduce", "all_gather")
            ),
            f"{equal} of {len(plain)}",
        )
    return found


def step_on_rank(call: Callable | None) -> tuple[int, dict, list[Tensor]]:
    """(bytes kept at the loss, messages, gradients)"""
    model = build_model(ON_RANKS)
    apply_tensor_parallel(model, gpt_plan(model.config))
    if call is not None:
        with_call(call, model)
    inputs, targets = next(batches_of_book())
    with Ledger(model) as ledger, CommunicationLog() as log:
        loss = vocabulary_parallel_loss(model(inputs), targets, model.config.vocabulary)
        kept = ledger.bytes.activations
        loss.backward()
    return kept, log.totals(), [parameter.grad for parameter in model.parameters()]
