"""Assignment: layers cut by width, and a transformer block made of them. README.md beside this file
says what to build.

Try it with `python -m shardlab grade tensor_parallelism`.
"""

import torch.distributed as dist
from torch import Tensor, nn

from shardlab.gpt import Block

Group = dist.ProcessGroup | None  # None is the world


def enter(x: Tensor, group: Group = None) -> Tensor:
    """x, which all ranks have, before they go on with different weights."""
    # TODO: an autograd.Function; which of its two methods sends?
    raise NotImplementedError("enter is a TODO")


def leave(x: Tensor, group: Group = None) -> Tensor:
    """The sum of all ranks' x."""
    raise NotImplementedError("leave is a TODO")


class ColumnLinear(nn.Module):
    """Some outputs of a linear layer: x [..., in] to [..., out/t]. x has entered already."""

    def __init__(self, linear: nn.Linear, group: Group = None):
        super().__init__()
        raise NotImplementedError("ColumnLinear is a TODO")


class RowLinear(nn.Module):
    """A linear layer of some inputs: x [..., in/t] to the whole [..., out], on every rank."""

    def __init__(self, linear: nn.Linear, group: Group = None):
        super().__init__()
        # TODO: who adds the bias, and when?
        raise NotImplementedError("RowLinear is a TODO")


class TokenEmbedding(nn.Module):
    """The vectors of some tokens: ids [...] to the whole [..., hidden], on every rank. Raises
    IndexError for a token that no rank has."""

    def __init__(self, embedding: nn.Embedding, group: Group = None):
        super().__init__()
        raise NotImplementedError("TokenEmbedding is a TODO")


def vocabulary_parallel_loss(
    scores: Tensor, targets: Tensor, vocabulary: int, group: Group = None
) -> Tensor:
    """The mean cross-entropy of scores [B, S, V/t], in fp32 at least. Raises ValueError for scores
    of another part, IndexError for a target outside of the vocabulary."""
    # TODO: three numbers of each token travel, and backward sends nothing
    raise NotImplementedError("vocabulary_parallel_loss is a TODO")


def split_block(block: Block, group: Group = None) -> Block:
    """A block of the plain GPT, cut in place: whole heads, and the MLP's inner numbers. Raises
    ValueError for heads that the ranks do not divide."""
    # TODO: a head is three runs of rows of qkv.weight, one after the other
    raise NotImplementedError("split_block is a TODO")
