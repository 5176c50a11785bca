"""A layout that runs on this machine, beside the formulas of a rank in any layout.

run = weigh_layout(RunLayout(data_parallel=2, tensor_parallel=2, pipeline_parallel=2,
                             zero_stage=1, microbatches=4))
run.table()             # each rank's bytes at its fullest, and what the formulas say
run.explorer(rank=3)    # the explorer of any layout beside this rank
"""

from dataclasses import dataclass, replace

from coursekit.formulas import RECIPES, InvalidQuantity, evaluate
from coursekit.show.links import AtMost
from coursekit.show.spec import Choice, Control, ExplorerTable, Say
from coursekit.show.stops import powers_of_two
from coursekit.show.tables import Table
from coursekit.show.widgets import ExplorerWidget, explorer
from coursekit.topics.which_layout.explorer import RANK_OF_ANY_LAYOUT
from coursekit.topics.which_layout.runs import RunLayout, weigh_rank
from shardlab.measure.ledger import Counts
from shardlab.pipelines.schedules import SCHEDULES
from shardlab.ranks import ranks

RUN_RECIPE = "fp32 Adam"
EXACT_SCHEDULES = ("GPipe", "1F1B", "eager 1F1B")
# of a rank at its fullest, in the order of Counts
QUANTITIES = ("rank_parameter_bytes",) + tuple(
    f"{category}_at_rank_peak_bytes" for category in Counts._fields[1:]
)


def quantities_of_rank(layout: RunLayout, rank: int = 0) -> dict:
    """The quantities of a rank, by its number among all ranks: neighbours cut the same layers, then
    come the stages of a pipeline, then the copies of the model."""
    config, t, p = layout.config, layout.tensor_parallel, layout.pipeline_parallel
    names = ("data_parallel", "tensor_parallel", "pipeline_parallel", "zero_stage", "microbatch")
    names += ("shorter_ends", "stages_per_rank", "bucket_bytes")
    names += ("recompute_policy", "recompute_every")
    return dict(
        **config.quantities(),
        **RECIPES[RUN_RECIPE].quantities,
        **{name: getattr(layout, name) for name in names},
        sequence=config.max_sequence,
        dropout=config.dropout,
        fused_attention=int(config.fused_attention),
        sequence_parallel=int(layout.sequence_parallel),
        regather=int(layout.regather),
        pipeline_schedule=1 + list(SCHEDULES).index(layout.schedule),
        accumulation_steps=layout.microbatches,
        optimizer_mode=int(layout.foreach),
        tensor_rank=rank % t,
        pipeline_rank=rank // t % p,
        rank=rank // (t * p),
    )


def predicted(layout: RunLayout, rank: int = 0) -> Counts:
    """Bytes of a rank at its fullest point, by the formulas."""
    found = evaluate(QUANTITIES, allow_unused=True, **quantities_of_rank(layout, rank))
    return Counts(*(found[name] for name in QUANTITIES))


def check_layout(layout: RunLayout):
    """Raises InvalidQuantity where the formulas are not to the byte, or the run would train another
    model."""
    layers, stages = layout.config.layers, layout.pipeline_parallel
    if layout.schedule not in EXACT_SCHEDULES:
        raise InvalidQuantity(
            "schedule",
            layout.schedule,
            f"schedule = {layout.schedule}: what its microbatches keep is known about, not to the"
            f" byte; take one of {', '.join(EXACT_SCHEDULES)}.",
        )
    if (layers + 2 * layout.shorter_ends) % stages:
        raise InvalidQuantity(
            "pipeline_parallel",
            stages,
            f"pipeline_parallel = {stages} with layers = {layers}: the stages of this run have as"
            " many layers each; give a number that divides the layers.",
        )
    if layout.zero_stage == 0 and layout.data_parallel > 1 and stages == 1:
        raise InvalidQuantity(
            "zero_stage",
            0,
            f"zero_stage = 0 with data_parallel = {layout.data_parallel} without a pipeline: the"
            " copies in buckets of data parallelism are weighed in their own lab; give a stage from"
            " 1 to 3.",
        )


@dataclass(frozen=True)
class WeighedRun:
    """A layout that ran, and the bytes of each of its ranks at its fullest point."""

    layout: RunLayout
    measured: tuple[Counts, ...]

    def table(self) -> Table:
        """Each rank by category, and what the formulas say of it, as a difference."""
        rows = []
        for rank, found in enumerate(self.measured):
            said = predicted(self.layout, rank)
            rows.append([f"rank {rank}", *found, found.total, f"{said.total - found.total:+,d}"])
        return Table(["", *Counts._fields, "together", "formulas - ledger"], rows)

    def explorer(self, rank: int = 0) -> ExplorerWidget:
        """The formulas of a rank in any layout as sliders, as this run was made, with the ledger's
        bytes of one rank beside them."""
        begin = quantities_of_rank(self.layout, rank)
        begin = {name: begin[name] for name in BESIDE_A_RUN.inputs if name in begin}
        measured = dict(zip(QUANTITIES, self.measured[rank]))
        return explorer(replace(BESIDE_A_RUN, begin=begin), measured)


def weigh_layout(layout: RunLayout) -> WeighedRun:
    """Train two steps on as many ranks as the layout has, and weigh the second. InvalidQuantity,
    before any rank starts, for a layout that no formula knows to the byte."""
    check_layout(layout)
    predicted(layout)
    with ranks(layout.ranks, device="cpu", announce=False) as world:
        return WeighedRun(layout, tuple(world.run(weigh_rank, layout)))


_SWITCH = ((0, "no"), (1, "yes"))
BESIDE_A_RUN = replace(
    RANK_OF_ANY_LAYOUT,
    name="rank-of-a-run",
    title="What did one rank hold?",
    menus=(),
    controls=(
        Control("data_parallel", "data-parallel ranks d", powers_of_two(1, 64)),
        Choice("tensor_parallel", "tensor-parallel ranks t", ((1, "1"), (2, "2"), (4, "4"))),
        Control("pipeline_parallel", "pipeline ranks p", (1, 2, 4)),
        Choice("zero_stage", "ZeRO stage", tuple((stage, str(stage)) for stage in range(4))),
        Choice("sequence_parallel", "tokens cut between products", _SWITCH),
        Choice("recompute_policy", "computed again", ((0, "nothing"), (3, "each layer"))),
        Control("accumulation_steps", "microbatches in a step", powers_of_two(1, 64)),
        Control("microbatch", "sequences in a microbatch", powers_of_two(1, 64)),
        Control("pipeline_rank", "rank of the pipeline, from 0", range(4)),
    ),
    groups=(),
    links=(
        AtMost("pipeline_rank", "pipeline_parallel", less=1),
        AtMost("pipeline_parallel", "accumulation_steps"),
        AtMost("regather", "sequence_parallel"),
    ),
    begin={},
    pictures=(replace(RANK_OF_ANY_LAYOUT.pictures[0], capacity=""),),
    sentence=(
        Say(
            "Rank {pipeline_rank:exact} of the pipeline, one of {layout_gpus:exact}"
            " rank{layout_gpus:s}, holds {rank_peak_bytes:exact} bytes at its fullest."
        ),
    ),
    detail=(Say("The fill is what the ledger counted on this machine."),),
    table=ExplorerTable("", "model", ()),
    outputs=("rank_peak_bytes",),
    why=(),
)
