"""Context parallelism: every rank has a part of each sequence, and all parameters.

core.py         the idea on a page: own tokens and positions, three mixes of tokens
core_ring.py    the ring's blocks and messages
core_masks.py   windows, sinks and tiles: blocks that are skipped
"""

from .core import (
    Context,
    GatheredAttention,
    RingAttention,
    Ulysses,
    context_parallel,
    targets_a_rank,
)
from .core_masks import Causal, Tiles, Window

__all__ = [
    "Tiles",
    "Causal",
    "Context",
    "GatheredAttention",
    "RingAttention",
    "Ulysses",
    "Window",
    "context_parallel",
    "targets_a_rank",
]
