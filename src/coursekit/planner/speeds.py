"""Seconds of a step of one layout, at the speed of published runs: the constants of each class of
runs, which were fitted, and how far the seconds are from those that were published.

    values = step_values(layout, SPEEDS["Megatron-LM on H100"])     # of a RankLayout
    values["layout_seconds"], parts_of(values)
"""

from dataclasses import dataclass

from coursekit.formulas.presets import GPUS, HARDWARE, records_of
from coursekit.formulas.registry import BOOK

from .layout import RankLayout, in_library
from .links import BANDWIDTH_SHARE, USUAL_RANKS_PER_NODE, family_of, links_of

PUBLISHED_SECONDS = "tests/which_layout/published_seconds.csv"


@dataclass(frozen=True)
class Speed:
    """Constants of published runs, and how far the seconds of a step are from the published ones,
    in percent; the test of published seconds computes each number again, and its FITTED says which
    constants are fitted beside `utilisation`, to every second row of a class; `other_half` is the
    error of the rows between. `mean` is of errors of rows that were not fitted, too: each half's by
    constants that were fitted to the other. The hidden share is set, not fitted: nine rows cannot
    tell 0.5 from 1, and 1 would make tensor parallelism free."""

    measured: str
    utilisation: float  # share of the datasheet's FLOP/s that matrix products reach
    hidden_message_share: float  # of tensor-parallel messages
    overlap: bool  # whether data-parallel messages travel beside computing: what the runs did
    rows: int
    mean: float  # of the errors' absolute values
    other_half: float
    lowest: float
    highest: float
    score_share: float = 1.0  # of all scores' work: less if the masked half is skipped
    network_share: float = BANDWIDTH_SHARE  # of the datasheet's figure that the network reaches
    network_latency: float = 0.0  # seconds of a message between nodes; 0: the link's
    launch: float = 0.0  # seconds in which the CPU drives a layer
    rank_wait: float = 0.0  # and, in a pipeline, waits for each further tensor-parallel rank
    stall: float = 0.0  # seconds of a microbatch in a pipeline on STALLING_GPUS or more
    shards_late: bool = False  # whether overlap is that of stage 0 alone

    def __str__(self):
        return (
            f"on {self.rows} published rows ({self.measured}) the seconds were {self.mean:.1f}% off"
            f" on average, each half by a fit to the other, {self.other_half:.1f}% on the half held"
            f" out, from {self.lowest:+.1f}% to {self.highest:+.1f}% ({PUBLISHED_SECONDS})"
        )

    def habits(self, gpu) -> str:
        """Assumptions about messages, which are those of the runs and not of the GPU."""
        hidden = pace(gpu, self)["hidden_message_share"]
        return (
            f"{hidden:.0%} of the tensor-parallel messages hide behind products, data-parallel"
            f" messages travel {'' if self.overlap else 'not '}beside computing: habits of these"
            " runs, not fitted"
        )


EXPERTS = "Megatron-Bridge's experts"


SPEEDS = records_of("speeds.csv", Speed)


def usual_speed(gpu, kernels, experts=False) -> str:
    """The class of published rows that is nearest to these GPUs and kernels; with experts, there is
    one."""
    if experts:
        return EXPERTS
    software = "Megatron-LM" if in_library(kernels) else "FSDP"
    nearest = f"{software} on {HARDWARE[gpu]['published_rows']}"
    return nearest if nearest in SPEEDS else f"{software} on H100"


# part of a step -> how it is called; products and elementwise operations are work, the rest waits
PARTS = {
    "products": "matrix products",
    "recomputing": "recomputation",
    "moving": "elementwise operations",
    "messages": "tensor-parallel messages",
    "experts": "messages to experts",
    "exchange": "context-parallel messages",
    "launching": "launches",
    "head": "head and loss",
    "bubble": "bubble",
    "passing": "messages between stages",
    "exposed": "data-parallel messages",
    "update": "update",
}
WORK = ("products", "moving", "head", "update")
SECONDS_BY_LOOK = {  # look of palette.TIMELINE -> (label, parts of the step)
    "forward": ("work", ("products", "moving", "head", "update", "launching")),
    "weight-gradient": ("recomputed", ("recomputing",)),
    "communication": ("messages", ("messages", "passing", "exposed", "experts", "exchange")),
    "idle": ("bubble", ("bubble",)),
}
OF_A_STEP = ("layout_seconds", "layout_tokens_per_second", "layout_utilisation")


