"""The picture of a step with checkpoints: what the formulas say of the same step."""

import re

import pytest

from coursekit.formulas import evaluate, quantities
from coursekit.show.drawing import decimal_bytes
from coursekit.topics.activation_checkpointing import pictures

POLICIES = pictures.DRAWN_POLICIES


@pytest.mark.parametrize("name", POLICIES)
def test_the_outline_is_the_formulas(name):
    """Must catch: the input of a checkpoint counted beside its layers; a second run as long as the
    first; activations that outlive their layer."""
    step = pictures.layers_over_step(**POLICIES[name])
    given = quantities(**pictures.CHECKPOINTED_STEP, **POLICIES[name])
    names = ("rank_layers_kept_bytes", "rank_layers_bytes", "step_flops", "recomputed_flops")
    kept, most, work, twice = evaluate(names, allow_unused=True, **given).values()
    assert max(point.kept for point in step.points) == kept
    assert max(map(pictures.alive, step.points)) == most
    assert step.points[-1] == (pytest.approx(work + twice, rel=1e-12), 0, 0)
    assert min(min(point) for point in step.points) == 0
    shown = pictures.draw_steps()
    assert (
        f"{decimal_bytes(most)}</text>" in shown and f"forward keeps {decimal_bytes(kept)}" in shown
    )


def test_a_tooth_for_each_checkpoint():
    """Must catch: one layer too many in a checkpoint; a checkpoint that stays while the next one is
    computed again."""
    for name, teeth in (
        ("nothing computed again", 0),
        ("each layer in a checkpoint", 32),
        ("eight layers in each", 4),
    ):
        again = [point.again for point in pictures.layers_over_step(**POLICIES[name]).points]
        rises = sum(before == 0 < after for before, after in zip(again, again[1:]))
        falls = sum(before > 0 == after for before, after in zip(again, again[1:]))
        assert rises == falls == teeth


def test_outlines_have_one_scale():
    """Must catch: each outline as high as its panel; a panel with a time axis of its own."""
    svg = pictures.draw_steps()
    paths = re.findall(r'<path d="M([^"]*)z" class="activations pale"/>', svg)
    steps = [pictures.layers_over_step(**policy) for policy in POLICIES.values()]
    for path, step in zip(paths, steps, strict=True):
        points = [tuple(map(float, point.split())) for point in path.split("L")]
        high = max(y for _, y in points) - min(y for _, y in points)
        wide = max(x for x, _ in points) - min(x for x, _ in points)
        most = max(map(pictures.alive, step.points))
        if step is steps[0]:
            unit, pace = high / most, wide / step.points[-1].operations
        assert high == pytest.approx(most * unit, abs=0.2)
        assert wide == pytest.approx(step.points[-1].operations * pace, abs=0.4)
