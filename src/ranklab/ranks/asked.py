"""The arguments of ranks(), checked before any rank is started, and those of a rank."""

from multiprocessing.connection import Connection
from numbers import Real
from socket import socket
from typing import NamedTuple

from .board import MOST_RANKS
from .links import Host
from .place import SharedFile

LEAST_SECONDS, MOST_SECONDS = 0.01, 1e6


class Asked(NamedTuple):
    world_size: int
    device: str | None
    backend: str | None
    share_gpus: bool
    patience_seconds: float
    hosts: tuple[Host, ...]
    method: str | None
    announce: bool


class RankPlace(NamedTuple):
    rank: int
    asked: Asked
    connection: socket
    store: SharedFile  # through which ranks find each other
    board: SharedFile
    out: Connection  # pipes for its output
    err: Connection
    alive: Connection  # a pipe whose other end closes when the parent is gone
    host: Host  # by default this machine and its loopback
    environment: dict[str, str]


def check_asked(asked: Asked):
    """Raises ValueError or TypeError, one sentence that names the value and the rule."""
    n = asked.world_size
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_RANKS:
        raise ValueError(f"world_size = {n!r}: a world has 1 to {MOST_RANKS} ranks on one machine.")
    for name, known in (
        ("device", ("cpu", "cuda")),
        ("backend", ("gloo", "nccl")),
        ("method", ("forkserver", "spawn")),
    ):
        value = getattr(asked, name)
        if value not in (None, *known):
            raise ValueError(
                f"{name} = {value!r}: it must be {' or '.join(known)}, or be left away."
            )
    check_seconds("patience_seconds", asked.patience_seconds)
    if not isinstance(asked.hosts, (tuple, list)) or not all(
        isinstance(host, Host) for host in asked.hosts
    ):
        raise TypeError(
            f"hosts = {asked.hosts!r}: it must be the tuple of hosts that two_hosts gives."
        )
    if asked.hosts and asked.world_size % len(asked.hosts):
        raise ValueError(
            f"world_size = {asked.world_size}: {len(asked.hosts)} hosts want the same number of"
            " ranks each."
        )
    if asked.hosts and (asked.backend == "nccl" or asked.share_gpus):
        given = "backend = 'nccl'" if asked.backend == "nccl" else "share_gpus = True"
        raise ValueError(
            f"{given}: NCCL would go from GPU to GPU, past the link between rehearsed hosts. Leave"
            " it away: there ranks take gloo."
        )


def check_limit(limit_seconds):
    if limit_seconds is not None:
        check_seconds("limit_seconds", limit_seconds)


def check_seconds(name: str, value):
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r}: it must be a number of seconds.")
    if not LEAST_SECONDS <= value <= MOST_SECONDS:
        raise ValueError(
            f"{name} = {value!r}: it must be from {LEAST_SECONDS:g} to {MOST_SECONDS:,.0f} seconds."
        )


def announcement(devices: list[str], backend: str, hosts: int) -> str:
    count = f"{len(devices)} rank{'s' * (len(devices) > 1)}"
    if devices[0] == "cpu":
        where = "on the CPU, 1 thread each"
    else:
        where = f"on {len(set(devices))} GPU{'s' * (len(set(devices)) > 1)}"
        where += ", which they share" if len(set(devices)) < len(devices) else ", one each"
    return f"{count} {where}; backend {backend}" + f"; {hosts} rehearsed hosts" * bool(hosts)
