"""Waiting for a piece of work to end on every rank, and noticing if it cannot end."""

import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Process
from typing import NamedTuple

from .board import Board, Post
from .findings import Finding, disagreement, first_finding
from .messages import Died, Frame, Raised, Refused, Returned, Seen, Stop
from .output import MOST_BYTES, Printed
from .wire import ParentsEnd, packed

TICK_SECONDS = 0.1
LOOK_SECONDS = 0.3  # between two looks at the board
# after a failure: time for the other ranks to fail or end by themselves
SETTLE_SECONDS = 1.0
GRACE_SECONDS = 2.0  # time to stop after the order to stop
EXIT_SECONDS = 5.0  # for exit codes of ranks whose files have closed: late on a busy machine

End = Returned | Raised | Refused | Died


class Member(NamedTuple):
    """The parent's handle of a rank."""

    process: Process
    wire: ParentsEnd
    out: Printed
    err: Printed


class OverTime(NamedTuple):
    """The whole work took longer than its limit."""

    limit_seconds: float


class Flooded(NamedTuple):
    """A rank printed more than a person can read."""

    ranks: list[int]


class Interrupted(NamedTuple):
    """The reader pressed stop."""


Trouble = Raised | Refused | Died | Finding | OverTime | Flooded | Interrupted
# the parent notices these: no other rank needs time to fail by itself
NOTICED = (*Finding.__args__, OverTime, Flooded, Interrupted)


@dataclass
class Outcome:
    """The outcome of one piece of work. An end is None if the rank was still stuck after the grace;
    `seen` is None if the rank did not even answer."""

    ends: list[End | None]
    seen: list[tuple[Frame, ...] | None]
    trouble: Trouble | None = None
    # of a collective on which the ranks disagreed
    posts: dict[int, Post] = field(default_factory=dict)
    frozen: list[int] = field(default_factory=list)  # ranks whose process is stopped by a signal


@dataclass
class Limits:
    """The limits of one piece of work."""

    patience_seconds: float
    seconds: float | None = None
    start_seconds: float = 0.0  # more patience for the first call of a channel


class Watch:
    """One piece of work, from sending it to its end on each rank. `interrupts` grows when the
    reader presses stop."""

    def __init__(self, members: list[Member], number: int, board: Board, interrupts: list):
        self.members, self.number, self.board = members, number, board
        self.interrupts = interrupts
        self.outcome = Outcome([None] * len(members), [None] * len(members))
        self.exit_seconds = EXIT_SECONDS  # what is left of them, for all ranks together

    def run(self, command, limits: Limits, on_tick: Callable[[float], None]) -> Outcome:
        """Send the work to all ranks; return when each rank has ended it or cannot be waited
        for."""
        outcome = self.outcome
        begin = looked_at = time.monotonic()
        told_at = settled_at = None
        self.send(range(len(self.members)), command)
        while None in outcome.ends:
            self.exchange()
            now = time.monotonic()
            on_tick(now - begin)
            if outcome.trouble is None:
                outcome.trouble = self.trouble(limits, now - begin)
                if outcome.trouble is None and now - looked_at > LOOK_SECONDS:
                    looked_at = now
                    outcome.trouble = first_finding(
                        self.board, outcome.ends, limits.patience_seconds, now, limits.start_seconds
                    )
                noticed = isinstance(outcome.trouble, NOTICED)
                settled_at = now + (0 if noticed else SETTLE_SECONDS)
            elif told_at is None and now > settled_at:
                told_at = now
                self.send([r for r, end in enumerate(outcome.ends) if end is None], Stop())
            elif told_at is not None and (
                now > told_at + GRACE_SECONDS or len(self.interrupts) > 1
            ):
                break
        self.conclude(limits)
        return outcome

    def trouble(self, limits: Limits, seconds: float) -> Trouble | None:
        if self.interrupts:
            return Interrupted()
        flooding = [
            rank
            for rank, member in enumerate(self.members)
            if max(member.out.nbytes, member.err.nbytes) > MOST_BYTES
        ]
        if flooding:
            return Flooded(flooding)
        for end in self.outcome.ends:
            if end is not None and not isinstance(end, Returned):
                return end
        if limits.seconds is not None and seconds > limits.seconds:
            return OverTime(limits.seconds)
        return None

    def conclude(self, limits: Limits):
        """The board's finding, now that no rank is at work."""
        outcome = self.outcome
        failed = [end for end in outcome.ends if isinstance(end, (Raised, Died, Refused))]
        if outcome.trouble is None:  # all have ended, but perhaps not with the same collectives
            outcome.trouble = first_finding(
                self.board, outcome.ends, limits.patience_seconds, time.monotonic()
            )
        elif isinstance(outcome.trouble, Raised) and all(
            isinstance(end, Raised) and (end.echo or end.stopped) for end in failed
        ):  # these ranks have only waited for a rank that raised nothing itself
            ends = [end if isinstance(end, Returned) else None for end in outcome.ends]
            found = first_finding(self.board, ends, 0.0, time.monotonic())
            outcome.trouble = found or outcome.trouble
        if outcome.trouble is not None:
            outcome.posts = disagreement(self.board)
            outcome.frozen = [
                rank
                for rank, (end, member) in enumerate(zip(outcome.ends, self.members))
                if end is None and is_frozen(member.process.pid)
            ]

    # --- messages ---------------------------------------------------------------------------------

    def send(self, ranks, message):
        frame = packed(self.number, message)
        for rank in ranks:
            self.members[rank].wire.send(frame)

    def exchange(self):
        """Exchange the messages of one tick."""
        selector = selectors.PollSelector()
        for rank, (process, wire, out, err) in enumerate(self.members):
            for printed in (out, err):
                if not printed.ended:
                    selector.register(printed.fd, selectors.EVENT_READ, printed.drain)
            if self.outcome.ends[rank] is None:
                receive = partial(self.receive, rank)
                to_write = selectors.EVENT_WRITE if wire.waiting else 0
                selector.register(wire, selectors.EVENT_READ | to_write, receive)
                selector.register(process.sentinel, selectors.EVENT_READ, receive)
        for ready, _ in selector.select(TICK_SECONDS):
            ready.data()

    def receive(self, rank: int):
        if self.outcome.ends[rank] is not None:  # known by another of the rank's files
            return
        process, wire, *_ = self.members[rank]
        wire.write()
        for number, message in wire.read():
            if number != self.number:
                continue  # about earlier work
            if isinstance(message, Seen):
                self.outcome.seen[rank] = message.frames
            else:
                self.outcome.ends[rank] = message
        if self.outcome.ends[rank] is not None:
            return
        if wire.closed:
            begin = time.monotonic()
            process.join(self.exit_seconds)
            self.exit_seconds = max(0.0, self.exit_seconds - (time.monotonic() - begin))
        if process.exitcode is not None or wire.closed:
            self.outcome.ends[rank] = Died(how_it_ended(process.exitcode), time.monotonic())


def how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "it closed its files, or became another program"
    if exitcode >= 0:
        return f"its process ended with exit code {exitcode}"
    known = -exitcode in set(signal.Signals)
    name = signal.Signals(-exitcode).name if known else f"signal {-exitcode}"
    why = " (the system does this when memory runs out)" * (name == "SIGKILL")
    return f"it was killed by {name}{why}"


def is_frozen(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped the process. Unknown without /proc."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


@contextmanager
def counting_interrupts() -> Iterator[list]:
    """Counts Ctrl-C and the notebook's stop button. An exception at an arbitrary place would leave
    unknown ranks behind."""
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts  # Python delivers signals to the main thread only
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
