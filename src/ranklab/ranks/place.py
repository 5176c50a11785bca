"""The arguments of a rank at its start, and the device that it was given there."""

from multiprocessing.connection import Connection
from typing import NamedTuple

from .shared import SharedFile, SharedPath

_given: dict = {}  # "device": that of this process, once it is a rank


class NotARank(RuntimeError):
    """A rank's device asked for in a process that is not a rank: one sentence."""


def rank_device():
    """The torch.device that this rank was given: its GPU, which it may share, or the CPU.

    Put the model and its data there: in a function for world.run, in a %%ranks cell, or in a script
    under torchrun once ranks() was called. NotARank elsewhere.
    """
    if "device" not in _given:
        raise NotARank(
            "rank_device() was called in a process that is not a rank: call it in a function that"
            " world.run(function) runs, in a %%ranks cell, or under torchrun after ranks(...)."
        )
    return _given["device"]


def give_device(device) -> None:
    """Make this process a rank that has the device."""
    _given["device"] = device


class RankPlace(NamedTuple):
    rank: int
    world_size: int
    connection: Connection
    store: SharedPath
    board: SharedFile
    out: Connection  # pipes for its output
    err: Connection
    alive: Connection  # a pipe whose other end closes when the parent is gone
    device: str | None
    backend: str | None
    share_gpus: bool
    patience_seconds: float
    threads: int | None
    forbid_nan: bool
    interface: str | None  # the network interface of this rank's host; None is the loopback
    namespaces: tuple[str, ...]  # the namespaces of its host, to be entered
    environment: dict[str, str]
