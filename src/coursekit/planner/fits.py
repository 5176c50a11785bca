"""Does a model fit on these GPUs? The bytes of the fullest rank as a ledger, a line for each
category with its formula and source, what was assumed, and the nearest layout that fits.

    print(fits("config.json", gpu="H100 SXM 80GB", gpus=64, sequence=8192))

Warns of tensor parallelism across nodes: CrossesNodes, with the time of a layer's messages.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from pathlib import Path

from coursekit.formulas.presets import (
    GPUS,
    KERNELS,
    MODELS,
    WITHOUT_BF16,
    records_of,
)
from coursekit.formulas.registry import BOOK, InvalidQuantity, show
from coursekit.formulas.subset import expression_of
from coursekit.sentences import sentences
from shardlab.common.cross_node_warning import CrossesNodes

from .links import USUAL_RANKS_PER_NODE, LinksOfGPU, links_of
from .model_config import InvalidModelConfig, read_config

RANK_PEAK, RANK_PLACE = "rank_peak_bytes", "rank_peak_place"
RANK_NEEDED, RANK_RESERVE = "rank_needed_bytes", "rank_reserve_bytes"
ON_THE_HOST = "rank_host_bytes"
NO_TENSOR = ("rank_context_bytes", "rank_communicator_bytes")
USUAL_KERNELS, FUSED_LOSS = "Megatron-LM with Transformer Engine", "Megatron-LM, fused loss"
EAGER_RECIPE = "bf16 + fp32 master"
LIBRARY_RECIPE, LIBRARY_RECIPE_FP16 = "bf16 + fp32 gradients", "fp16 + fp32 gradients"
MOST_GPUS = 65_536
MOST_RESERVE_GB = 1_000_000
MOST_TENSOR_PARALLEL, MOST_PIPELINE_PARALLEL = 8, 64
USUAL_UTILISATION = 0.5
MICROBATCHES_PER_STAGE = 4  # assumed of a pipeline: from one on, more of them change no byte
WHOLE_LAYERS = 3  # of recompute_policy
TILE_TOKENS = 4096  # of the smallest tile that is proposed, as ALST's runs had them
SMALL_MOMENTS = ("bf16, 8-bit Adam",)  # recipes that one GPU may need
NO_ADAPTERS = "; none of them trains adapters"
ADAPTED = ("LoRA, rank 16", "QLoRA, rank 16")
ONE_F_ONE_B, INTERLEAVED = 2, 4  # of pipeline_schedule
RING, GATHERED, EXCHANGED = 1, 2, 3  # of context_mix
MIXES = {
    RING: "passes keys and values in a ring",
    GATHERED: "gathers all keys and values",
    EXCHANGED: "exchanges heads (all-to-all)",
}
NO_QUANTITIES = ("model", "sizes", "gpus", "reserve_bytes", "ranks_per_node")  # of a layout
PEAKS = "tests/where_the_memory_goes/published_peaks.csv"


@dataclass(frozen=True)
class Published:
    """How far the peaks of some kernels were from published ones, in percent; the test of
    published peaks computes each number again."""

    rows: int
    measured: str
    mean: float  # of the errors' absolute values
    lowest: float
    highest: float
    reserved: bool = False  # bytes of the rows, so that nothing is set aside beside them
    recomputes: bool = False  # the rows' layers

    def __str__(self):
        both = ""
        if self.lowest * self.highest > 0:  # few rows, which happen to lie on one side
            both = f", and may be by {max(-self.lowest, self.highest):.2f}% to either side"
        return (
            f"on {self.rows} published rows ({self.measured}) the ledger was off"
            f" by {self.mean:.2f}% on average, from {self.lowest:+.2f}% to {self.highest:+.2f}%"
            f"{both} ({PEAKS})"
        )


PUBLISHED = records_of("peaks.csv", Published)
# The allocator's reserve beyond what is allocated, as a share of it: the most of the runs behind
# FUSED_LOSS, which publish both.
RESERVED_SHARES = {
    kind: BOOK.solve([RANK_RESERVE], dict(library_kernels=1, rank_peak_bytes=1000, **asked))[
        RANK_RESERVE
    ]
    / 1000
    for kind, asked in {
        "dense models": dict(context_parallel=1, experts=0),
        "models of experts": dict(context_parallel=1, experts=1),
        "context parallelism": dict(context_parallel=2, experts=0),
    }.items()
}


def divides_heads(sizes, t, c) -> bool:
    """Whether ranks that share a sequence can exchange whole heads beside tensor parallelism."""
    return sizes["key_value_heads"] % (t * c) == 0


def refuse_by_knobs(heading, names, asked):
    """Raise InvalidQuantity by the first condition below a heading of data/knobs.md that holds; it
    and its sentence know these names and what is asked."""
    for quantity, words in sentences("knobs.md", heading, names | asked):
        raise InvalidQuantity(quantity, asked[quantity], words)


@dataclass(frozen=True)
class RankLayout:
    """A layout that is asked about: every value by which one can differ from another. Fields below
    the blank line are LAYOUT_OPTIONS."""

    model: str
    sizes: dict
    gpu: str
    gpus: int
    sequence: int
    zero_stage: int
    reserve_bytes: int | None = None  # None: the share that published runs of a library reserved

    tensor_parallel: int = 1
    sequence_parallel: bool | None = None  # None: wherever there is tensor parallelism
    pipeline_parallel: int = 1
    stages_per_rank: int = 1  # more than one: interleaved 1F1B
    shorter_ends: int = 0  # layers that the first and the last stage have less than the others
    first_stage_layers: int | None = None  # the most of a stage; None: as the kernels cut
    context_parallel: int = 1  # ranks that share each sequence's tokens
    context_mix: int | None = None  # of MIXES; None: heads are exchanged where ranks divide them
    expert_parallel: int = 1  # data-parallel ranks that divide a layer's experts
    expert_load_percent: int = 100  # rows of the fullest rank's experts, of an even share
    shard_groups: int = 1  # groups of data-parallel ranks, each with all states once
    offload: int = 0  # 1: states lie on the host
    microbatch: int = 1
    accumulation_steps: int | None = None  # None: 1, and four for each stage of a pipeline
    recipe: str = LIBRARY_RECIPE
    kernels: str = USUAL_KERNELS
    ranks_per_node: int = USUAL_RANKS_PER_NODE
    recompute_policy: int = 0
    sequence_tiles: int = 1  # of tokens, one after the other through the MLP, and through the loss
    checkpoints_on_host: int = 0  # 1: inputs of recomputed layers wait there

    @property
    def links(self) -> LinksOfGPU:
        return links_of(self.gpu, self.ranks_per_node)

    @property
    def steps(self) -> int:
        """Microbatches that are accumulated."""
        if self.accumulation_steps is not None:
            return self.accumulation_steps
        p = self.pipeline_parallel
        return 1 if p == 1 else MICROBATCHES_PER_STAGE * p

    def needed_bytes(self, values) -> int:
        """The peak, what is set aside, and what no tensor holds."""
        outside = sum(values[name] for name in NO_TENSOR)
        return values[RANK_PEAK] + self.reserved(values) + outside

    @property
    def compared(self) -> str:
        """How far the ledger of these kernels was from published measurements."""
        if not (found := PUBLISHED.get(self.kernels)):
            return "no published peak of these kernels is among our rows"
        again = self.recompute_policy and not found.recomputes
        said = f"{found}{', none of which recomputes' if again else ''}"
        return f"{said}{NO_ADAPTERS if self.recipe in ADAPTED else ''}"

    @property
    def reserves_by_formula(self) -> bool:
        """Whether RANK_RESERVE is set aside: nobody says how much, and the published peaks of these
        kernels leave it out."""
        known = PUBLISHED.get(self.kernels)
        return self.reserve_bytes is None and not (known is not None and known.reserved)

    def reserved(self, values) -> int:
        return values[RANK_RESERVE] if self.reserves_by_formula else self.reserve_bytes or 0

    @property
    def kind(self) -> str:
        """Whose reserve it takes: a key of RESERVED_SHARES."""
        if self.context_parallel > 1:
            return "context parallelism"
        return "models of experts" if self.sizes.get("experts") else "dense models"

    @property
    def mix(self) -> int:
        """How ranks that share a sequence attend: of MIXES."""
        if self.context_mix is not None:
            return self.context_mix
        whole = divides_heads(self.sizes, self.tensor_parallel, self.context_parallel)
        return EXCHANGED if whole else RING

    @property
    def cuts_tokens(self) -> bool:
        """Whether there is sequence parallelism; a library gathers again in backward."""
        asked = self.sequence_parallel
        return self.tensor_parallel > 1 if asked is None else asked

    @property
    def given(self) -> dict:
        """The quantities that formulas take, arrays where fields are columns of many layouts. The
        GPUs that tensor parallelism and pipelines leave are data-parallel ranks. With context
        parallelism a rank has the bytes of a shorter sequence, and shards states with all that
        share it."""
        copy, interleaved = self.tensor_parallel * self.pipeline_parallel, self.stages_per_rank > 1
        named = {name: value for name, value in vars(self).items() if name not in NO_QUANTITIES}
        return {
            **self.sizes,
            **{name: value for name, value in named.items() if value is not None},
            "context_mix": self.mix,
            "sequence": self.sequence // self.context_parallel,
            "accumulation_steps": self.steps,
            "data_parallel": self.gpus // copy,
            "sequence_parallel": self.cuts_tokens * 1,
            "regather": self.cuts_tokens * 1,
            "pipeline_schedule": ONE_F_ONE_B + (INTERLEAVED - ONE_F_ONE_B) * interleaved,
        }

    def check(self):
        """Raises InvalidQuantity for degrees that no GPUs make, as data/knobs.md has them."""
        t, p, c = self.tensor_parallel, self.pipeline_parallel, self.context_parallel
        mix = {} if self.context_mix is None else dict(context_mix=self.context_mix)
        BOOK.validate(gpus=self.gpus, tensor_parallel=t, pipeline_parallel=p)
        BOOK.validate(ranks_per_node=self.ranks_per_node, **mix)
        asked = dict(vars(self), t=t, p=p, c=c, layout=self)
        refuse_by_knobs("layouts that cannot be", globals(), asked)

    def solved(self) -> dict:
        """The values of all quantities on the fullest rank, which is the pipeline's first, second
        or last. Raises InvalidQuantity for what cannot be."""
        self.check()
        targets = (RANK_NEEDED, RANK_PLACE, ON_THE_HOST)
        targets += ("parameters", "active_parameters", "gpu_memory_bytes")
        p = self.pipeline_parallel
        found = [
            BOOK.solve(targets, {**self.given, "pipeline_rank": rank}, allow_unused=True)
            for rank in sorted({0, min(1, p - 1), p - 1})
        ]
        return max(found, key=lambda values: values[RANK_PEAK])

    def crossing(self) -> str:
        """The cost of a layer's messages where its ranks are on several nodes, or on several
        domains of NVLink where these are larger; empty where they are on one."""
        t, links = self.tensor_parallel, self.links
        if t <= (node := links.joined_gpus):
            return ""
        names = ["tensor_layer_message_seconds", "tensor_message_share"]
        card = links.quantities[1]
        given = {**self.given, "utilisation": USUAL_UTILISATION}
        given |= dict(node_link=links.inside, link=links.card)
        given["link_bytes_per_second"] = links.cards * card["link_bytes_per_second"]
        (across_ms, across), (inside_ms, within) = (
            (1000 * found[names[0]], f"{100 * found[names[1]]:.0f}%")
            for found in (
                BOOK.solve(names, {**given, "ranks_per_node": size}, allow_unused=True)
                for size in (node, t)
            )
        )
        where = "domains of NVLink" if node > self.ranks_per_node else "nodes"
        return (
            f"tensor_parallel = {t} on {where} of {node} GPUs: the messages of a layer take"
            f" {across_ms:.3g} ms, {across} of its time, over {links.cards} x {links.card};"
            f" inside a node, over {links.inside}, they would take {inside_ms:.3g} ms, {within}. At"
            f" {100 * USUAL_UTILISATION:.0f}% of the GPU's FLOP/s; cut by depth beyond a node."
        )

    @property
    def fits(self) -> bool:
        """False, too, for a layout that cannot be."""
        try:
            values = self.solved()
        except InvalidQuantity:
            return False
        return self.needed_bytes(values) <= values["gpu_memory_bytes"]


_fields = [one.name for one in fields(RankLayout)]
LAYOUT_OPTIONS = tuple(_fields[_fields.index("tensor_parallel") :])


@dataclass(frozen=True)
class LedgerLine:
    """Bytes of one category at the rank's fullest place."""

    category: str
    quantity: str
    nbytes: int
    meaning: str
    expression: str
    source: str


