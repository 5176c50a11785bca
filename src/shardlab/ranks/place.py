"""What a rank is given at its start."""

from multiprocessing.connection import Connection
from typing import NamedTuple

from .shared import SharedFile, SharedPath


class Place(NamedTuple):
    rank: int
    world_size: int
    connection: Connection
    store: SharedPath
    board: SharedFile
    out: Connection  # pipes for what it prints
    err: Connection
    device: str | None
    backend: str | None
    share_gpus: bool
    patience_seconds: float
    threads: int
    forbid_nan: bool
    ends_with_its_parent: bool  # the thread that starts it lives as long as the parent
    interface: str | None  # the network interface of this rank's host; None is the loopback
    namespaces: tuple[str, ...]  # those of its host, to be entered
    environment: dict[str, str]
