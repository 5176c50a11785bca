"""Rows that the ladder of data parallelism alone takes: right as the plain model, or one sentence;
how values are handed out, and how a bucket is filled. Rows of all techniques are in rows.md."""

from contextlib import nullcontext

import pytest
import tables
import torch
import torch.distributed as dist
from operators import Operators
from tables import Beside, check, loss_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from ranklab.measure.communication import CommunicationLog
from shardlab.common import agreement
from shardlab.common.torch_internals import FakeTensorMode, changes_arguments
from shardlab.data_parallel import FlatBucket

LADDER = tables.REPLICAS[1:]  # without the server


class Towers(nn.Module):
    """Two encoders in one module, each called by itself."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(7, 5), nn.Linear(7, 5)

    def forward(self, x, which):
        return getattr(self, which)(x)


def recomputed(door):
    """Must catch: a recomputed forward that ends the backward under way, whose buckets are lost."""
    beside = Beside(door, Towers)

    def both(model, x):
        x = x.requires_grad_()
        return sum(checkpoint(model, x, w, use_reentrant=False).pow(2) for w in ("image", "text"))

    for _ in range(3):  # it was a race
        x = beside.inputs()
        loss_of(both(beside.model, door.part(x).clone())).backward()
        loss_of(both(beside.plain, x.clone())).backward()
    beside.step()
    return beside.verdict()


def without_a_name(door):
    """Must catch: replicas that are gone before backward, since nothing in the graph holds them."""
    beside = Beside(door)
    x = beside.inputs()
    y, beside.model = beside.model(door.part(x)), None
    loss_of(y).backward()
    loss_of(beside.plain(x)).backward()
    beside.step()
    return beside.verdict()


def accumulated(door):
    """Three backwards, one under no_sync, and autograd.grad after each. Must catch: a server that
    divides once more what is a mean already, or multiplies a mean to which autograd.grad adds
    nothing."""
    beside = Beside(door)
    for number in range(3):
        with beside.model.no_sync() if number == 1 else nullcontext():
            beside.backward()
        every = list(beside.net.parameters())
        for asked in (every, every[:1]):
            loss = loss_of(beside.model(door.part(beside.inputs())))
            torch.autograd.grad(loss, asked, create_graph=number > 0)
    beside.step()
    return beside.verdict()


def stepped_within_backward(door):
    """Must catch: steps by each rank's own gradient."""
    beside = Beside(door)
    for parameter in beside.net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    beside.backward()


def more_after_its_bucket_had_left(door):
    """A layer in two reentrant checkpoints: its gradient comes twice, by backwards within backward.

    Must catch: a gradient that is added to what the others are reducing."""
    beside = Beside(door, lambda: nn.Linear(5, 5))
    x = beside.inputs().requires_grad_()
    inner, twice = beside.net.forward, lambda x: checkpoint(inner, x, use_reentrant=True)
    beside.net.forward = lambda x: twice(torch.tanh(twice(x)))
    beside.door.backward(beside.model, x)


ROWS = tables.takes(
    tables.REPLICAS,
    accumulated,
    without_a_name,
    (recomputed, {"server": None}),
    (
        stepped_within_backward,
        {
            **dict.fromkeys(
                LADDER, "NotOurGradient: a hook took away the gradient of a parameter of"
            ),
            "server": None,
        },
    ),
)
ROWS += tables.takes(
    (),
    (
        more_after_its_bucket_had_left,
        {"replicas": "CannotReplicate: ...more gradient after its bucket had left"},
    ),
)


@pytest.mark.parametrize("door, row, args, expected", ROWS)
def test_a_row(worlds, door, row, args, expected):
    """Must catch: what the row says."""
    check(worlds(2, patience_seconds=30), door, row, args, expected)


def handed_out():
    """(values alike on all ranks, messages sent): 40 small tensors, of two dtypes and odd strides,
    and one that is larger than a message."""
    torch.manual_seed(dist.get_rank())
    large = torch.randn(agreement.TOGETHER_BYTES // 4 + 1)
    tensors = [torch.randn(3 + k % 2, dtype=torch.float64) for k in range(36)]
    tensors += [torch.randn(5, 4).t(), torch.randn(3, 1).expand(3, 7), torch.randn(2, 6)[:, ::2]]
    tensors += [torch.randn(0), torch.randn(()), large]
    with CommunicationLog() as log:
        agreement.hand_out(iter(tensors), None)
    return [tensor.tolist() for tensor in tensors[:-1]] + [large.sum().item()], len(log.messages)


def test_small_tensors_are_handed_out_together(worlds):
    """Must catch: a message for each parameter of a model, each of them as slow as its latency; the
    pieces of a message in other tensors; a large tensor copied."""
    (first, messages), (second, _) = worlds(2).run(handed_out)
    assert first == second and messages == 3


def test_a_bucket_is_filled_by_a_few_launches():
    """Must catch: a launch for the division of each gradient on a GPU."""
    counts = {}
    for many in (2, 40):
        with FakeTensorMode(), Operators() as operators:
            weights = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(many)]
            for weight in weights:
                weight.grad = torch.ones(3, device="cuda")
            operators.seen.clear()
            FlatBucket(weights, 3)
        counts[many] = sum(changes_arguments(one) for one, _ in operators.seen)
    assert counts[40] == counts[2] <= 4