@dataclass(frozen=True)
class Answer:
    """`nearest` are layouts that fit and differ in one thing, on one GPU with recomputation, or as
    a last resort in several: pairs (what changes, layout)."""

    layout: RankLayout
    values: dict
    lines: tuple
    assumed: dict
    nearest: tuple
    warning: str = ""  # of tensor parallelism across nodes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    @property
    def needed_bytes(self) -> int:
        return self.layout.needed_bytes(self.values)

    @property
    def reserve_bytes(self) -> int:
        return self.layout.reserved(self.values)

    @property
    def compared(self) -> str:
        return self.layout.compared

    @property
    def memory_bytes(self) -> int:
        return self.values["gpu_memory_bytes"]

    @property
    def place(self) -> str:
        where = fullest_place(self.values).meaning.removeprefix("bytes ")
        return where.partition(":")[0].partition(";")[0]

    def __str__(self) -> str:
        return "\n".join(self._texts())

    def _texts(self) -> Iterator[str]:
        asked, room = self.layout, self.memory_bytes - self.needed_bytes
        verdict = "fits" if self.fits else "does not fit"
        spare = f"{gigabytes(abs(room))} {'are left' if self.fits else 'are missing'}"
        yield (
            f"{asked.model} on {asked.gpus:,} x {asked.gpu}: {verdict}. The fullest rank needs"
            f" {gigabytes(self.needed_bytes)} of {gigabytes(self.memory_bytes)}; {spare}."
        )
        if asked.pipeline_parallel > 1:
            yield f"It is rank {self.values['pipeline_rank']} of the pipeline."
        yield f"It is fullest {self.place}."
        if self.warning:
            yield f"Warning: {self.warning}"
        yield ""
        for line in self.lines:
            yield f"{line.category:<12}{gigabytes(line.nbytes):>12}  {line.meaning}"
            yield f"{'':26}{line.quantity} = {line.expression}"
            yield f"{'':26}source: {line.source}"
        if self.reserve_bytes:
            yield f"{'set aside':<12}{gigabytes(self.reserve_bytes):>12}"
        yield f"{'together':<12}{gigabytes(self.needed_bytes):>12}"
        if nbytes := self.values[ON_THE_HOST]:
            yield f"{'on the host':<12}{gigabytes(nbytes):>12}"
        yield ""
        yield "Assumed:"
        for name, why in self.assumed.items():
            yield f"  {name} = {why}"
        yield f"Compared: {self.compared}."
        if not self.fits:
            yield ""
            yield "Nearest that fits:" if self.nearest else "Nothing near fits."
            yield from lines_of_nearest(self.nearest)

    def as_json(self) -> dict:
        own = ("fits", "needed_bytes", "memory_bytes", "reserve_bytes", "place", "compared")
        own += ("assumed", "warning")
        known = ("pipeline_rank", "parameters", "active_parameters")
        return dict(
            **{name: getattr(self, name) for name in own},
            **{name: self.values[name] for name in known},
            lines=[vars(line) for line in self.lines],
            host_bytes=self.values[ON_THE_HOST],
            nearest=list(json_of_nearest(self.nearest)),
        )


