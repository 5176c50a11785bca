"""The assignment of chapter 11: five slow programs have the right numbers and are found by what
they do; half-mended ones get their sentence. The mended ones are tried in assignments/."""

import inspect

import pytest
from graded import check_sentence, results, skeleton

from coursekit.exercises.assignments import assignment

pytestmark = pytest.mark.ranks
TOPIC = "where_the_time_goes"

SLOW = {
    "train_and_log": "12 values were read for 12 steps",
    "clip": "operations for 4 parameters",
    "positions": "operations for 3 rows",
    "average": "bytes at one time",
    "batch": "4 reads for 4 windows",
}


def test_slow_programs_are_right_and_found(worlds):
    """Must catch: a slow program with other numbers than the mended one; a trial that lets it
    pass, on a fast machine or a slow one."""
    source = skeleton(TOPIC) + "".join(f"\n{name} = slow_{name}" for name in SLOW)
    for result in results(worlds(1), TOPIC, source):
        if result.trial.group == "parity":
            assert result.said == "right", result.sentence
        else:
            assert result.said == "not yet"
    said = {
        one.trial.part: one.sentence
        for one in results(worlds(1), TOPIC, source)
        if one.trial.group == "bytes"
    }
    assert all(SLOW[part] in said[part] for part in SLOW), said


WRONG = {
    "a read that decides": (
        "operations_of_clip",
        "bytes",
        (
            "torch._foreach_mul_(gradients, (most / norm).clamp(max=1))",
            "torch._foreach_mul_(gradients, min(1.0, float(most / norm)))",
        ),
        "the host waits",
    ),
    "scaled up": ("clipped", "parity", (".clamp(max=1)", ""), "They were scaled up"),
    "losses after the update": (
        "losses_and_weights",
        "parity",
        (
            "        losses.append(loss.detach())\n        optimizer.step()\n",
            "        optimizer.step()\n"
            "        losses.append(mse_loss(model(inputs), targets).detach())\n",
        ),
        "elements differ",
    ),
    "decay turned round": ("means", "parity", ("1 - decay", "decay"), "decay is the share"),
    "no end": ("places", "parity", ("places, -1)", "places, places)"), "Behind the end"),
    "the whole store": (
        "reads_of_a_batch",
        "bytes",
        ("store.read(first, starts[-1] + length - first)", "store.read(0, 100)[first:]"),
        "33 from 2 on",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_half_mended_programs_get_their_sentence(worlds, wrong):
    """Must catch: a trial that a wrong program passes, or a sentence that is not its own."""
    mended = inspect.getsource(inspect.getmodule(assignment(TOPIC).reference["clip"]))
    check_sentence(worlds(1), TOPIC, mended, wrong)
