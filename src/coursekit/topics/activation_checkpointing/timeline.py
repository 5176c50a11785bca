"""Forward and backward with activations on the host, as events: what formulas.py says in closed
form. coursekit/formulas/events.py plays them."""

from coursekit.formulas.events import COMPUTE, LINK, Event, Phase, Repeat

OFFLOADED_STEP = (
    Phase(
        "forward",
        (
            Repeat(
                "layers",
                (
                    Event("forward", COMPUTE, "layer_forward_seconds"),
                    Event("out", LINK, "layer_copy_seconds", ("forward",)),
                ),
            ),
        ),
    ),
    Phase(
        "backward",
        (
            Repeat(
                "layers",
                (
                    # while the layer after this one goes backward, and not earlier
                    Event("back", LINK, "layer_copy_seconds", ("begin",)),
                    Event("begin", COMPUTE, after=("back",)),
                    Event("backward", COMPUTE, "layer_backward_seconds"),
                ),
            ),
        ),
    ),
)
COPY_COLOURS = (
    ("forward", "a layer's forward", "timeline-forward"),
    ("backward", "a layer's backward, with what is recomputed", "timeline-backward"),
    ("out", "to the host", "timeline-communication"),
    ("back", "back from the host", "timeline-weight-gradient"),
)
