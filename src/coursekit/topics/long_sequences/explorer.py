"""The explorer of chapter 14: ranks that share a sequence, their memory, bytes and ring."""

from coursekit.formulas import quantities
from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat
from coursekit.formulas.presets import MODELS
from coursekit.planner.layout import EXCHANGED, FUSED_LOSS, GATHERED, RING
from coursekit.show.links import HEADS_FOLLOW, AtLeast, AtMost, Divides
from coursekit.show.pictures import (
    RANK_PEAK_PARTS,
    CurveAxis,
    Curves,
    Line,
    MemoryBar,
    Part,
    StreamsPicture,
)
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two

SHARING = powers_of_two(1, 64)
_ALONE = (("context_parallel", 1),)
_UNEVEN = tuple(name for name, model in MODELS.items() if model.quantities["key_value_heads"] % 8)

# A message leaves when a turn begins, and the next turn needs it.
_TURN = (
    Event("begin", COMPUTE, after=("message",)),
    Event("message", LINK, "ring_message_seconds", ("begin",)),
    Event("turn", COMPUTE, "ring_turn_seconds"),
)
RING_FORWARD = (
    Phase(
        "forward",
        (
            Event("message", LINK, "ring_message_seconds", unless=_ALONE),
            Event("turn", COMPUTE, "balanced_turn_seconds"),
            Repeat("context_parallel", _TURN, less=2),
            Event("last", COMPUTE, "", ("message",), unless=_ALONE),
            Event("turn", COMPUTE, "ring_turn_seconds", unless=_ALONE),
        ),
    ),
)

LONG_SEQUENCES = Explorer(
    name="long-sequences",
    title="What does a rank hold, send and wait for?",
    menus=(
        Menu("model", "Model", without=("experts", "key_value_latent"), but=_UNEVEN),
        Menu("gpu", "GPU"),
        Menu("node_link", "Link between ranks"),
    ),
    controls=(
        Control("context_parallel", "ranks that share a sequence, c", SHARING),
        Control("sequence", "tokens of a rank", powers_of_two(1024, 131_072)),
        Choice(
            "context_mix",
            "mix",
            ((RING, "ring"), (GATHERED, "gathered"), (EXCHANGED, "heads exchanged")),
        ),
        Choice("context_order", "order", ((1, "contiguous"), (2, "zigzag"), (3, "striped"))),
        Control("key_value_heads", "heads of keys and values", powers_of_two(1, 64)),
        Control("data_parallel", "GPUs that share the states", SHARING),
    ),
    groups=(
        ControlGroup("Sequence", ("context_parallel", "sequence")),
        ControlGroup("How they share", ("context_mix", "context_order", "key_value_heads")),
        ControlGroup("States", ("data_parallel",), folded=True),
    ),
    links=(
        AtMost("context_parallel", "data_parallel"),
        Divides("context_parallel", "key_value_heads", SHARING, when=(("context_mix", EXCHANGED),)),
        *HEADS_FOLLOW,
        AtLeast("max_sequence", "sequence"),
    ),
    begin=dict(
        model="Llama 3 8B",
        gpu="H100 SXM 80GB",
        node_link="NVLink 4 (H100)",
        **quantities(recipe="bf16 + fp32 gradients", kernels=FUSED_LOSS),
        context_parallel=8,
        sequence=16_384,
        context_mix=RING,
        context_order=2,
        recompute_policy=3,
        data_parallel=8,
        tensor_parallel=1,
        pipeline_parallel=1,
        pipeline_rank=0,
        pipeline_schedule=2,
        stages_per_rank=1,
        shorter_ends=0,
        expert_parallel=1,
        sequence_parallel=0,
        regather=0,
        offload=0,
        zero_stage=3,
        microbatch=1,
        accumulation_steps=1,
        ranks_per_node=64,
        latency_seconds=9.6e-6,
        link_bytes_per_second=50e9,
        utilisation=0.5,
        score_share=0.5,
    ),
    pictures=(
        MemoryBar(
            "One rank at its fullest",
            (
                *RANK_PEAK_PARTS,
                Part("rank_workspace_bytes", "workspaces", "temporaries"),
            ),
            total="rank_peak_bytes",
            capacity="gpu_memory_bytes",
        ),
        StreamsPicture(
            "The ring's forward of one layer",
            RING_FORWARD,
            (
                ("turn", "turns", "timeline-forward"),
                ("message", "keys and values", "timeline-communication"),
            ),
            idle="waits",
        ),
        Curves(
            title="Sent in a layer, by c",
            sweep="context_parallel",
            stops=SHARING[1:],
            x=CurveAxis("ranks that share a sequence, logarithmic", "exact", ticks=SHARING[1:]),
            y=CurveAxis("bytes sent, logarithmic", "decimal bytes"),
            lines=(
                Line("context_sent_bytes", "ring", given=(("context_mix", RING),)),
                Line("context_sent_bytes", "gathered", given=(("context_mix", GATHERED),)),
            ),
            point="context_sent_bytes",
            words="{context_sent_bytes}",
        ),
    ),
    sentence=(
        Say(
            "A sequence of {whole_sequence:exact} tokens lies on {context_parallel:exact}"
            " rank{context_parallel:s}. Each holds {rank_peak_bytes} at its peak"
        ),
        Say(", and fits with {free_bytes} to spare. ", when=(("fits", 1),)),
        Say(", {missing_bytes} more than the GPU has. ", when=(("fits", 0),)),
        Say("In a layer it sends {context_sent_bytes}. ", unless=_ALONE),
        Say("It sends nothing.", when=_ALONE),
        Say(
            "The ring's forward hides its messages.",
            when=(("context_mix", 1), ("ring_hides", 1)),
            unless=_ALONE,
        ),
        Say(
            "The ring's forward waits {ring_forward_exposed_seconds:short duration} for messages,"
            " and hides them from {hiding_tokens:count} tokens a rank on.",
            when=(("context_mix", 1), ("ring_hides", 0)),
            unless=_ALONE,
        ),
        Say("Nothing hides these messages.", unless=(("context_mix", 1), *_ALONE)),
    ),
    detail=(
        Say(
            "Forward {context_forward_bytes}, backward {context_backward_bytes}; a layer waits"
            " {layer_context_seconds:short duration} in all. "
        ),
        Say(
            "In this order ranks compute for {order_efficiency:percent} of the ring's time. ",
            when=(("context_mix", 1),),
        ),
        Say(
            "Heads are whole, so c divides the heads of keys and values. ",
            when=(("context_mix", 3),),
        ),
        Say(
            "{data_parallel:exact} GPU{data_parallel:s} share the states (stage 3), and recompute"
            " every layer. Assumed: {utilisation} of the arithmetic."
        ),
    ),
    table=ExplorerTable(
        "8 ranks with 16,384 tokens each, a ring in zigzag order, every layer recomputed",
        "model",
        (
            ("a rank's peak, GB", "rank_peak_bytes", "GB"),
            ("fits?", "fits", "yes or no"),
            ("sent in a layer, MB", "context_sent_bytes", "MB"),
            ("ring hides from, tokens", "hiding_tokens", "count"),
        ),
    ),
    outputs=(
        "rank_peak_bytes",
        "context_sent_bytes",
        "hiding_tokens",
        "layer_context_seconds",
    ),
    why=(
        "whole_sequence",
        "key_value_elements",
        "context_forward_bytes",
        "context_backward_bytes",
        "balanced_turn_seconds",
        "ring_turn_seconds",
        "ring_message_seconds",
        "ring_forward_seconds",
        "hiding_tokens",
        "rank_saved_bytes",
        "rank_peak_bytes",
    ),
)
