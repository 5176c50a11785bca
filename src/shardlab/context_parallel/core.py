"""The core of context parallelism: every rank has s = S/c tokens of each sequence, and all
parameters.

    context = Context(group)                                  # of c ranks
    context_parallel(net, context, RingAttention)             # in place
    inputs, targets = context.own(inputs), context.own(targets)          # [B, S] to [B, s]
    loss = next_token_loss(net(inputs), targets, targets_a_rank(targets, group))
    loss.backward()                       # then average the gradients over the group, as data's are

Attention alone looks at other tokens. Three mixes bring keys and values to the queries:

    RingAttention      each rank's go round, and their blocks are merged: core_ring.py
    GatheredAttention  every rank gets all of them (Llama 3, section 3.3.2)
    Ulysses            every rank gets all tokens of some heads (Jacobs et al. 2023)

Letters: B batch, A query heads, G key-value heads, D size of a head.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..common.collective_wire import Group
from ..experts.core_parallel import Exchange
from ..gpt import GPT, PADDING, CoreAttention, PositionIds
from ..tensor_parallel.core_sequence import gather
from .core_masks import Causal
from .core_ring import Blocks, RingOfKeys


class Context(PositionIds):
    """The tokens of this rank: two of 2c chunks. With zigzag one is from the beginning and one from
    the end, so that causal ranks have equal work. `positions` [B, S] of packed rows begin at 0 in
    each document, and are set before each forward; None: a row is a sequence."""

    positions: Tensor | None = None

    def __init__(self, group: Group = None, zigzag: bool = True, rule: Causal | None = None):
        super().__init__()
        self.group, self.zigzag, self.rule = group, zigzag, rule or Causal()
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def numbers(self, rank: int) -> tuple[int, int]:
        """The chunks of a rank."""
        return (rank, 2 * self.ranks - 1 - rank) if self.zigzag else (2 * rank, 2 * rank + 1)

    def chunks(self, rank: int, tokens: int) -> list[range]:
        """The places in the sequence of a rank's chunks, if it has so many tokens."""
        half = tokens // 2
        return [range(number * half, (number + 1) * half) for number in self.numbers(rank)]

    def own(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens. Raises ValueError for a length that 2c does not divide."""
        size, count = x.shape[dim], 2 * self.ranks
        if size % count:
            fits = size + -size % count
            raise ValueError(f"{size} tokens in {count} equal chunks: the next length is {fits}.")
        return self.pick(x, dim, self.numbers(self.rank))

    def pick(self, x: Tensor, dim: int, numbers: Sequence[int]) -> Tensor:
        chunks = x.chunk(2 * self.ranks, dim)
        return torch.cat([chunks[number] for number in numbers], dim)

    def in_order(self, x: Tensor, dim: int = 1, back: bool = False) -> Tensor:
        """Tokens that lie rank after rank, in the order of the sequence; or the way back."""
        numbers = [number for rank in range(self.ranks) for number in self.numbers(rank)]
        order = numbers if back else [numbers.index(number) for number in range(len(numbers))]
        return self.pick(x, dim, order) if self.zigzag else x

    def mask(self, queries: range, keys: range, positions: Tensor | None, like: Tensor) -> Tensor:
        """Which query sees which key: [1, 1, s, s], or [B, 1, s, s] of packed rows."""
        q, k = (torch.arange(r.start, r.stop, device=like.device) for r in (queries, keys))
        seen = self.rule.sees(q[:, None], k)[None]
        if positions is not None:
            document = (positions == 0).cumsum(-1)  # counted in each row
            q, k = (document[:, r.start : r.stop] for r in (queries, keys))
            seen = seen & (q[:, :, None] == k[:, None])
        return seen[:, None]

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        """The rows of a table of positions for this rank's tokens: [s, ...], or [B, s, ...].
        Raises ValueError for more tokens than positions."""
        if sequence * self.ranks > len(table):
            raise ValueError(f"{sequence * self.ranks} tokens: there are {len(table)} positions.")
        if self.positions is None or table.ndim == 1:  # rotary ones see differences alone
            return self.pick(table[: sequence * self.ranks], 0, self.numbers(self.rank))
        return table[self.pick(self.positions, 1, self.numbers(self.rank))]


class Mix(CoreAttention):
    """Attention of this rank's queries, q [B, A, s, D], to the keys and values of all ranks, of
    which k and v [B, G, s, D] are its own."""

    context: Context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, queries: range) -> Tensor:
        """Queries at these places, keys of the first places, by any kernel of PyTorch."""
        seen = self.context.mask(queries, range(k.shape[2]), self.context.positions, q)
        return F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=q.shape[1] != k.shape[1])


class RingAttention(Mix):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return RingOfKeys.apply(q, k, v, Blocks(self.context))


class GatheredAttention(Mix):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context = self.context
        both = gather(torch.cat([k, v], -1).transpose(1, 2), context.group)  # [B, S, G, 2D]
        k, v = context.in_order(both).transpose(1, 2).chunk(2, -1)
        halves = zip(q.chunk(2, 2), context.chunks(context.rank, q.shape[2]))
        mixed = [self.attend(h, k[:, :, : c.stop], v[:, :, : c.stop], c) for h, c in halves]
        return torch.cat(mixed, 2)


def exchange(x: Tensor, cut: int, join: int, group: Group) -> Tensor:
    """Part i of dim `cut` to rank i; what comes is joined along `join`. Backward, the way back."""
    parts = torch.stack(x.chunk(dist.get_world_size(group), cut))
    each = [1] * len(parts)
    return torch.cat(list(Exchange.apply(parts, each, each, group)), join)


class Ulysses(Mix):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context, group = self.context, self.context.group
        if k.shape[1] % context.ranks:
            raise ValueError(f"{k.shape[1]} key-value heads on {context.ranks} ranks: none is cut.")
        q, k, v = (context.in_order(exchange(x, 1, 2, group), 2) for x in (q, k, v))
        mixed = self.attend(q, k, v, range(q.shape[2]))  # [B, A/c, S, D]
        return exchange(context.in_order(mixed, 2, back=True), 2, 1, group)


def context_parallel(net: GPT, context: Context, mix: type[Mix]) -> GPT:
    """Put a mix and this rank's positions into a GPT, in place. Its parameters stay as they are.
    Raises ValueError for dropout, which each rank would draw for itself."""
    if net.config.dropout:
        raise ValueError(f"dropout = {net.config.dropout}: ranks would draw different masks.")
    net.embedding.position_ids = context
    for block in net.blocks:
        block.attention.core = mix(net.config)
        block.attention.core.context = context
        if block.attention.rotary is not None:
            block.attention.rotary.position_ids = context
    return net


def targets_a_rank(targets: Tensor, group: Group = None) -> Tensor:
    """The mean number of targets [B, s] on a rank of the group. Ranks' sums, each divided by this
    number and then averaged, are the mean over all targets."""
    count = (targets != PADDING).sum()
    dist.all_reduce(count, group=group)
    return count.double() / dist.get_world_size(group)
