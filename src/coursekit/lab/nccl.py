"""Links under NCCL, which takes for each message the way that it expects to be the fastest: a
ring by one of three protocols, for sums two trees between nodes, or the switches of a node (NVLS).

Latencies are those of NCCL's own model, src/graph/tuning.cc at 5067397, in seconds: before the
first step, and of a step within a node and between nodes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ranklab.virtual.hardware import ROUNDS, Links

SWITCH_SECONDS = 25e-6  # of NVLS, there too
SWITCH_RANKS = 5  # fewer do not take it on an H200, ml-engineering@744d01e network/README.md


class Protocol(NamedTuple):
    base: float
    node_step: float
    network_step: float
    carried: float  # data's share of what travels: the others send flags, too


# LL: its most on an H100, 141 GB/s (llMaxBws), of the 366 of a large message
LOW_LATENCY, LL128 = Protocol(6.6e-6, 0.6e-6, 2.7e-6, 0.39), Protocol(14e-6, 1.9e-6, 4e-6, 0.92)
RINGS = LOW_LATENCY, LL128, Protocol(8.4e-6, 3.4e-6, 14e-6, 1.0)
SIMPLE = Protocol(11.76e-6, 4.76e-6, 19.6e-6, 1.0)  # between nodes
RINGS_OF_NODES = LOW_LATENCY, LL128, SIMPLE
TREES = (
    Protocol(6.8e-6, 0.6e-6, 5e-6, 0.39),
    Protocol(14e-6, 1.25e-6, 8.5e-6, 0.92),
    Protocol(8.4e-6, 4e-6, 14e-6, 1.0),
)


@dataclass(frozen=True)
class NCCLLinks(Links):
    switch_bytes_per_second: float = 0.0  # of a rank, where switches add; 0: they do not
    infiniband: bool = True  # between nodes: others (AWS's EFA) have the ring of SIMPLE alone

    def seconds(self, operation: str, nbytes: int, ranks: list[int]) -> float:
        n, nodes = len(ranks), self.nodes(ranks)
        if n == 1 or operation not in ROUNDS:
            return super().seconds(operation, nbytes, ranks)
        rate, rounds = self.rate(ranks), ROUNDS[operation]
        protocols = RINGS if nodes == 1 else RINGS_OF_NODES if self.infiniband else (SIMPLE,)
        ways = [
            one.base
            + rounds * ((n - nodes) * one.node_step + (nodes - 1) * one.network_step)
            + rounds * (n - 1) / n * nbytes / (one.carried * rate)
            for one in protocols
        ]
        if operation == "all_reduce" and nodes > 1 and self.infiniband:
            levels = (nodes - 1).bit_length()
            ways += [
                one.base
                + 2 * ((n // nodes - 1) * one.node_step + levels * one.network_step)
                + 2 * nbytes / (one.carried * rate)
                for one in TREES
            ]
        if operation == "all_reduce" and nodes == 1 and n >= SWITCH_RANKS:
            if rate := self.switch_bytes_per_second:
                ways.append(SWITCH_SECONDS + (n + 1) / n * nbytes / rate)
        return min(ways)
