"""The processes that a rank has started."""

import os
import signal
from contextlib import suppress
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