def lines_of_nearest(found) -> Iterator[str]:
    for one in json_of_nearest(found):
        host = f", and {gigabytes(one['host_bytes'])} on the host" if one["host_bytes"] else ""
        yield f"  {one['change']}: {gigabytes(one['needed_bytes'])}{host}"


def json_of_nearest(found) -> Iterator[dict]:
    for change, layout in found:
        values = layout.solved()
        needed = layout.needed_bytes(values)
        yield dict(change=change, needed_bytes=needed, host_bytes=values[ON_THE_HOST])


def fits(model, *, gpu, gpus, sequence, zero_stage=None, reserve_gb=None, **more) -> Answer:
    """The Answer for a model, by name or by the path of its config.json, on `gpus` GPUs of a
    preset. `more` may give LAYOUT_OPTIONS; what the degrees leave of the GPUs are data-parallel
    ranks. Raises InvalidModelConfig, InvalidQuantity or TypeError with one sentence; warns of
    tensor parallelism across nodes."""
    assumed = {}
    if zero_stage is None:
        zero_stage = 3 if gpus > 1 else 0
        assumed["zero_stage"] = f"{zero_stage} (--zero-stage)"
    where = dict(gpu=gpu, gpus=gpus, sequence=sequence, zero_stage=zero_stage)
    layout = asked_layout(model, reserve_gb, **where, **more)
    values = layout.solved()
    stages = layout.pipeline_parallel * layout.stages_per_rank
    even = values["first_stage_layers"] == values["stage_layers"]
    uneven = even and layout.sizes["layers"] % stages and not layout.shorter_ends
    known = globals() | vars(layout) | dict(layout=layout, values=values, more=more)
    known |= dict(reserve_gb=reserve_gb, stages=stages, uneven=uneven)
    for name, value in sentences("knobs.md", "defaults that are said", known):
        if more.get(name) is None:
            assumed[name] = f"{value} ({option(name)})"
    flat = BOOK.expand({**layout.given, "pipeline_rank": values["pipeline_rank"]})
    _, inputs = BOOK.resolve([RANK_PEAK], flat)
    assumed |= {
        name: f"{show(value)}: {BOOK.quantities[name].meaning}"
        for name, value in BOOK.assumed(inputs, flat).items()
    }
    assumed |= dict(sentences("knobs.md", "what else is assumed", known))
    lines = tuple(_lines(values))
    answer = Answer(layout, values, lines, assumed, (), layout.crossing())
    if answer.warning:
        warnings.warn(answer.warning, CrossesNodes, stacklevel=2)
    return answer if answer.fits else replace(answer, nearest=tuple(nearest(layout)))


