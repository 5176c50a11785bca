"""A module that treats each token by itself, a tile of tokens at a time: the inner activations of
one tile are in memory, not those of the sequence.

    checkpoint_modules(model, MLP, partial(checkpoint_tiles, tokens=4096))

Bekman et al. 2025 (Arctic Long Sequence Training, arXiv 2506.13996); for the logits and their loss,
kernels/losses.py does so without a second forward.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .hardened.checkpointing import checkpoint


def checkpoint_tiles(function: Callable[[Tensor], Tensor], x: Tensor, tokens: int) -> Tensor:
    """function(x) of x [B, S, ...], of which each tile of so many tokens is in a checkpoint of its
    own. Attention looks at other tokens, so it is none of these functions."""
    return torch.cat([checkpoint(function, tile) for tile in x.split(tokens, 1)], 1)
