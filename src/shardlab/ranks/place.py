"""What a rank is given at its start."""

from multiprocessing.connection import Connection
from typing import NamedTuple

from .shared import SharedFile, SharedPath


class RankPlace(NamedTuple):
    rank: int
    world_size: int
    connection: Connection
    store: SharedPath
    board: SharedFile
    out: Connection  # pipes for what it prints
    err: Connection
    alive: Connection  # a pipe whose other end closes when the parent is gone
    device: str | None
    backend: str | None
    share_gpus: bool
    patience_seconds: float
    threads: int
    forbid_nan: bool
    interface: str | None  # the network interface of this rank's host; None is the loopback
    namespaces: tuple[str, ...]  # those of its host, to be entered
    environment: dict[str, str]
