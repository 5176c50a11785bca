"""The explorer of chapter 15: rows, bytes and seconds of experts on several ranks, by how far the
routing has collapsed."""

from coursekit.show.links import AtMost, Divides
from coursekit.show.pictures import CurveAxis, Curves, Line
from coursekit.show.spec import Choice, Control, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two

RANKS_OF_EXPERTS = powers_of_two(1, 64)
EXPERTS_OF_A_LAYER = powers_of_two(2, 512)
COLLAPSED = tuple(share / 20 for share in range(21))
EXPERTS_ON_RANKS = Explorer(
    name="experts",
    title="Which rank do the others wait for?",
    menus=(Menu("expert_kind", "Experts of"), Menu("link", "Link")),
    controls=(
        Control("experts", "experts of a layer E", EXPERTS_OF_A_LAYER),
        Control("experts_per_token", "experts of a token", (1, 2, 4, 6, 8, 16)),
        Control("expert_parallel", "ranks that divide them e", RANKS_OF_EXPERTS),
        Control("collapsed_share", "tokens that have collapsed", COLLAPSED, "percent"),
        Choice("capacity_factor", "capacity", ((0, "none"), (1, "1"), (1.25, "1.25"), (2, "2"))),
    ),
    begin=dict(
        expert_kind="Mixtral 8x7B",
        link="NVLink 4 (H100)",
        expert_parallel=8,
        collapsed_share=0.25,
        microbatch=1,
        sequence=4096,
        gated_mlp=1,
        flops_per_second=989e12,
        utilisation=0.46,
    ),
    links=(
        AtMost("experts_per_token", "experts"),
        Divides("expert_parallel", "experts", among=RANKS_OF_EXPERTS),
    ),
    pictures=(
        Curves(
            title="Rows of a layer's experts, on up to 16 ranks",
            sweep="expert_rank",
            stops=tuple(range(16)),
            x=CurveAxis("rank", "exact", log=False, ticks=(0, 3, 6, 9, 12, 15)),
            y=CurveAxis("rows", "count", log=False),
            lines=(
                Line("rank_expert_rows", "computed"),
                Line("even_rank_rows", "an even share"),
            ),
            point="rank_expert_rows",
            words="{rank_expert_rows}",
        ),
        Curves(
            title="Time of a layer's experts, by collapse",
            sweep="collapsed_share",
            stops=COLLAPSED,
            x=CurveAxis("tokens that have collapsed", "percent", log=False),
            y=CurveAxis("time", "short duration", log=False),
            lines=(
                Line("experts_seconds", "both"),
                Line("expert_exchange_seconds", "messages"),
                Line("expert_compute_seconds", "computing"),
            ),
            point="experts_seconds",
            words="{experts_seconds:short duration}",
        ),
    ),
    sentence=(
        Say(
            "Rank 0 computes {fullest_rank_rows} rows, {rank_imbalance:number} times an even share"
        ),
        Say(
            ", and all {expert_parallel:exact} ranks wait for it",
            unless=(("expert_parallel", 1), ("collapsed_share", 0)),
        ),
        Say(
            ". A layer's experts and messages take {experts_seconds:short duration}, instead of"
            " {balanced_experts_seconds:short duration} in balance. "
        ),
        Say("No row is dropped.", when=(("dropped_share", 0),)),
        Say("{dropped_share:percent} of the rows are dropped.", unless=(("dropped_share", 0),)),
    ),
    detail=(
        Say(
            "The fullest expert is sent {expert_imbalance:number} times the mean. One token is"
            " {expert_token_bytes} there and back in forward. Forward and backward, a rank in"
            " balance sends {expert_layer_sent_bytes}, and rank 0 receives and returns"
            " {fullest_rank_bytes}. Microbatches have {sequence:exact} tokens a rank; products"
            " reach {utilisation:percent} of {flops_per_second}. Messages and computing do not"
            " overlap here."
        ),
    ),
    table=ExplorerTable(
        "A layer's experts on 8 ranks over NVLink 4, a quarter of the tokens collapsed",
        "expert_kind",
        (
            ("fullest expert, times the mean", "expert_imbalance", "number"),
            ("fullest rank, times the mean", "rank_imbalance", "number"),
            ("a token, kB", "expert_token_bytes", "kB"),
            ("messages", "expert_exchange_seconds", "short duration"),
            ("computing", "expert_compute_seconds", "short duration"),
            ("in balance, both", "balanced_experts_seconds", "short duration"),
        ),
    ),
    adds=(
        ("experts_seconds", "a layer's experts"),
        ("expert_exchange_seconds", "messages"),
        ("expert_compute_seconds", "computing"),
    ),
    why=(
        "hot_expert_rows",
        "fullest_rank_rows",
        "dropped_share",
        "expert_layer_sent_bytes",
        "fullest_rank_bytes",
        "expert_exchange_seconds",
        "expert_compute_seconds",
    ),
    outputs=(
        "fullest_rank_rows",
        "dropped_share",
        "expert_layer_sent_bytes",
        "experts_seconds",
    ),
)
