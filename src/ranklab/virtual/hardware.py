"""The numbers of a virtual GPU: how long an operator, a copy and a message take on it.

    h100 = GPU(
        flops_per_second={torch.bfloat16: 794e12, torch.float32: 67e12},
        memory_bytes_per_second=2.7e12,
        links=Links(node_bytes_per_second=360e9, network_bytes_per_second=40e9),
    )

coursekit.lab.virtual_gpus takes them from the book's presets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import torch

SECOND = 10**9  # nanoseconds: clocks are whole numbers, so that no sum depends on its order

# of the messages around a ring: how often the whole array goes over each link, but for a share of
# 1/n, and how often a latency is paid by each rank but one
ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
ROUNDS |= {"gather": 1, "scatter": 1}


class UnknownSpeed(ValueError):
    """The virtual GPU has no number for what it is asked for: one sentence."""


class NoContents(TypeError):
    """The program needs the contents of a tensor that has none: one sentence."""

    def __init__(self, name: str):
        super().__init__(
            f"{name} needs the contents of a tensor, and a virtual GPU computes none: it knows"
            " shapes alone, so nothing may have a size that depends on contents or leave the GPU."
        )


@dataclass(frozen=True)
class Links:
    """Links of a rank, each way. Ranks fill nodes in order; across nodes one ring goes through each
    network card of a node, at once."""

    node_bytes_per_second: float
    network_bytes_per_second: float = 0.0  # of one rank's card
    ranks_per_node: int = 8
    node_latency_seconds: float = 3.4e-6  # of NCCL's ring with the protocol Simple, a step
    network_latency_seconds: float = 14.0e-6

    def nodes(self, ranks: list[int]) -> int:
        return len({rank // self.ranks_per_node for rank in ranks})

    def seconds(self, operation: str, nbytes: int, ranks: list[int]) -> float:
        """The time of a message of so many bytes, the whole array, between these ranks."""
        n, nodes = len(ranks), self.nodes(ranks)
        if n == 1:
            return 0.0
        if operation in ROUNDS:
            steps_inside, steps_across, share = n - nodes, nodes - 1, (n - 1) / n
            rounds = ROUNDS[operation]
        else:  # one message after the other, or a chain whose pieces follow each other
            steps_inside, steps_across, share, rounds = n > nodes, nodes > 1, 1.0, 1
        latency = (
            steps_inside * self.node_latency_seconds + steps_across * self.network_latency_seconds
        )
        return rounds * (latency + share * nbytes / self.rate(ranks))

    def rate(self, ranks: list[int]) -> float:
        """Bytes per second of all rings through these ranks at once."""
        n, nodes, rate = len(ranks), self.nodes(ranks), self.node_bytes_per_second
        if nodes == 1:
            return rate
        cards = n // nodes * self.network_bytes_per_second
        if not cards:
            raise UnknownSpeed(
                f"ranks {ranks[0]} to {ranks[-1]} are on {nodes} nodes of {self.ranks_per_node}"
                " ranks, and the links have no network_bytes_per_second: give it."
            )
        return min(rate, cards) if n > nodes else cards


class Kernel(Enum):
    """Kinds of kernels, each of which reaches another share of a GPU's rates."""

    STREAM = "copies, and operations on lists of tensors, as optimizers have"
    OTHER = "elementwise, norms, softmax, sums"
    PRODUCT = "matrix products"
    ATTENTION = "fused attention"


@dataclass(frozen=True)
class GPU:
    """The speed of a GPU and of its links. Rates are those of large matrices and of a large copy;
    by themselves all kernels reach them."""

    flops_per_second: Mapping[torch.dtype, float]
    memory_bytes_per_second: float
    links: Links | None = None
    launch_seconds: float = 5e-6  # of the host's time, for each operator and each message
    message_seconds: float = 0.0  # of the host's time beside the launch: Python around a message
    dtensor_seconds: float = 0.0  # of the host's time, for each operator on a DTensor
    # of the time that both run, by which kernels take longer beside a message, and beside a kernel
    # of another stream
    contention: float = 0.0
    stream_contention: float = 0.0
    host_bytes_per_second: float = 0.0  # to the host's memory, each way at once
    # of this rate, where the host's memory is not pinned: an H100 copied 8.8 GB/s instead of 55.0
    pageable_share: float = 0.16
    tf32_flops_per_second: float = 0.0  # 0: this GPU has no TF32
    attention_share: float = 1.0  # of a product's rate, which fused attention reaches
    # of a product's rate on tensor cores, where a matrix's rows are not whole pieces of 16 bytes
    unaligned_share: float = 1.0
    kernel_seconds: float = 0.0  # of each kernel beside its work, between one and the next
    product_seconds: float = 0.0  # of each product beside its operations: to fill and drain the GPU
    memory_share: float = 1.0  # of the memory's rate, which kernels of kind OTHER reach
    memory_bytes: int = 0  # beside its context; 0: it never runs out
    name: str = "a virtual GPU"
    compute_capability: tuple[int, int] = (9, 0)

    @property
    def launch_nanoseconds(self) -> int:
        return nanoseconds(self.launch_seconds)

    def operator_nanoseconds(
        self,
        flops: int,
        nbytes: int,
        dtype: torch.dtype | None,
        kernel: Kernel = Kernel.OTHER,
        aligned: bool = True,
        tf32: bool = False,
    ) -> int:
        """Memory and arithmetic work at once: the slower of the two counts. With `tf32` PyTorch may
        round the factors of products in fp32."""
        share = self.memory_share if kernel is Kernel.OTHER else 1.0
        seconds = nbytes / (share * self.memory_bytes_per_second)
        if flops:
            rounded = tf32 and dtype is torch.float32 and self.tf32_flops_per_second
            rate = rounded or self.flops_per_second.get(dtype)
            if not rate:
                known = ", ".join(map(str, self.flops_per_second))
                raise UnknownSpeed(
                    f"{self.name} has no rate for products of {dtype}: its flops_per_second has"
                    f" {known}."
                )
            share = self.attention_share if kernel is Kernel.ATTENTION else 1.0
            if not aligned and (rounded or dtype is not torch.float32):
                share *= self.unaligned_share
            seconds = max(seconds, flops / (share * rate)) + self.product_seconds
        return nanoseconds(seconds)

    def copy_nanoseconds(self, nbytes: int, pinned: bool = True) -> int:
        """A copy between the host's memory and the GPU."""
        if not self.host_bytes_per_second:
            raise UnknownSpeed(
                f"{self.name} copies to or from its host, and no speed is known:"
                " GPU(host_bytes_per_second=...)."
            )
        share = 1.0 if pinned else self.pageable_share
        return nanoseconds(nbytes / (share * self.host_bytes_per_second))

    def message_nanoseconds(self, operation: str, nbytes: int, ranks: list[int]) -> int:
        if self.links is None:
            raise UnknownSpeed(f"{self.name} sends a message, and has no links: GPU(links=...).")
        return nanoseconds(self.links.seconds(operation, nbytes, ranks))


def nanoseconds(seconds: float) -> int:
    return round(seconds * SECOND)
