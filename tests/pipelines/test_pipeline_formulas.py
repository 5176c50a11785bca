"""Formulas of pipelines that need no ranks: idle time, transfer time and what is in flight, against
the simulation of the lists that ranks run; known figures; what is refused."""

from fractions import Fraction

import pytest
from night import at_night
from solved import Given

from shardlab.pipelines.schedules import SCHEDULES, schedule
from shardlab.pipelines.simulation import Costs, in_flight, simulate

NUMBER = {name: number for number, name in enumerate(SCHEDULES, 1)}
SIZES = [(p, m, v) for p in (1, 2, 3, 5) for m in (1, 2, 3, 6, 10, 15) for v in (1, 2, 3)]


def cases():
    """(name, ranks, microbatches, stages_per_rank) of each schedule that there is."""
    for name in SCHEDULES:
        for p, m, v in SIZES:
            interleaved = name == "interleaved 1F1B"
            if m % p == 0 if interleaved else v == 1:
                yield name, p, m, v


def made(name, p, m, v):
    return schedule(name, p, m, **({"stages_per_rank": v} if name == "interleaved 1F1B" else {}))


def given_of(name, p, m, v):
    return dict(
        pipeline_schedule=NUMBER[name], pipeline_parallel=p, microbatches=m, stages_per_rank=v
    )


def seconds_of(forward, input, weight):
    return dict(
        microbatch_forward_seconds=forward,
        input_gradient_seconds=input,
        weight_gradient_seconds=weight,
    )


def costs_of(forward, input, weight, v, transfer=0):
    """The costs of a stage, of which a rank has v: exact, so that equal means equal."""
    return Costs(*(Fraction(seconds, v) for seconds in (forward, input, weight)), transfer)


TIMES = [(1, 1, 1), (2, 3, 2), *at_night(((3, 2, 1),), ((5, 6, 4),))]


@pytest.mark.parametrize("times", TIMES, ids=str)
def test_idle_time_is_what_is_simulated(times):
    """Must catch: (p - 1)(F + B) for H1; v forgotten; W taken off H1 twice; p ranks for p - 1; one
    share for the other; a last rank that is idle between its own actions."""
    least = {"zero-bubble H1": lambda p: p, "zero-bubble H2": lambda p: 2 * p - 1}
    for name, p, m, v in cases():
        if m < least.get(name, lambda p: 1)(p):
            continue
        timeline = simulate(made(name, p, m, v), costs_of(*times, v))
        found = Given(**given_of(name, p, m, v), **seconds_of(*times))
        idle = timeline.idle_of_step[0]
        assert set(timeline.idle_of_step) == {idle}
        assert found.pipeline_idle_seconds == pytest.approx(float(idle), rel=1e-15, abs=0)
        total, ideal = idle / timeline.seconds, Fraction(idle, m * sum(times))
        assert found.bubble_share_of_total == pytest.approx(float(total), rel=1e-15, abs=0)
        assert found.bubble_share_of_ideal == pytest.approx(float(ideal), rel=1e-15, abs=0)


def test_the_slowest_rank_sets_the_pace():
    """Must catch: the share of the last rank taken off, or of one microbatch alone."""
    factor = [1, 1, 1, Fraction(3, 2)]
    for m in (4, 64):
        given = dict(microbatches=m, last_rank_share=1.5, **seconds_of(1, 1, 1))
        least = Given(**given).pipeline_least_seconds
        assert least == 4.5 * m
        for name in SCHEDULES:
            if name != "interleaved 1F1B":
                seconds = simulate(schedule(name, 4, m), Costs(factor, factor, factor)).seconds
                assert least < seconds < 1.2 * least if m == 64 else least < seconds


@pytest.mark.parametrize("transfer", [Fraction(1, 7), Fraction(1, 2), 1], ids=str)
def test_transfer_time_is_what_is_simulated(transfer):
    """Must catch: 1F1B as fast as GPipe, or waiting in every pair; an eager warm-up that waits;
    hops between stages of one rank that are paid; a way there without the way back."""
    for name, p, m, v in cases():
        if name.startswith("zero-bubble"):
            continue
        plan, times = made(name, p, m, v), (2 * v, v, v)
        longer = simulate(plan, costs_of(*times, v, transfer)).seconds
        longer -= simulate(plan, costs_of(*times, v)).seconds
        given = dict(transfer_seconds=float(transfer), **given_of(name, p, m, v))
        found = Given(**given).pipeline_waiting_seconds
        assert found == pytest.approx(float(longer), rel=1e-15, abs=0), (name, p, m, v)


def test_in_flight_is_what_the_lists_hold():
    """Must catch: p - r - 1 or p - r + 1 for 1F1B; zero-bubble that holds less on later ranks; a
    warm-up of more microbatches than there are."""
    for name, p, m, v in cases():
        given = given_of(name, p, m, v)
        found = [Given(pipeline_rank=rank, **given).pipeline_in_flight for rank in range(p)]
        assert found == in_flight(made(name, p, m, v))