def asked_layout(model, reserve_gb, **asked) -> RankLayout:
    """The layout that is asked about; its recipe is the usual one where none is given."""
    recipe = usual_recipe(asked["gpu"], asked.get("kernels", USUAL_KERNELS))
    sizes, reserve = model_sizes(model), reserve_in_bytes(reserve_gb)
    asked = {"recipe": recipe, **asked}
    name = "the file's model" if isinstance(model, dict) else str(model)
    return RankLayout(model=name, sizes=sizes, reserve_bytes=reserve, **asked)


def reserve_in_bytes(reserve_gb) -> int | None:
    """Bytes that are set aside; None where nobody says how many."""
    if reserve_gb is None:
        return None
    refuse_by_knobs("reserves that cannot be", globals(), dict(reserve_gb=reserve_gb))
    return round(reserve_gb * 10**9)


def in_library(kernels) -> bool:
    """Whether these are a library's kernels, by name; of an unknown name formulas say more."""
    return kernels in KERNELS and bool(KERNELS[kernels].quantities["library_kernels"])


def usual_recipe(gpu, kernels) -> str:
    """The recipe that these kernels run by default: Megatron-LM keeps gradients of 4 bytes in
    bf16 (its arguments.py sets accumulate_allreduce_grads_in_fp32)."""
    if gpu in WITHOUT_BF16:
        return LIBRARY_RECIPE_FP16
    return LIBRARY_RECIPE if in_library(kernels) else EAGER_RECIPE


