"""The simulator of steps: who starts when, what is exposed, and the list forms of time."""

import random

import pytest

from coursekit.formulas.events import (
    COMPUTE,
    LINK,
    Event,
    Phase,
    Repeat,
    end_seconds,
    exposed_phase_seconds,
    operation_count,
    operations,
    play,
    quantities_of,
    waiting,
)

TINY = (
    Phase("forward", (Event("forward", COMPUTE, "f"),)),
    Phase(
        "backward",
        (
            Repeat(
                "n", (Event("piece", COMPUTE, "b"), Event("bucket", LINK, "m", ("piece",))), less=1
            ),
            Event("table", LINK, "t", ("piece",), when=(("tied", 1),)),
            Event("other", LINK, "t", ("piece",), unless=(("tied", 1),)),
        ),
    ),
    Phase("update", (Event("update", COMPUTE, "u"),)),
)


def test_a_step_that_fits_on_paper():
    """Must catch: a message that leaves before its gradients, two messages at once, a phase that
    does not wait for the link, a count without `less`, a condition ignored, a count below zero."""
    values = dict(f=2.0, b=3.0, m=4.0, t=5.0, u=1.0, n=4, tied=1)
    ran = play(operations(TINY, values))
    assert [(one.name, one.start, one.end) for one in ran] == [
        *(("forward", 0, 2), ("piece", 2, 5), ("bucket", 5, 9)),
        *(("piece", 5, 8), ("bucket", 9, 13), ("piece", 8, 11), ("bucket", 13, 17)),
        *(("table", 17, 22), ("update", 22, 23)),
    ]
    assert exposed_phase_seconds(ran) == dict(forward=0, backward=11, update=0)
    assert list(waiting(ran)) == [("backward", 11, 22)] and end_seconds(ran) == 23
    assert [one.name for one in play(operations(TINY, {**values, "tied": 0}))][-2] == "other"
    assert operation_count(TINY, values) == len(ran)
    assert operation_count(TINY, {**values, "n": 10**15}) == 2 * (10**15 - 1) + 3
    assert operation_count(TINY, {**values, "n": 0}) == 3
    assert quantities_of(TINY) == ["f", "n", "b", "m", "tied", "t", "u"]


def test_waiting_inside_a_phase():
    """Must catch: only the end of a phase looked at."""
    step = (
        Phase(
            "forward",
            (
                Event("gather", LINK, "g"),
                Event("work", COMPUTE, "w", ("gather",)),
                Event("late", LINK, "w"),
                Event("gather", LINK, "g", ("work",)),
                Event("work", COMPUTE, "w", ("gather",)),
            ),
        ),
    )
    ran = play(operations(step, dict(g=2.0, w=3.0)))
    assert list(waiting(ran)) == [("forward", 0, 2), ("forward", 5, 7)]
    assert exposed_phase_seconds(ran) == dict(forward=4) and end_seconds(ran) == 10


@pytest.mark.parametrize("ahead", [True, False])
def test_any_list(ahead):
    """1,000 random lists by their closed forms, the largest of r_j + c_j + ... + c_last and of g_1
    + ... + g_j + w_j + ... + w_last. Must catch: a stream that takes a later operation first."""
    draw = random.Random(0)
    for _ in range(500):
        n = draw.randint(1, 40)
        first, second = (
            [draw.choice([0.0, draw.random(), 10 * draw.random()]) for _ in range(n)]
            for _ in range(2)
        )
        streams = (LINK, COMPUTE) if ahead else (COMPUTE, LINK)
        step, values = [], {}
        for k in range(n):
            values.update({f"a{k}": first[k], f"b{k}": second[k]})
            step.append(Event(f"first{k}", streams[0], f"a{k}"))
        step += [Event(f"second{k}", streams[1], f"b{k}", (f"first{k}",)) for k in range(n)]
        want = max(sum(first[: k + 1]) + sum(second[k:]) for k in range(n))
        ran = play(operations((Phase("one", tuple(step)),), values))
        assert end_seconds(ran) == pytest.approx(want, rel=1e-9)
