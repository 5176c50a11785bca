"""Cross-entropy of scores of which each rank has those of some tokens of the vocabulary: the loss
of the core, also where some targets are padding."""

import torch
from torch import Tensor

from ...common.backward import NoSecondGradient
from ...common.collective_wire import Group, place
from ...gpt import PADDING
from ...gpt_checks import check_range
from .. import core


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
    begin, end = core.bounds(vocabulary, group)
    if scores.shape[-1] != end - begin:
        raise ValueError(
            f"scores have {scores.shape[-1]:,} tokens of the vocabulary: of {vocabulary:,}, rank"
            f" {me} of {n} has {end - begin:,}."
        )
    padding = None if count is None else targets == PADDING
    check_range(targets if count is None else targets.masked_fill(padding, 0), vocabulary)
    each = Loss.apply(scores, targets, begin, group)  # [B, S]
    if count is not None:
        each = each.masked_fill(padding, 0)
    # no mean(), whose gradient has memory of its own for each token
    return each.sum() / (targets.numel() if count is None else count)


class Loss(core.Loss):
    @staticmethod
    def backward(ctx, gradient):
        if torch.is_grad_enabled():
            raise NoSecondGradient(
                "create_graph=True: vocabulary_parallel_loss keeps no scores for gradients of"
                " gradients; gather the scores, and take next_token_loss."
            )
        return core.Loss.backward(ctx, gradient)
