"""The processes that a rank has started."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob


def kill(pids: list[int]):
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def below(pid: int) -> list[int]:
    """Processes that this one has started, and those that they have; nothing where there is no
    /proc."""
    found = []
    for path in glob(f"/proc/{pid}/task/*/children"):
        with suppress(OSError), open(path) as file:
            found += map(int, file.read().split())
    return found + [one for child in found for one in below(child)]


def keep_from_programs(but: frozenset[int] = frozenset((0, 1, 2))):
    """Hand the files that are open here, but those, to no program that this process starts: one
    that outlives the rank would hold the ranks' connections and their tracker of resources."""
    for number in _handed_on() - but:
        with suppress(OSError):  # closed by another thread
            os.set_inheritable(number, False)


@contextmanager
def keeping_from_programs() -> Iterator[None]:
    """Keep what is opened within, such as gloo's connections, from programs. What was open before
    may be the reader's."""
    before = _handed_on()
    try:
        yield
    finally:
        keep_from_programs(before)


def _handed_on() -> frozenset[int]:
    """The open files that programs are handed."""
    found = set()
    with suppress(OSError):
        for number in map(int, os.listdir("/dev/fd")):
            with suppress(OSError):  # the list itself, which is closed
                found |= {number} if os.get_inheritable(number) else set()
    return frozenset(found)