def _measured_share(gpu) -> float | None:
    """The best that somebody measured for products on a GPU, as a share of its datasheet."""
    chip = GPUS[gpu].quantities
    best = chip.get("measured_flops_per_second")
    return best and best / chip["flops_per_second"]


def _utilisation(gpu, speed: Speed) -> float:
    """The share that products reach: less where the GPU's best measured product falls further short
    of its datasheet than that of the GPUs on which the share was fitted."""
    name, family = speed.measured, family_of(gpu)
    fitted = next((one for one in FITTED_ON if f"{family_of(one)}s" in name), None)
    mine, theirs = _measured_share(gpu), fitted and _measured_share(fitted)
    if not mine or not theirs or f"{family}s" in name:
        return speed.utilisation
    return speed.utilisation * min(1.0, mine / theirs)


FITTED_ON = ("A100 SXM 80GB", "H100 SXM 80GB", "B200 SXM")


STALLING_GPUS = 512  # of nanotron's runs: on 256, few microbatches stall


def pace(gpu, speed: Speed, ranks_per_node=USUAL_RANKS_PER_NODE, gpus=1) -> dict:
    """The quantities of a GPU and its links at a fitted speed."""
    links, chip = links_of(gpu, ranks_per_node), GPUS[gpu].quantities
    inside, card = links.quantities
    return dict(
        flops_per_second=chip["flops_per_second"],
        memory_bytes_per_second=BANDWIDTH_SHARE * chip["memory_bytes_per_second"],
        node_latency_seconds=inside["latency_seconds"],
        node_bytes_per_second=BANDWIDTH_SHARE * inside["link_bytes_per_second"],
        latency_seconds=speed.network_latency or card["latency_seconds"],
        layer_launch_seconds=speed.launch,
        tensor_rank_wait_seconds=speed.rank_wait,
        microbatch_stall_seconds=speed.stall * (gpus >= STALLING_GPUS),
        link_bytes_per_second=links.cards * speed.network_share * card["link_bytes_per_second"],
        ranks_per_node=links.joined_gpus,
        utilisation=_utilisation(gpu, speed),
        hidden_message_share=speed.hidden_message_share * links.fast,
        score_share=speed.score_share,
        reduce_early=int(speed.overlap),
        prefetch_units=int(speed.overlap and not speed.shards_late),
        shards_late=int(speed.shards_late),
    )


def step_given(layout: RankLayout, speed: Speed) -> dict:
    """The quantities of a layout, or of columns of layouts, at a speed."""
    return layout.given | pace(layout.gpu, speed, layout.ranks_per_node, layout.gpus)


def step_values(layout: RankLayout, speed: Speed, **more) -> dict:
    """The values of a step's seconds and of all that they follow from; `more` are quantities that
    the layout does not have, such as dropout."""
    given = step_given(layout, speed) | more
    given["pipeline_rank"] = layout.pipeline_parallel - 1
    return BOOK.solve(OF_A_STEP, given, allow_unused=True)


def parts_of(values) -> dict:
    """Seconds of each part of a step, on the slowest rank; they add up to the step."""
    steps, layer = values["accumulation_steps"], values["layer_seconds"]
    has_head = values["slowest_rank_seconds"] > values["middle_rank_layers"] * layer
    layers = values["last_rank_layers" if has_head else "middle_rank_layers"]
    of_a_layer = dict(
        products=values["layer_forward_seconds"] + values["layer_gradient_seconds"],
        recomputing=values["layer_backward_seconds"] - values["layer_gradient_seconds"],
        moving=values["layer_moving_seconds"],
        messages=values["layer_waiting_seconds"],
        experts=values["layer_expert_seconds"]
        + values["layer_expert_tensor_seconds"]
        + values["layer_late_seconds"],
        exchange=values["layer_context_seconds"],
    )
    of_a_layer["launching"] = max(0.0, layer - sum(of_a_layer.values()))
    return {
        **{name: steps * layers * seconds for name, seconds in of_a_layer.items()},
        "head": steps * has_head * values["head_seconds"],
        "bubble": values["bubble_seconds"],
        "passing": values["pipeline_passing_time_seconds"],
        "exposed": values["data_exposed_seconds"],
        "update": values["rank_update_seconds"],
    }
