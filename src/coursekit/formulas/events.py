"""A training step as a list of events: what computes, what travels, and which waits for which.
Every time of the book is checked against this simulator, and explorers draw what it returns.

    STEP = (
        Phase("backward", (
            Repeat("equal_buckets", (
                Event("piece", COMPUTE, "bucket_backward_seconds"),
                Event("bucket", LINK, "equal_bucket_seconds", after=("piece",)),
            )),
        )),
    )
    ran = play(operations(STEP, values))    # values: quantity -> number, as evaluate() returns them
    exposed_phase_seconds(ran)              # {"backward": 0.0264}

Two streams, computing and the link. Each does one thing at a time, in the order of issue: a
communicator of NCCL is one queue. A message has a length (its quantity of seconds), the earliest
time at which it can start (`after`), the link, and a deadline: the event that names it in its own
`after`, or else the end of the phase, where everybody waits for everything. What a phase takes
beyond its computing is exposed.

static/streams.js is the same simulator for the page; a test compares the two.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

COMPUTE, LINK = "compute", "link"


class Event(NamedTuple):
    """Something that occupies a stream for a quantity of seconds; without a quantity it is only a
    point. It starts when its stream is free and the latest event of each name in `after` is done.
    It is there when all of `when` holds and none of `unless`, which are pairs (quantity, value)."""

    name: str
    stream: str
    seconds: str = ""
    after: tuple = ()
    when: tuple = ()
    unless: tuple = ()


class Repeat(NamedTuple):
    """Events that come `count` times (a quantity), or `less` times fewer."""

    count: str
    events: tuple
    less: int = 0
    when: tuple = ()
    unless: tuple = ()


class Phase(NamedTuple):
    """Events that begin when everything before them is done: forward, backward, update."""

    name: str
    events: tuple
    when: tuple = ()
    unless: tuple = ()


class Operation(NamedTuple):
    """An event with its numbers. `waits` are the places of earlier operations in the list."""

    name: str
    stream: str
    phase: str
    seconds: float
    waits: tuple


class Ran(NamedTuple):
    """An operation with its times, in seconds from the start of the step."""

    name: str
    stream: str
    phase: str
    start: float
    end: float


def operations(step: Iterable, values: Mapping[str, float]) -> list[Operation]:
    """The operations of a step in the order in which they are issued."""
    found, latest = [], {}

    def add(entry, phase):
        if not holds(entry, values):
            return
        if isinstance(entry, Phase):
            for inner in entry.events:
                add(inner, entry.name)
        elif isinstance(entry, Repeat):
            for _ in range(int(values[entry.count]) - entry.less):
                for inner in entry.events:
                    add(inner, phase)
        else:
            seconds = values[entry.seconds] if entry.seconds else 0.0
            waits = tuple(latest[name] for name in entry.after if name in latest)
            latest[entry.name] = len(found)
            found.append(Operation(entry.name, entry.stream, phase, seconds, waits))

    for entry in step:
        add(entry, "")
    return found


def operation_count(step: Iterable, values: Mapping[str, float]) -> int:
    """How many operations a step has; counted without making them, since there may be billions."""
    total = 0
    for entry in step:
        if not holds(entry, values):
            continue
        if isinstance(entry, Event):
            total += 1
        else:
            times = int(values[entry.count]) - entry.less if isinstance(entry, Repeat) else 1
            total += max(times, 0) * operation_count(entry.events, values)
    return total


def holds(entry, values: Mapping[str, float]) -> bool:
    """True where all of `when` holds of an entry, or of a line of a picture, and none of
    `unless`."""
    return all(values[name] == value for name, value in entry.when) and not any(
        values[name] == value for name, value in entry.unless
    )


def play(issued: Iterable[Operation]) -> list[Ran]:
    """The start and the end of each operation. A new phase begins when both streams are done."""
    free, ran, phase = {COMPUTE: 0.0, LINK: 0.0}, [], None
    for operation in issued:
        if operation.phase != phase:
            phase, now = operation.phase, max(free.values())
            free = {COMPUTE: now, LINK: now}
        start = max(free[operation.stream], *(ran[place].end for place in operation.waits), 0.0)
        end = start + operation.seconds
        free[operation.stream] = end
        ran.append(Ran(operation.name, operation.stream, phase, start, end))
    return ran


def end_seconds(ran: Iterable[Ran]) -> float:
    """Seconds of the whole step."""
    return max((one.end for one in ran), default=0.0)


def waiting(ran: list[Ran]) -> Iterator[tuple[str, float, float]]:
    """(phase, start, end) of each span in which nothing computes: what pictures hatch."""
    done = end = 0.0
    for phase, ones in groupby(ran, attrgetter("phase")):
        for one in ones:
            if one.stream == COMPUTE:
                if one.start > done:
                    yield phase, done, one.start
                done = one.end
            end = max(end, one.end)
        if end > done:  # everybody waits for what is still under way
            yield phase, done, end
        done = end


def exposed_phase_seconds(ran: list[Ran]) -> dict[str, float]:
    """Phase -> seconds in which nothing computes; a step of several microbatches has the sum."""
    found = {one.phase: 0.0 for one in ran}
    for phase, start, end in waiting(ran):
        found[phase] += end - start
    return found


def quantities_of(step: Iterable) -> list[str]:
    """Every quantity that the events of a step name, once."""
    found = []
    for entry in step:
        found += [name for name, _ in (*entry.when, *entry.unless)]
        if isinstance(entry, Event):
            found += [entry.seconds] if entry.seconds else []
        else:
            found += [entry.count] if isinstance(entry, Repeat) else []
            found += quantities_of(entry.events)
    return list(dict.fromkeys(found))


def step_as_lists(step: Iterable) -> list[list]:
    """The entries of a step as static/streams.js reads them: lists that begin with what they are
    and end with their conditions."""

    def entry(one):
        conditions = [one.when, one.unless]
        if isinstance(one, Event):
            stream = [COMPUTE, LINK].index(one.stream)
            return ["event", one.name, stream, one.seconds, one.after, *conditions]
        if isinstance(one, Repeat):
            return ["repeat", one.count, one.less, step_as_lists(one.events), *conditions]
        return ["phase", one.name, step_as_lists(one.events), *conditions]

    return list(map(entry, step))
