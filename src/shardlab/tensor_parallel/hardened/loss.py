"""Cross-entropy of scores of which each rank has those of some tokens of the vocabulary.

The scores [B, S, V] are the largest tensor of a small model's step. They are never gathered: what
travels are a maximum and two sums for each token of the batch, in two all-reduces.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ...collective_wire import Group, place
from ...common.backward import NoSecondGradient
from ...gpt_checks import check_range
from .layers import Cut

PADDING = -100  # a target that does not count, as in torch.nn.functional.cross_entropy


def vocabulary_parallel_loss(
    scores: Tensor,
    targets: Tensor,
    vocabulary: int,
    group: Group = None,
    count: Tensor | float | None = None,
) -> Tensor:
    """gpt.next_token_loss of scores [B, S, V/t] and targets [B, S], the same on all ranks. In fp32
    at least. Any vocabulary: the first ranks have one token more where t does not divide it. With
    `count`, targets of -100 are padding, and the loss is the sum over the others / count.

    Raises IndexError for a target outside of the vocabulary (not on a GPU), ValueError for scores
    of another part."""
    n, me = place(group)
    begin, end = Cut(0, vocabulary).bounds(vocabulary, me, n)
    if scores.shape[-1] != end - begin:
        raise ValueError(
            f"scores have {scores.shape[-1]:,} tokens of the vocabulary: of {vocabulary:,}, rank"
            f" {me} of {n} has {end - begin:,}."
        )
    counted = targets if count is None else targets.masked_fill(targets == PADDING, 0)
    check_range(counted, vocabulary)
    return Loss.apply(scores, targets, begin, group, count)


class Loss(torch.autograd.Function):
    """loss = mean of log(sum of exp(s)) - s_target. Its gradient is softmax(s), less 1 at the
    target, divided by the number of targets."""

    @staticmethod
    def forward(ctx, scores, targets, begin, group, count):
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        largest = wide.amax(-1, keepdim=True)  # [B, S, 1], so that no exp overflows
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        shifted = wide - largest  # [B, S, V/t]
        # the target's score, on the rank that has it
        own = (targets >= begin) & (targets < begin + scores.shape[-1])
        place_of_target = (targets - begin).masked_fill_(~own, 0).unsqueeze(-1)  # [B, S, 1]
        target = shifted.gather(-1, place_of_target).masked_fill_(~own.unsqueeze(-1), 0)
        exponentials = shifted.exp_()
        # two sums over the vocabulary in one message
        sums = torch.stack([exponentials.sum(-1, keepdim=True), target])  # [2, B, S, 1]
        dist.all_reduce(sums, group=group)
        total, target = sums
        each, softmax = total.log() - target, exponentials.div_(total)
        if count is not None:
            padding = (targets == PADDING).unsqueeze(-1)  # [B, S, 1]
            each, softmax = each.masked_fill(padding, 0), softmax.masked_fill_(padding, 0)
        ctx.save_for_backward(softmax, place_of_target, own)
        ctx.dtype, ctx.count = scores.dtype, own.numel() if count is None else count
        return each.mean() if count is None else each.sum() / count

    @staticmethod
    def backward(ctx, gradient):
        if torch.is_grad_enabled():
            raise NoSecondGradient(
                "create_graph=True: vocabulary_parallel_loss keeps no scores for gradients of"
                " gradients; gather the scores, and take next_token_loss."
            )
        softmax, place_of_target, own = ctx.saved_tensors
        each = gradient / ctx.count
        # in the memory of the softmax: a second backward through here raises
        softmax.mul_(each)
        softmax.scatter_add_(-1, place_of_target, -each * own.unsqueeze(-1).to(softmax.dtype))
        return softmax.to(ctx.dtype), None, None, None, None
