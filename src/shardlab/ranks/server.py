"""Starting the process of a rank.

A kernel that has used CUDA must not fork: CUDA does not survive it. So ranks are forked by a
server, a process that imports torch once, never touches a GPU and has one thread. A fork takes
milliseconds and shares the memory of the import. Where there is no safe fork (macOS), ranks are
spawned: each imports torch for itself. That way was tried on Linux only. Windows has neither the
files without a name nor the descriptors that ranks are handed here; WSL or a hosted notebook is the
way to run ranks from there.
"""

import multiprocessing
import os
import sys
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from types import ModuleType
from typing import NamedTuple

from .shared import SharedFile, SharedPath


class Place(NamedTuple):
    """What a rank is given at its start."""

    rank: int
    world_size: int
    connection: Connection
    store: SharedPath
    board: SharedFile
    out: SharedFile
    err: SharedFile
    device: str | None
    backend: str | None
    share_gpus: bool
    patience_seconds: float
    threads: int
    forbid_nan: bool
    interface: str | None  # the network interface of this rank's host; None is the loopback
    namespaces: tuple[str, ...]  # those of its host, to be entered
    environment: dict[str, str]


def start_method() -> str:
    if sys.platform == "win32":
        raise OSError(
            "ranks need Linux or macOS: on Windows run this in WSL 2 or in a hosted notebook."
        )
    return "forkserver" if sys.platform == "linux" else "spawn"


def warm_up():
    """Start the fork server, if it does not run yet. It imports torch while we go on."""
    if start_method() == "forkserver":
        multiprocessing.set_forkserver_preload(["shardlab.ranks.preload"])
        forkserver.ensure_running()


def start(place: Place, method: str) -> multiprocessing.Process:
    process = multiprocessing.get_context(method).Process(
        target=live, args=(place,), name=f"rank {place.rank}"
    )
    with without_main():
        process.start()
    return process


def live(place: Place):
    """In the new process."""
    os.environ.clear()
    os.environ.update(place.environment)  # the server's are from the time of its start
    from .preload import Rank  # here, so that the parent does not import torch

    Rank(place).serve()


@contextmanager
def without_main():
    """multiprocessing runs the parent's script again in each child. A rank gets its functions by
    value and has no need of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
