"""A layout that runs on this machine, beside the formulas of a rank in any layout.

run = weigh_layout(RunLayout(data_parallel=2, tensor_parallel=2, pipeline_parallel=2,
                             zero_stage=1, microbatches=4))
run.table()             # each rank's bytes at its fullest, and what the formulas say
run.explorer(rank=3)    # the explorer of any layout beside this rank
"""

from dataclasses import dataclass

from coursekit.formulas import RECIPES, evaluate
from coursekit.show.tables import Table
from coursekit.show.widgets import ExplorerOutput, explorer
from coursekit.topics.which_layout.explorer import beside_a_run
from coursekit.topics.which_layout.runs import RunLayout, check_layout, weigh_rank
from ranklab.measure.ledger import Counts
from ranklab.ranks import ranks
from shardlab.pipelines.schedules import SCHEDULES

RUN_RECIPE = "fp32 Adam"
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

    def explorer(self, rank: int = 0) -> ExplorerOutput:
        """The formulas of a rank in any layout as sliders, as this run was made, with the ledger's
        bytes of one rank beside them."""
        measured = dict(zip(QUANTITIES, self.measured[rank]))
        return explorer(beside_a_run(quantities_of_rank(self.layout, rank)), measured)


def weigh_layout(layout: RunLayout) -> WeighedRun:
    """Train two steps on as many ranks as the layout has, and weigh the second. InvalidQuantity,
    before any rank starts, for a layout that no formula knows to the byte."""
    check_layout(layout)
    predicted(layout)
    with ranks(layout.ranks, device="cpu", announce=False) as world:
        return WeighedRun(layout, tuple(world.run(weigh_rank, layout)))