def model_sizes(model) -> dict:
    """The quantities of a model by name, or of a config.json; given ones with the usual others."""
    if isinstance(model, dict):
        return {**BOOK.assumed(_FAMILY, model), **model}
    if not str(model).strip():
        raise InvalidModelConfig(f"model is empty; models by name are {', '.join(MODELS)}.")
    if model in MODELS:
        return dict(MODELS_WITH_USUAL[model])
    try:
        sizes = read_config(model)
    except InvalidModelConfig as refused:
        if Path(model).exists():
            raise
        raise InvalidModelConfig(
            f"{str(refused)[:-1]}; models by name are {', '.join(MODELS)}."
        ) from None
    return {**BOOK.assumed(_FAMILY, sizes), **sizes}


_FAMILY = list(dict.fromkeys(name for preset in MODELS.values() for name in preset.quantities))
MODELS_WITH_USUAL = {
    name: {**BOOK.assumed(_FAMILY, ()), **preset.quantities} for name, preset in MODELS.items()
}


def fullest_place(values):
    """The formula of the place at which the rank's peak is."""
    return BOOK.formulas[BOOK.formulas[RANK_PEAK].needs[values[RANK_PLACE] - 1]]


def _lines(values) -> Iterator[LedgerLine]:
    """The parts of the fullest place that are there, and what no tensor holds."""
    place = fullest_place(values)
    outside = zip(("context", "NCCL"), NO_TENSOR)
    for category, name in (*place.function.parts.items(), *outside):
        if not values[name]:
            continue
        found, formula = BOOK.find(name), BOOK.formulas.get(name)
        yield LedgerLine(
            category,
            name,
            values[name],
            " ".join(found.meaning.split()),
            expression_of(formula.function) if formula else show(values[name]),
            formula.source if formula else "the kernels preset",
        )


