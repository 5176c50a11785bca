"""The assignment on tensor parallelism: the references and a learner's solution are right, the
skeleton is a list of TODOs, and each misconception gets its sentence."""

import pytest
from graded import check_sentence, check_todos, results

pytestmark = pytest.mark.ranks
TOPIC = "tensor_parallelism"

SOLUTION = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def place(group):
    return dist.get_world_size(group), dist.get_rank(group)


def bounds(size, group):
    n, me = place(group)
    each, more = divmod(size, n)
    begin = me * each + min(me, more)
    return begin, begin + each + (me < more)


def part(p, dim, group):
    if p is None:
        return None
    begin, end = bounds(p.shape[dim], group)
    return nn.Parameter(p.detach().narrow(dim, begin, end - begin).clone(), p.requires_grad)


def total(x, group):
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return total(gradient, ctx.group), None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return total(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def enter(x, group=None):
    return Enter.apply(x, group)


def leave(x, group=None):
    return Leave.apply(x, group)


class ColumnLinear(nn.Module):
    def __init__(self, linear, group=None):
        super().__init__()
        self.weight, self.bias = part(linear.weight, 0, group), part(linear.bias, 0, group)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    def __init__(self, linear, group=None):
        super().__init__()
        self.group = group
        self.weight, self.bias = part(linear.weight, 1, group), linear.bias

    def forward(self, x):
        y = leave(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


def check(ids, vocabulary):
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise IndexError(f"there are tokens 0 to {vocabulary - 1}.")


class TokenEmbedding(nn.Module):
    def __init__(self, embedding, group=None):
        super().__init__()
        self.group, self.vocabulary = group, embedding.num_embeddings
        self.begin, self.end = bounds(self.vocabulary, group)
        self.weight = part(embedding.weight, 0, group)

    def forward(self, ids):
        check(ids, self.vocabulary)
        own = (ids >= self.begin) & (ids < self.end)
        x = F.embedding((ids - self.begin) * own, self.weight)
        return leave(x * own.unsqueeze(-1), self.group)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, targets, begin, group):
        wide = scores if scores.dtype is torch.float64 else scores.float()
        largest = wide.max(-1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = wide - largest.unsqueeze(-1)
        own = (targets >= begin) & (targets < begin + scores.shape[-1])
        index = ((targets - begin) * own).unsqueeze(-1)
        target = shifted.gather(-1, index).squeeze(-1) * own
        exps = shifted.exp()
        sums = exps.sum(-1)
        dist.all_reduce(sums, group=group)
        dist.all_reduce(target, group=group)
        softmax = exps / sums.unsqueeze(-1)
        ctx.save_for_backward(softmax, index, own)
        ctx.dtype = scores.dtype
        return (sums.log() - target).mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, index, own = ctx.saved_tensors
        d = softmax.scatter_add(-1, index, -own.unsqueeze(-1).to(softmax.dtype))
        return (d * (gradient / own.numel())).to(ctx.dtype), None, None, None


def vocabulary_parallel_loss(scores, targets, vocabulary, group=None):
    begin, end = bounds(vocabulary, group)
    if scores.shape[-1] != end - begin:
        raise ValueError(f"scores of {scores.shape[-1]} tokens, this rank has {end - begin}.")
    check(targets, vocabulary)
    return Loss.apply(scores, targets, begin, group)


def split_block(block, group=None):
    attention, mlp = block.attention, block.mlp
    heads = attention.qkv.out_features // (
        (attention.queries_per_group + 2) * attention.head_size
    )
    n, _ = place(group)
    if heads % n:
        raise ValueError(f"{heads} heads on {n} ranks: a head is not cut.")
    attention.qkv = ColumnLinear(attention.qkv, group)
    attention.output = RowLinear(attention.output, group)
    mlp.up, mlp.down = ColumnLinear(mlp.up, group), RowLinear(mlp.down, group)
    if mlp.gate is not None:
        mlp.gate = ColumnLinear(mlp.gate, group)
    for module in (attention, mlp):
        module.register_forward_pre_hook(lambda module, args: (enter(args[0], group),))
    return block
"""


@pytest.mark.parametrize("source", [None, SOLUTION], ids=["the reference", "another solution"])
def test_what_is_right_passes(worlds, source):
    """Must catch: a trial that refuses a right solution, such as one that sends the numbers of the
    loss in three messages and not in two."""
    found = results(worlds(4), TOPIC, source)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, and one that raises a traceback."""
    check_todos(worlds(4), TOPIC, parts=7)


SUMMED = "        return total(gradient, ctx.group), None"
WRONG = {
    "enter that sums nothing": (
        "entered",
        "parity",
        (SUMMED, "        return gradient, None"),
        "all ranks have used x, so its gradient is a sum over them",
    ),
    "a gradient summed in place": (
        "entered",
        "parity",
        ("    x = x.contiguous().clone()\n", "    x = x.contiguous()\n"),
        "backward wrote into a gradient that others use too: sum a copy.",
    ),
    "leave that sums twice": (
        "left",
        "parity",
        (
            "        return gradient, None",
            SUMMED,
            "        return total(x, group)",
            "        ctx.group = group\n        return total(x, group)",
        ),
        "the gradient of a sum is that of each part, and all ranks have it already",
    ),
    "an all-reduce that autograd does not see": (
        "left",
        "parity",
        ("    return Leave.apply(x, group)", "    return total(x.detach(), group)"),
        "write an autograd.Function",
    ),
    "the first rows for all": (
        "columns",
        "parity",
        ("    begin = me * each + min(me, more)\n", "    begin = 0\n"),
        "the output of ColumnLinear",
    ),
    "the rest on the last rank": (
        "columns",
        "parity",
        (
            "    begin = me * each + min(me, more)\n    return begin, begin + each + (me < more)",
            "    return me * each, size if me == n - 1 else (me + 1) * each",
        ),
        "should have the shape",
    ),
    "a bias on each rank": (
        "rows",
        "parity",
        (
            "        y = leave(F.linear(x, self.weight), self.group)\n"
            "        return y if self.bias is None else y + self.bias",
            "        return leave(F.linear(x, self.weight, self.bias), self.group)",
        ),
        "The bias is added on each rank: add it once, after the sum.",
    ),
    "tokens of others": (
        "tokens",
        "parity",
        ("return leave(x * own.unsqueeze(-1), self.group)", "return leave(x, self.group)"),
        "the output of TokenEmbedding",
    ),
    "a maximum of this rank": (
        "losses",
        "parity",
        ("        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)\n", ""),
        "the loss of scores around 0",
    ),
    "no maximum": (
        "losses",
        "parity",
        ("shifted = wide - largest.unsqueeze(-1)", "shifted = wide"),
        "subtract the largest score of all ranks before exp",
    ),
    "a sum over tokens": (
        "losses",
        "parity",
        ("(sums.log() - target).mean()", "(sums.log() - target).sum()"),
        "It is the sum over tokens: divide by their number.",
    ),
    "the gradient that arrives is forgotten": (
        "losses",
        "parity",
        ("d * (gradient / own.numel())", "d / own.numel()"),
        "multiply by the gradient that arrives",
    ),
    "the softmax": (
        "losses",
        "parity",
        ("-own.unsqueeze(-1).to(softmax.dtype)", "0 * own.unsqueeze(-1).to(softmax.dtype)"),
        "differ",
    ),
    "both functions send both ways": (
        "messages_of_a_pair",
        "bytes",
        ("        return x.view_as(x)", "        return total(x, group) / place(group)[0]"),
        "one all-reduce of 120 bytes",
    ),
    "gathered scores": (
        "numbers_of_a_token",
        "bytes",
        (
            "        wide = scores if",
            "        dist.all_gather([torch.empty_like(scores) for _ in range(4)],"
            " scores.detach().contiguous(), group=group)\n        wide = scores if",
        ),
        "its largest score, the sum of its exponentials and its target's score are three",
    ),
    "up and gate enter on their own": (
        "bytes_of_a_block",
        "bytes",
        (
            "for module in (attention, mlp):",
            "for module in filter(None, (attention, mlp.up, mlp.gate)):",
        ),
        "Layers that take the same input enter once.",
    ),
    "whole weights": (
        "bytes_of_a_block",
        "bytes",
        ("    return block\n", "    block.whole = nn.Linear(16, 16)\n    return block\n"),
        "that stay whole",
    ),
    "no enter": (
        "blocks",
        "parity",
        ("lambda module, args: (enter(args[0], group),)", "lambda module, args: None"),
        "the gradient of the input of GPT-2's block",
    ),
    "scores of any size": (
        "wrong_scores",
        "faults",
        ("    if scores.shape[-1] != end - begin:", "    if False:"),
        "should raise ValueError",
    ),
    "a loss in bf16": (
        "wrong_scores",
        "faults",
        ("wide = scores if scores.dtype is torch.float64 else scores.float()", "wide = scores"),
        "sums of exponentials need fp32",
    ),
    "any token": (
        "unknown_tokens",
        "faults",
        ("        check(ids, self.vocabulary)\n", ""),
        "should raise IndexError or ValueError",
    ),
    "heads that are cut": (
        "heads_that_cannot_be_cut",
        "faults",
        ("    if heads % n:", "    if False:"),
        "split_block of 8 heads on 3 ranks should raise ValueError",
    ),
    "frozen parts that are trained": (
        "frozen_parts",
        "faults",
        (".clone(), p.requires_grad)", ".clone())"),
        "of a frozen attention is trained after split_block",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(4), TOPIC, SOLUTION, WRONG[name])
