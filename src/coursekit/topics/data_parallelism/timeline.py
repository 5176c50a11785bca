"""A data-parallel step as events: what the formulas of this chapter say in closed form,
coursekit/formulas/events.py plays event by event."""

from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat

# Backward begins with the head. Where the head has a weight of its own, its gradient leaves first.
# Then come the layers, in `equal_buckets` equal pieces. The token table comes last of all.
STEP = (
    Phase("forward", (Event("forward", COMPUTE, "rank_forward_seconds"),)),
    Phase(
        "backward",
        (
            Event("backward", COMPUTE, "head_backward_seconds"),
            Event("head", LINK, "head_bucket_seconds", ("backward",), unless=(("tied_head", 1),)),
            Repeat(
                "equal_buckets",
                (
                    Event("backward", COMPUTE, "bucket_backward_seconds"),
                    Event("bucket", LINK, "equal_bucket_seconds", ("backward",)),
                ),
            ),
            Event("table", LINK, "last_buckets_seconds", ("backward",)),
        ),
    ),
    Phase("update", (Event("update", COMPUTE, "update_seconds"),)),
)

COLOURS = (
    ("forward", "forward", "timeline-forward"),
    ("backward", "backward", "timeline-backward"),
    ("update", "update", "timeline-weight-gradient"),
    ("head", "head", "memory-temporaries"),
    ("bucket", "layers", "timeline-communication"),
    ("table", "tables, ready last", "memory-gathered"),
)