def nearest(layout: RankLayout) -> Iterator[tuple[str, RankLayout]]:
    """The smallest change that fits, for each thing that can change, and on one GPU with
    recomputation; where no such change does, all at once that cost no time: on one GPU for
    sequences halved again and again, then on more GPUs, then for shorter sequences there."""
    single = list(_those_that_fit(_single_changes(layout)))
    found = single or _those_that_fit((_tiled(layout), _frugal_on_one_gpu(layout)))
    yield from ((difference(layout, tried), tried) for tried in found)
    for sequence in () if single else (layout.sequence // step for step in (1, 2, 4, 8, 16)):
        several = [layout.gpus, *_doubles(layout.gpus)] if sequence else ()
        frugal = (_frugal(replace(layout, sequence=sequence, gpus=gpus)) for gpus in several)
        for tried in _those_that_fit(frugal):
            yield difference(layout, tried), tried
            return


def _those_that_fit(changes) -> Iterator[RankLayout]:
    """The first layout of each change that fits."""
    for layouts in changes:
        yield from islice((tried for tried in layouts if tried.fits), 1)


def _each(layout, name, values, **more) -> list[RankLayout]:
    return [replace(layout, **{name: value}, **more) for value in values]


def _repairs(layout):
    """Changes of one GPU by their cost, each with no more recomputation than it needs: states on
    the host, and parameters and gradients, too; smaller moments; adapters."""
    if layout.gpus > 1:
        return
    there = [] if layout.offload else [dict(offload=1)]
    there += [dict(zero_stage=3, offload=1)] if layout.zero_stage < 3 else []
    recipes = (*SMALL_MOMENTS, *ADAPTED)
    smaller = recipes[recipes.index(layout.recipe) + 1 if layout.recipe in recipes else 0 :]
    taken = [
        [dict(recipe=name) for name in smaller if name in of] for of in (SMALL_MOMENTS, ADAPTED)
    ]
    policies = range(layout.recompute_policy, WHOLE_LAYERS + 1)
    for steps in (there, *taken):
        yield [one for step in steps for one in _each(layout, "recompute_policy", policies, **step)]


def _frugal_on_one_gpu(layout):
    for sequence in (layout.sequence, *_halves(layout.sequence)):
        frugal = replace(layout, microbatch=1, kernels=_fused(layout.kernels), sequence=sequence)
        for changes in _repairs(frugal):
            yield from changes


def _tiled(layout):
    """Tiles of tokens, then checkpoints on the host, too, of layers that a library recomputes; with
    one GPU states are there as well."""
    again = replace(layout, recompute_policy=WHOLE_LAYERS, kernels=_fused(layout.kernels))
    if layout.gpus == 1:
        again = replace(again, zero_stage=3, offload=1)
    for on_host in range(layout.checkpoints_on_host, 2) if in_library(layout.kernels) else ():
        yield from _each(again, "sequence_tiles", _more_tiles(layout), checkpoints_on_host=on_host)


def _more_tiles(layout):
    return _doubles(
        layout.sequence_tiles, layout.sequence // layout.context_parallel // TILE_TOKENS
    )


def _frugal(layout):
    """The layout with all that costs no time: the degrees as they are, and then ever more ranks of
    a copy. Pipelines come with stage 1: they reduce gradients once, at the end of a step."""
    frugal = replace(layout, microbatch=1, kernels=_fused(layout.kernels))
    yield replace(frugal, zero_stage=3)
    for ranks in _doubles(1, MOST_TENSOR_PARALLEL * MOST_PIPELINE_PARALLEL):
        t = max(layout.tensor_parallel, min(ranks, MOST_TENSOR_PARALLEL))
        p = max(layout.pipeline_parallel, ranks // t)
        if layout.gpus % (t * p) == 0:
            yield replace(
                frugal, zero_stage=3 if p == 1 else 1, tensor_parallel=t, pipeline_parallel=p
            )


def _single_changes(layout) -> Iterator[list[RankLayout]]:
    """Layouts that differ in one thing each, from the least change to the largest."""
    each, again = partial(_each, layout), layout.recompute_policy
    yield each("zero_stage", range(layout.zero_stage + 1, 4))
    if layout.zero_stage and layout.gpus > 1:
        yield each("offload", [1])
    yield each("microbatch", _halves(layout.microbatch))
    yield each("kernels", [_fused(layout.kernels)])
    yield each("recompute_policy", range(again + 1, WHOLE_LAYERS + 1))
    if again == WHOLE_LAYERS and in_library(layout.kernels):
        yield each("sequence_tiles", _more_tiles(layout))
        yield each("checkpoints_on_host", [1])
    yield from _repairs(layout)
    yield each("tensor_parallel", _doubles(layout.tensor_parallel, MOST_TENSOR_PARALLEL))
    if layout.sizes.get("experts"):
        yield each("expert_parallel", _doubles(layout.expert_parallel))
    mix = layout.context_mix if layout.context_parallel > 1 else None  # without: the usual one
    contexts = _doubles(layout.context_parallel, layout.gpus)
    yield each("context_parallel", contexts, context_mix=mix)
    yield each("pipeline_parallel", _doubles(layout.pipeline_parallel, MOST_PIPELINE_PARALLEL))
    if layout.zero_stage:
        yield each("gpus", _doubles(layout.gpus))
    yield each("sequence", [s for s in _halves(layout.sequence) if s >= 128])
    yield each("gpu", sorted(GPUS, key=lambda name: GPUS[name].quantities["gpu_memory_bytes"]))


def difference(layout: RankLayout, other: RankLayout) -> str:
    """The change from one layout to the other, as options of the command."""
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
    names = ("zero_stage", "offload", *degrees, "microbatch", "kernels", "recipe")
    names += ("recompute_policy", "sequence_tiles", "checkpoints_on_host")
    names += ("gpus", "sequence", "gpu")
    values = {name: getattr(other, name) for name in names}
    return " ".join(
        f"{option(name)} " + (f'"{value}"' if isinstance(value, str) else str(value))
        for name, value in values.items()
        if getattr(layout, name) != value
    )


def option(name) -> str:
    """A field of a layout as the command has it."""
    return f"--{name.replace('_', '-')}"


def _fused(kernels):
    return FUSED_LOSS if kernels == USUAL_KERNELS else kernels


def _halves(number):
    while number > 1:
        number //= 2
        yield number


def _doubles(number, most=MOST_GPUS):
    while (number := 2 * number) <= most:
        yield number


def gigabytes(nbytes) -> str:
    return f"{nbytes / 10**9:,.2f} GB"
