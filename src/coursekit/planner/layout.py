"""A layout of ranks that is asked about: its bytes on the fullest rank by formula, and how far such
bytes were from published ones.

    where = dict(gpu="H100 SXM 80GB", gpus=64, sequence=8192, zero_stage=3)
    layout = asked_layout("Llama 3 8B", reserve_gb=None, **where)
    layout.needed_bytes(layout.solved()), layout.compared
"""

from dataclasses import dataclass, fields
from pathlib import Path

from coursekit.formulas.presets import KERNELS, MODELS, WITHOUT_BF16, records_of
from coursekit.formulas.registry import BOOK, InvalidQuantity, show
from coursekit.sentences import sentences

from .links import USUAL_RANKS_PER_NODE, LinksOfGPU, links_of
from .model_config import InvalidModelConfig, read_config

RANK_PEAK, RANK_PLACE = "rank_peak_bytes", "rank_peak_place"
RANK_NEEDED, RANK_RESERVE = "rank_needed_bytes", "rank_reserve_bytes"
ON_THE_HOST = "rank_host_bytes"
NO_TENSOR = ("rank_context_bytes", "rank_communicator_bytes")
USUAL_KERNELS, FUSED_LOSS = "Megatron-LM with Transformer Engine", "Megatron-LM, fused loss"
EAGER_RECIPE = "bf16 + fp32 master"
LIBRARY_RECIPE, LIBRARY_RECIPE_FP16 = "bf16 + fp32 gradients", "fp16 + fp32 gradients"
MOST_RESERVE_GB = 1_000_000
USUAL_UTILISATION = 0.5
MICROBATCHES_PER_STAGE = 4  # assumed of a pipeline: from one on, more of them change no byte
WHOLE_LAYERS = 3  # of recompute_policy
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
    for quantity, words in sentences("knobs.md", heading, dict(show=show) | names | asked):
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

    def reserved(self, values) -> int:
        """Bytes that are set aside: where nobody says how many, RANK_RESERVE, unless the published
        peaks of these kernels have it."""
        if self.reserve_bytes is not None:
            return self.reserve_bytes
        known = PUBLISHED.get(self.kernels)
        return 0 if known is not None and known.reserved else values[RANK_RESERVE]

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
        rate = links.cards * links.quantities[1]["link_bytes_per_second"]
        given = self.given | dict(node_link=links.inside, link=links.card)
        given |= dict(link_bytes_per_second=rate, utilisation=USUAL_UTILISATION)

        def messages(size):
            found = BOOK.solve(names, {**given, "ranks_per_node": size}, allow_unused=True)
            return f"{1000 * found[names[0]]:.3g} ms, {100 * found[names[1]]:.0f}%"

        where = "domains of NVLink" if node > self.ranks_per_node else "nodes"
        return (
            f"tensor_parallel = {t} on {where} of {node} GPUs: the messages of a layer take"
            f" {messages(node)} of its time, over {links.cards} x {links.card};"
            f" inside a node, over {links.inside}, they would take {messages(t)}. At"
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
    by_name = f"models by name are {', '.join(MODELS)}."
    if isinstance(model, dict):
        sizes = model
    elif not str(model).strip():
        raise InvalidModelConfig(f"model is empty; {by_name}")
    elif model in MODELS:
        sizes = MODELS[model].quantities
    else:
        try:
            sizes = read_config(model)
        except InvalidModelConfig as refused:
            if Path(model).exists():
                raise
            raise InvalidModelConfig(f"{str(refused)[:-1]}; {by_name}") from None
    return {**BOOK.assumed(_FAMILY, sizes), **sizes}


_FAMILY = list(dict.fromkeys(name for preset in MODELS.values() for name in preset.quantities))
MODELS_WITH_USUAL = {name: model_sizes(name) for name in MODELS}


def option(name) -> str:
    """A field of a layout as the command has it."""
    return f"--{name.replace('_', '-')}"


def gigabytes(nbytes) -> str:
    return f"{nbytes / 10**9:,.2f} GB"
