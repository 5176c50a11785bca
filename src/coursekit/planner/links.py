"""The links between the GPUs of a preset, by its row of data/hardware.csv: inside a node, and the
network's cards."""

from dataclasses import dataclass

from coursekit.formulas.presets import HARDWARE, LINKS

BANDWIDTH_SHARE = 0.8  # of a datasheet's figure that memory and links reach: assumed, not fitted
USUAL_RANKS_PER_NODE = 8


def family_of(gpu: str) -> str:
    """The chip's name, without the board and the memory: H100, RTX 4090."""
    return gpu.split(" SXM")[0]


@dataclass(frozen=True)
class LinksOfGPU:
    """`inside` and `card` are names of presets. Without NVLink or the like all GPUs of a node share
    one card."""

    inside: str = "PCIe 4 x16"
    card: str = "network, 100 Gbit/s"
    joined_gpus: int = USUAL_RANKS_PER_NODE  # in a node, or in a larger domain of NVLink
    fast: bool = False  # NVLink or the like, and a card for each GPU

    @property
    def cards(self) -> int:
        return self.joined_gpus if self.fast else 1

    @property
    def quantities(self) -> tuple:
        """The quantities of `inside`, and of `card`."""
        return LINKS[self.inside].quantities, LINKS[self.card].quantities


def links_of(gpu: str, ranks_per_node: int = USUAL_RANKS_PER_NODE) -> LinksOfGPU:
    row = HARDWARE[gpu]
    if not row["network"]:
        return LinksOfGPU(joined_gpus=ranks_per_node)
    joined = max(ranks_per_node, int(row["nvlink_gpus"] or 0))
    return LinksOfGPU(row["node_link"], row["network"], joined, fast=True)


def link_rates(gpu: str) -> list[float]:
    """Bytes a second that the links of a preset's GPU reach: inside a node, and of its network
    card."""
    both = links_of(gpu).quantities
    return [BANDWIDTH_SHARE * link["link_bytes_per_second"] for link in both]


def host_rate(gpu: str) -> float:
    """Bytes per second between a preset's GPU and its host, each way, at four fifths of the
    datasheet; 0 where the book has no link for it."""
    link = HARDWARE[gpu]["host_link"]
    return BANDWIDTH_SHARE * LINKS[link].quantities["link_bytes_per_second"] if link else 0.0
