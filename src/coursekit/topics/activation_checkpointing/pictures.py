"""Still picture of the chapter on activation checkpointing: the layers' activations over a step,
without checkpoints, with each layer in one, and with several layers in each."""

from operator import attrgetter
from typing import NamedTuple

from coursekit.formulas import evaluate, quantities
from coursekit.show.drawing import Drawing
from coursekit.show.format import decimal_bytes as said
from coursekit.show.format import format_as

CHECKPOINTED_STEP = dict(  # the step of the chapter's first table
    model="Llama 7B",
    recipe="bf16, no master",
    microbatch=4,
    sequence=2048,
    dropout=0,
    fused_attention=1,
    tensor_parallel=1,
    tensor_rank=0,
    sequence_parallel=0,
    regather=0,
)
DRAWN_POLICIES = {
    "nothing recomputed": dict(recompute_policy=0, recompute_every=1),
    "each layer in a checkpoint": dict(recompute_policy=3, recompute_every=1),
    "eight layers in each": dict(recompute_policy=3, recompute_every=8),
}


class StepPoint(NamedTuple):
    """A point of the step: operations since the step began, bytes that forward has kept, and bytes
    that were recomputed."""

    operations: float
    kept: int
    again: int


class DrawnStep(NamedTuple):
    """A step, point by point: in between, bytes grow and shrink evenly. `forward` and `backward`
    are the operations after which the layers' forward ends and their backward begins."""

    points: list[StepPoint]
    forward: float
    backward: float
    share: float  # of the operations of a step, done twice


def layers_over_step(**policy):
    names = (
        "layers",
        "recompute_groups",
        "layer_activation_bytes",
        "residual_bytes",
        "layer_forward_flops",
        "layers_forward_flops",
        "step_flops",
        "skipped_flops",
        "recomputed_share",
    )
    given = quantities(**CHECKPOINTED_STEP, **policy)
    found = {**given, **evaluate(names, allow_unused=True, **given)}
    layer, one_input = found["layer_activation_bytes"], found["residual_bytes"]
    work, layers = found["layer_forward_flops"], found["layers"]
    every = found["recompute_every"] if found["recompute_policy"] else 0
    groups = [min(every, layers - first) for first in range(0, layers, every or layers)]
    points = [StepPoint(0, 0, 0)]

    def goes_on(operations, kept=0, again=0):
        last = points[-1]
        points.append(StepPoint(last.operations + operations, last.kept + kept, last.again + again))

    if every:
        for count in groups:
            goes_on(0, one_input)
            goes_on(count * work)
    else:
        goes_on(layers * work, layers * layer)
    forward = points[-1].operations
    goes_on(found["step_flops"] - 3 * found["layers_forward_flops"])  # the head, both ways
    backward = points[-1].operations
    if every:
        for count in reversed(groups):
            made = count * layer - one_input  # beside the input, which is there
            goes_on(count * work - found["skipped_flops"], 0, made)
            goes_on(count * 2 * work, 0, -made)
            goes_on(0, -one_input)
    else:
        goes_on(layers * 2 * work, -layers * layer)
    return DrawnStep(points, forward, backward, found["recomputed_share"])


def draw_steps():
    steps = {name: layers_over_step(**policy) for name, policy in DRAWN_POLICIES.items()}
    first = next(iter(steps.values()))
    end = max(step.points[-1].operations for step in steps.values())
    drawing = Drawing("recompute-steps", "The layers' activations over a step, in three ways")
    left, right, tall = 2, 398, 150
    x = lambda operations: left + (right - left) * operations / end
    unit, floor, heard = tall / max(map(alive, first.points)), 20, []
    drawing.text(x(first.forward / 2), 13, "forward", "middle small")
    drawing.text(x((first.backward + end) / 2), 13, "backward", "middle small")
    for name, step in steps.items():
        peak = max(step.points, key=alive)
        title = floor + 20
        floor = title + 22 + unit * alive(peak)
        y = lambda nbytes, floor=floor: floor - nbytes * unit
        drawing.text(left, title, name, "bold")
        if step.share:
            more = f"+{format_as(step.share, 'percent')} operations"
            drawing.text(right, title, more, "small end")
        for size, look in ((alive, "activations pale"), (attrgetter("kept"), "activations")):
            edge = "L".join(f"{x(m.operations):.1f} {y(size(m)):.1f}" for m in step.points)
            drawing.path(f"M{edge}z", look)
        drawing.path(f"M{left} {floor:.1f}H{right}")
        ends = f"M{x(step.forward):.1f} {floor:.1f}V{y(alive(peak)):.1f}"
        drawing.path(ends, "line dashed")
        words = said(alive(peak))
        drawing.text(x(peak.operations), y(alive(peak)) - 5, words, "middle small bold")
        most = said(max(point.kept for point in step.points))
        heard.append(
            f"{name}: forward keeps {most}, at most {words} are alive, and a step has"
            f" {format_as(step.share, 'percent')} more operations"
        )
    key = (("activations", "kept since forward"), ("activations pale", "recomputed"))
    drawing.legend(left, floor + 10, key)
    words = (
        "Three outlines on one scale, operations to the right and bytes of the layers' activations"
        " upwards. They rise in forward, lie flat in the head, and fall in backward. With"
        " checkpoints forward rises little, and in backward a checkpoint's activations come and go,"
        f" one tooth for each. {'; '.join(heard)}."
    )
    return drawing.svg(floor + 26, words)


def alive(point):
    return point.kept + point.again


PICTURES = {"recompute-steps": draw_steps}
