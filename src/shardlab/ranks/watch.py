"""Waiting for a piece of work to end on every rank, and noticing when it will not."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Process
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from .board import Board, Kind, Post
from .messages import Died, Frame, Raised, Refused, Returned, Seen, Stop

TICK_SECONDS = 0.1
# after something failed: how long the other ranks may still fail, or end, of themselves
SETTLE_SECONDS = 1.0
GRACE_SECONDS = 2.0  # after they were told to stop: how long they may take

End = Returned | Raised | Refused | Died


class Member(NamedTuple):
    """A rank as its parent holds it."""

    process: Process
    connection: Connection


class Skipped(NamedTuple):
    """A rank has ended its work without a collective in which others are."""

    post: Post
    absent: list[int]


class Awaited(NamedTuple):
    """A rank has let others wait in a collective for longer than the world's patience."""

    post: Post
    absent: list[int]
    patience_seconds: float


class OverTime(NamedTuple):
    """The whole work took longer than it was given."""

    limit_seconds: float


class Interrupted(NamedTuple):
    """The reader pressed stop."""


Trouble = Raised | Refused | Died | Skipped | Awaited | OverTime | Interrupted


@dataclass
class Outcome:
    """What became of one piece of work. An end is None where a rank was still stuck after the
    grace."""

    ends: list[End | None]
    seen: list[tuple[Frame, ...]]
    trouble: Trouble | None = None
    # of a collective about which the ranks disagreed
    posts: dict[int, Post] = field(default_factory=dict)


def watch(
    members: list[Member],
    command,
    board: Board,
    patience_seconds: float,
    limit_seconds: float | None,
    on_tick: Callable[[float], None],
) -> Outcome:
    """Send a piece of work to all; return when each rank has ended it, or is beyond waiting for."""
    outcome = Outcome([None] * len(members), [()] * len(members))
    begin, told_at, looked_at, settled_at = time.monotonic(), None, time.monotonic(), None
    with counting_interrupts() as interrupts:
        send_all(members, command)
        while None in outcome.ends:
            _receive(members, outcome)
            now = time.monotonic()
            on_tick(now - begin)
            if outcome.trouble is None:
                outcome.trouble = next(
                    (
                        end
                        for end in outcome.ends
                        if end is not None and not isinstance(end, Returned)
                    ),
                    None,
                )
                if interrupts:
                    outcome.trouble = Interrupted()
                elif (
                    outcome.trouble is None
                    and limit_seconds is not None
                    and now - begin > limit_seconds
                ):
                    outcome.trouble = OverTime(limit_seconds)
                elif outcome.trouble is None and now - looked_at > 3 * TICK_SECONDS:
                    outcome.trouble, looked_at = look_at(board, outcome.ends, patience_seconds), now
                settled_at = now + (
                    0
                    if isinstance(outcome.trouble, (Interrupted, OverTime, Awaited))
                    else SETTLE_SECONDS
                )
            elif told_at is None and now > settled_at:
                told_at = now
                send_all(
                    [member for member, end in zip(members, outcome.ends) if end is None], Stop()
                )
            elif told_at is not None and (now > told_at + GRACE_SECONDS or len(interrupts) > 1):
                break
    if outcome.trouble is None and (trouble := look_at(board, outcome.ends, patience_seconds)):
        outcome.trouble = trouble  # all have ended, but not all took part in the same collectives
    if outcome.trouble is not None:
        outcome.posts = board.disagreement()
    return outcome


def send_all(members: list[Member], message):
    for member in members:
        with suppress(OSError):  # it has died: that will be noticed
            member.connection.send(message)


def look_at(
    board: Board, ends: list[End | None], patience_seconds: float
) -> Skipped | Awaited | None:
    """The first collective on the board to which a rank will not come, or has not come for too
    long."""
    now = time.monotonic()
    for rank, end in enumerate(ends):
        if end is not None and not isinstance(end, Returned):
            continue
        for post in sorted(board.posts(rank), key=lambda post: post.seconds):
            absent = board.absent(post)
            never = [r for r in absent if isinstance(ends[r], Returned)]
            if never and (
                post.kind is Kind.collective or post.kind is Kind.receive and end is None
            ):
                return Skipped(post, never)
            if absent and end is None and now - post.seconds > patience_seconds:
                return Awaited(post, absent, patience_seconds)
    return None


def _receive(members: list[Member], outcome: Outcome):
    """Take what has come within a tick."""
    open_ranks = [rank for rank, end in enumerate(outcome.ends) if end is None]
    sources = {
        source: rank
        for rank in open_ranks
        for source in (members[rank].connection, members[rank].process.sentinel)
    }
    for rank in sorted({sources[source] for source in wait(list(sources), TICK_SECONDS)}):
        process, connection = members[rank]
        try:
            while outcome.ends[rank] is None and connection.poll():
                message = connection.recv()
                if isinstance(message, Seen):
                    outcome.seen[rank] = message.frames
                else:
                    outcome.ends[rank] = message
        except (EOFError, OSError):
            process.join(1)
        if outcome.ends[rank] is None and process.exitcode is not None:
            outcome.ends[rank] = Died(how_it_ended(process.exitcode), time.monotonic())


def how_it_ended(exitcode: int) -> str:
    if exitcode >= 0:
        return f"its process ended with exit code {exitcode}"
    name = (
        signal.Signals(-exitcode).name
        if -exitcode in set(signal.Signals)
        else f"signal {-exitcode}"
    )
    return f"it was killed by {name}" + (
        " (the system does this when memory runs out)" if name == "SIGKILL" else ""
    )


@contextmanager
def counting_interrupts() -> Iterator[list]:
    """Ctrl-C, and the stop button of a notebook, counted: an exception between two reads would tear
    a message apart."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts  # Python delivers signals to the main thread alone
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
