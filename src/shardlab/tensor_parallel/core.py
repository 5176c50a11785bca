"""The core of tensor parallelism: layers cut by width, so that each rank has some columns of the
first matrix and the same rows of the second.

    split_gpt(model)                                 # a model of gpt.py, in place
    loss = vocabulary_parallel_loss(model(tokens), targets, vocabulary)
    loss.backward()                                  # the gradients of this rank's parts

Every rank sees the same x. Its columns give some elements of the hidden vector, which only its rows
need, so nothing is sent between the two matrices. Around the pair stand two functions, which
Megatron-LM calls f and g (Shoeybi et al. 2019, section 3):

              forward          backward
    enter     nothing          an all-reduce: each rank's columns have a term of x's gradient
    leave     an all-reduce    nothing: each rank's rows have a term of y

Letters: B batch, S sequence, H hidden, V vocabulary, t ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.collective_wire import Group
from ..gpt_checks import check_range


def bounds(size: int, group: Group) -> tuple[int, int]:
    """(begin, end) of this rank's part of a dim. The first ranks have one more where need be."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    each, more = divmod(size, n)
    begin = me * each + min(me, more)
    return begin, begin + each + (me < more)


def part(p: nn.Parameter | None, dim: int, group: Group) -> nn.Parameter | None:
    """A copy of this rank's part, so that the whole can go."""
    if p is None:
        return None
    begin, end = bounds(p.shape[dim], group)
    return nn.Parameter(p.detach().narrow(dim, begin, end - begin).clone(), p.requires_grad)


