"""Schedules as lists: are they valid, how much do they hold, how long do they take?"""

from shardlab.pipelines.partition import check_order_of_messages
from shardlab.pipelines.schedules import InvalidSchedule, Kind, Schedule
from shardlab.pipelines.simulation import home_of, in_flight, simulate, validate_schedule

from ..asking import Wrong, demand, refuses
from .trials_given import ASSIGNMENT, plan_of

ASKED_SCHEDULES = ("gpipe", "one_f_one_b", "interleaved")


def _sizes(name: str) -> list[tuple[int, ...]]:
    """(ranks, microbatches) and, if it interleaves, stages of each rank."""
    if name == "interleaved":
        return [(2, 4, 2), (3, 6, 2), (4, 8, 2), (2, 4, 3), (4, 4, 1), (1, 3, 2)]
    return [(4, 8), (3, 5), (2, 2), (4, 2), (4, 1), (1, 3)]


def _made(function, name: str, sizes: tuple[int, ...]) -> tuple[str, Schedule, Schedule]:
    """(what in words, the learner's plan, the reference's)."""
    what = f"{name}({', '.join(map(str, sizes))})"
    plan = plan_of(what, function(*sizes))
    demand(len(plan) == sizes[0], f"{what} should have {sizes[0]} lists, and has {len(plan)}.")
    return what, plan, plan_of(what, ASSIGNMENT.reference[name](*sizes))


@ASSIGNMENT.trial_of_each("parity", *ASKED_SCHEDULES)
def lists_that_run(function, name):
    """each stage on its rank does each microbatch once, and no rank waits forever"""
    for sizes in _sizes(name):
        what, plan, right = _made(function, name, sizes)
        try:
            validate_schedule(plan, sizes[1])
            check_order_of_messages(plan)
        except InvalidSchedule as error:
            raise Wrong(f"{what}: {error}") from error
        home, wanted = home_of(plan), home_of(right)
        demand(
            home == wanted,
            f"{what} should have the stages {_homes(wanted)}, and has {_homes(home)}.",
        )


def _homes(home: dict[int, int]) -> str:
    return ", ".join(f"{stage} on rank {home[stage]}" for stage in sorted(home))


@ASSIGNMENT.trial("parity", "gpipe")
def forwards_first(mine):
    """all forwards of a rank come before its backwards"""
    what, plan, _ = _made(mine.gpipe, "gpipe", (3, 4))
    for rank, actions in enumerate(plan):
        kinds = "".join(action.kind.value for action in actions)
        demand(
            kinds == "FFFFBBBB",
            f"{what}: rank {rank} does {kinds}: GPipe does all forwards, then all backwards.",
        )


@ASSIGNMENT.trial_of_each("bytes", "one_f_one_b", "interleaved")
def microbatches_held_at_once(function, name):
    """no rank holds more microbatches at once than it must"""
    for sizes in _sizes(name):
        what, plan, right = _made(function, name, sizes)
        for rank, (found, least) in enumerate(zip(in_flight(plan), in_flight(right))):
            warm = [action.kind for action in plan[rank]].index(Kind.BACKWARD)
            demand(
                found <= least,
                f"{what}: rank {rank} holds {found} microbatches at once, and {least} are enough."
                f" It does {warm} forwards before its first backward: the later its first stage,"
                " the fewer it needs, because it waits less for the first gradient.",
            )


@ASSIGNMENT.trial_of_each("bytes", *ASKED_SCHEDULES)
def idle_time(function, name):
    """where a backward takes twice a forward, the step is as short as the reference's"""
    for sizes in _sizes(name):
        what, plan, right = _made(function, name, sizes)
        found, least = simulate(plan), simulate(right)
        idle = [float(seconds) for seconds in found.idle_of_step]
        rank = idle.index(max(idle))
        demand(
            found.seconds <= least.seconds,
            f"{what}, with forwards of 1 and backwards of 2, takes {found.seconds}, and"
            f" {least.seconds} are enough: rank {rank} idles for {idle[rank]:g}. Its list begins"
            f" {' '.join(map(repr, plan[rank][:6]))}.",
        )


@ASSIGNMENT.trial_of_each("faults", *ASKED_SCHEDULES)
def sizes_that_cannot_be(function, name):
    """no ranks, no microbatches, microbatches that are no multiple where stages interleave"""
    wrong = [(0, 4), (2, 0), (2, -1)]
    if name == "interleaved":
        wrong = [(0, 4, 2), (2, 0, 2), (2, 4, 0), (4, 6, 2)]
    for sizes in wrong:
        what = f"{name}({', '.join(map(str, sizes))})"
        refuses(what, function, *sizes, errors=(ValueError,))


@ASSIGNMENT.trial("parity", "check_schedule")
def what_can_run(mine):
    """schedules that can run pass, also odd ones"""
    odd = [["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1F2", "1B1", "1B2"]]
    backwards = [["0F1", "0F0", "0B0", "0B1"], ["1F1", "1F0", "1B0", "1B1"]]
    cases = [("an odd one", odd, 3), ("one that begins with microbatch 1", backwards, 2)]
    for name in ASKED_SCHEDULES:
        cases += [
            (f"{name}{sizes}", ASSIGNMENT.reference[name](*sizes), sizes[1])
            for sizes in _sizes(name)
        ]
    for what, words, microbatches in cases:
        try:
            mine.check_schedule(words, microbatches)
        except ValueError as error:
            raise Wrong(f"check_schedule refuses {what}, which can run: {error}") from error


@ASSIGNMENT.trial("faults", "check_schedule")
def what_cannot_run(mine):
    """missing and repeated actions, wrong orders, stages on two ranks, ranks that wait forever"""
    for what, words in (
        ("a rank without actions", [["0F0", "0B0", "0F1", "0B1"], []]),
        ("a word that is no action", [["0F0", "0B0", "0F1", "0X1"]]),
        ("a missing backward", [["0F0", "0B0", "0F1"]]),
        ("a missing microbatch", [["0F0", "0B0"]]),
        ("a microbatch too many", [["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"]]),
        ("a forward done twice", [["0F0", "0F0", "0B0", "0F1", "0B1"]]),
        ("a backward before its forward", [["0B0", "0F0", "0F1", "0B1"]]),
        ("a stage on two ranks", [["0F0", "0B0"], ["0F1", "0B1"]]),
        ("a stage that no rank has", [["0F0", "0F1", "0B0", "0B1"], ["2F0", "2F1", "2B0", "2B1"]]),
        (
            "two ranks that wait for each other",
            [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]],
        ),
        (
            "messages that are taken in another order than they are sent",
            [["0F0", "0F1", "0B0", "0B1"], ["1F1", "1F0", "1B0", "1B1"]],
        ),
    ):
        refuses(f"check_schedule of {what}", mine.check_schedule, words, 2, errors=(ValueError,))
