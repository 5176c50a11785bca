"""The arguments of a rank at its start."""

from multiprocessing.connection import Connection
from typing import NamedTuple

from .shared import SharedFile, SharedPath


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
    threads: int
    forbid_nan: bool
    interface: str | None  # the network interface of this rank's host; None is the loopback
    namespaces: tuple[str, ...]  # the namespaces of its host, to be entered
    environment: dict[str, str]
