"""The core of sequence parallelism: what core.py leaves whole is cut by tokens.

    split_gpt_by_tokens(model)                # in place
    loss = vocabulary_parallel_loss(model(tokens), targets, vocabulary)
    loss.backward()
    sum_gradients(model)                      # once a step, before clipping

Norms, residual additions and the bias of a row layer treat each token by itself, so a rank needs
S/t tokens of them. An all-reduce is a reduce-scatter and an all-gather: the first half comes after
rows, the second half before columns. Korthikanti et al. 2022, section 4.2:

                      forward            backward
    gather            an all-gather      a reduce-scatter    instead of enter
    reduce_scatter    a reduce-scatter   an all-gather       instead of leave

Letters as in core.py.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ..common.collective_wire import Group, all_gather_single, reduce_scatter_single
from . import core
from .core import ColumnLinear, RowLinear, TokenEmbedding, bounds


def all_gathered(x: Tensor, group: Group) -> Tensor:  # [B, S/t, H]
    n = dist.get_world_size(group)
    parts = x.new_empty(n * len(x), *x.shape[1:])  # one rank's after the other's
    all_gather_single(parts, x.contiguous(), group=group)
    return parts.unflatten(0, (n, -1)).transpose(0, 1).flatten(1, 2)  # [B, S, H]


def reduce_scattered(x: Tensor, group: Group) -> Tensor:  # [B, S, H]
    n = dist.get_world_size(group)
    if x.shape[1] % n:
        raise ValueError(f"{x.shape[1]} tokens on {n} ranks: each has as many.")
    parts = x.unflatten(1, (n, -1)).transpose(0, 1).flatten(0, 1).contiguous()  # as above
    own = parts.new_empty(len(x), *parts.shape[1:])
    reduce_scatter_single(own, parts, group=group)
    return own  # [B, S/t, H]


class Paired(torch.autograd.Function):
    """A message forward, and the function that is its backward."""

    @staticmethod
    def forward(ctx, x, group, send, back):
        ctx.group, ctx.back = group, back
        return send(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.back(gradient, ctx.group), None, None, None


def gather(x: Tensor, group: Group = None) -> Tensor:
    """All tokens, in front of columns. Their gradient is a sum: a rank needs its part of it."""
    return Paired.apply(x, group, all_gathered, reduce_scatter)


def reduce_scatter(x: Tensor, group: Group = None) -> Tensor:
    """This rank's tokens of the sum over ranks."""
    return Paired.apply(x, group, reduce_scattered, gather)


class OwnRows(nn.Module):
    """gpt.PositionIds of this rank's tokens."""

    def __init__(self, group: Group):
        super().__init__()
        self.group = group

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        return table[slice(*bounds(sequence, self.group))]


class Regathered:
    """Own tokens, where autograd would keep all. In backward all of them, from their first use to
    the last: the MLP's gate and its other factor use them both."""

    def __init__(self, whole: Tensor, group: Group):
        begin, end = bounds(whole.shape[1], group)
        self.own, self.address = whole.detach()[:, begin:end].clone(), whole.data_ptr()
        self.group, self.uses, self.again = group, 0, None

    def pack(self, tensor: Tensor) -> Tensor | torch.Size:
        if tensor.data_ptr() != self.address or not tensor.is_contiguous():
            return tensor
        self.uses += 1
        return tensor.shape

    def unpack(self, kept: Tensor | torch.Size) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        whole = all_gathered(self.own, self.group) if self.again is None else self.again
        self.uses -= 1
        self.again = whole if self.uses else None
        return whole.view(kept)


def keep_own_tokens(module: nn.Module, group: Group):
    """Backward gathers again what the module takes."""

    def forward(whole: Tensor, compute: Callable = module.forward) -> Tensor:
        kept = Regathered(whole, group)
        with saved_tensors_hooks(kept.pack, kept.unpack):
            return compute(whole)

    module.forward = forward


def split_gpt_by_tokens(model: nn.Module, group: Group = None) -> nn.Module:
    """A model of gpt.py, in place. Between its cut layers each rank has its own tokens."""
    core.split_gpt(model, group, gather, reduce_scatter)
    model.embedding.position_ids = OwnRows(group)  # positions of own tokens
    for block in model.blocks:
        keep_own_tokens(block.attention, group)
        keep_own_tokens(block.mlp, group)
    keep_own_tokens(model.head.scores, group)
    return model


def replicated(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that are not cut: norms, positions, and the biases of rows."""
    cut = set()
    for module in model.modules():
        if isinstance(module, ColumnLinear):
            cut.update(module.parameters())
        if isinstance(module, RowLinear | TokenEmbedding):
            cut.add(module.weight)
    return [p for p in model.parameters() if p not in cut]


@torch.no_grad()
def sum_gradients(model: nn.Module, group: Group = None):
    """Parameters that are whole have seen this rank's tokens alone, so their gradients are terms
    of a sum. One message carries all."""
    gradients = [p.grad for p in replicated(model) if p.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients])):
        gradient.copy_(summed.view_as(gradient))