def total(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, in new memory: autograd may have other uses for x."""
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


class Enter(torch.autograd.Function):
    """Nothing forward, since all ranks have x. A sum backward, since all ranks have used x."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return leave(gradient, ctx.group), None


class Leave(torch.autograd.Function):
    """A sum forward. Nothing backward, since each term of a sum has the gradient of the sum."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return total(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return enter(gradient, ctx.group), None


def enter(x: Tensor, group: Group = None) -> Tensor:
    """x in front of columns: its gradient is a sum over ranks."""
    return Enter.apply(x, group)


def leave(x: Tensor, group: Group = None) -> Tensor:
    """The sum over ranks of what their rows have made."""
    return Leave.apply(x, group)


class ColumnLinear(nn.Module):
    """Some columns of a linear layer, with their biases. Before it, x must `enter`."""

    def __init__(self, linear: nn.Linear, group: Group = None):
        super().__init__()
        self.weight, self.bias = part(linear.weight, 0, group), part(linear.bias, 0, group)

    def forward(self, x: Tensor) -> Tensor:  # [..., in]
        return F.linear(x, self.weight, self.bias)  # [..., out/t]


class RowLinear(nn.Module):
    """Some rows of a linear layer, and its whole bias, which is added once: after the sum."""

    def __init__(self, linear: nn.Linear, group: Group = None, leave=leave):
        super().__init__()
        self.group, self.leave = group, leave
        self.weight, self.bias = part(linear.weight, 1, group), linear.bias

    def forward(self, x: Tensor) -> Tensor:  # [..., in/t]
        y = self.leave(F.linear(x, self.weight), self.group)  # [..., out]
        return y if self.bias is None else y + self.bias


class TokenEmbedding(nn.Module):
    """The vectors of some tokens, and zeros for the others: the sum over ranks has them all."""

    def __init__(self, embedding: nn.Embedding, group: Group = None, leave=leave):
        super().__init__()
        self.group, self.leave, self.vocabulary = group, leave, embedding.num_embeddings
        self.begin, self.end = bounds(self.vocabulary, group)
        self.weight = part(embedding.weight, 0, group)  # [V/t, H]

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S]
        check_range(tokens, self.vocabulary)
        own = (tokens >= self.begin) & (tokens < self.end)
        x = F.embedding((tokens - self.begin) * own, self.weight)
        return self.leave(x * own.unsqueeze(-1), self.group)  # [B, S, H]


class Loss(torch.autograd.Function):
    """log(sum of exp(s)) - s_target of each token: a maximum and two sums travel, no scores s."""

    @staticmethod
    def forward(ctx, scores, targets, begin, group):
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))  # [B, S, V/t]
        largest = wide.amax(-1, keepdim=True)  # [B, S, 1], so that no exp overflows
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = wide - largest
        own = (targets >= begin) & (targets < begin + scores.shape[-1])
        index = ((targets - begin) * own).unsqueeze(-1)
        target = shifted.gather(-1, index).squeeze(-1).masked_fill(~own, 0)  # of whoever has it
        exponentials = shifted.exp_()
        sums = torch.stack([exponentials.sum(-1), target])  # two in one message
        dist.all_reduce(sums, group=group)
        divisor, target = sums
        softmax = exponentials.div_(divisor.unsqueeze(-1))
        ctx.save_for_backward(softmax, index, own)
        ctx.dtype = scores.dtype
        return divisor.log() - target  # [B, S]

    @staticmethod
    def backward(ctx, gradient):
        softmax, index, own = ctx.saved_tensors
        d = softmax.mul_(gradient.unsqueeze(-1))  # in its memory: a second backward raises
        d.scatter_add_(-1, index, -(gradient * own).unsqueeze(-1))  # less 1 at the target
        return d.to(ctx.dtype), None, None, None


def vocabulary_parallel_loss(
    scores: Tensor, targets: Tensor, vocabulary: int, group: Group = None
) -> Tensor:
    """The mean cross-entropy of scores [B, S, V/t] and targets [B, S], the same on all ranks; in
    fp32 at least. Raises IndexError for a target outside of the vocabulary (not on a GPU, where
    looking would wait), ValueError for scores of another part."""
    begin, end = bounds(vocabulary, group)
    if scores.shape[-1] != end - begin:
        raise ValueError(f"scores of {scores.shape[-1]} tokens: this rank has {end - begin}.")
    check_range(targets, vocabulary)
    return Loss.apply(scores, targets, begin, group).mean()


def split_block(block: nn.Module, group: Group = None, enter=enter, leave=leave) -> nn.Module:
    """A block of gpt.py, in place: attention by heads, the MLP by columns and rows. Its qkv is
    ordered by head, so a part of its columns is a part of the heads. Raises ValueError where t
    does not divide the heads (the groups of heads that share a key and a value)."""
    attention, mlp = block.attention, block.mlp
    columns = (attention.queries_per_group + 2) * attention.head_size  # of a head's q, k and v
    heads = attention.qkv.out_features // columns
    n = dist.get_world_size(group)
    if heads % n:
        raise ValueError(f"{heads} heads on {n} ranks: a head is not cut.")
    attention.qkv = ColumnLinear(attention.qkv, group)
    attention.output = RowLinear(attention.output, group, leave)
    mlp.up, mlp.down = ColumnLinear(mlp.up, group), RowLinear(mlp.down, group, leave)
    if mlp.gate is not None:
        mlp.gate = ColumnLinear(mlp.gate, group)
    for module in (attention, mlp):
        module.register_forward_pre_hook(lambda _, args: enter(args[0], group))
    return block


def split_gpt(model: nn.Module, group: Group = None, enter=enter, leave=leave) -> nn.Module:
    """A model of gpt.py, in place. Its head gives the scores of this rank's tokens."""
    embedding, head = model.embedding, model.head
    tied = head.scores.weight is embedding.tokens.weight
    embedding.tokens = TokenEmbedding(embedding.tokens, group, leave)
    head.scores = ColumnLinear(head.scores, group)
    head.scores.register_forward_pre_hook(lambda _, args: enter(args[0], group))
    if tied:
        head.scores.weight = embedding.tokens.weight
    for block in model.blocks:
        split_block(block, group, enter, leave)
    return model
