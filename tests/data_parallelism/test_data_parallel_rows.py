"""Rows of tables.py that the ladder of data parallelism takes, and rows of its own: right as the
plain model, or one sentence; how values are handed out, and how a bucket is filled.
"""

import copy
import sys
from contextlib import nullcontext

import cloudpickle
import pytest
import tables
import torch
import torch.distributed as dist
from tables import (
    REPLICAS,
    RIGHT,
    Beside,
    assigned,
    by_the_former,
    check,
    copied,
    frozen_later,
    in_16_bits,
    loaded,
    loss_of,
    made_of,
    made_twice,
    masked,
    of_any_strides,
    sparse,
    takes,
    two_steps,
    unfrozen_later,
    with_a_graph,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from ranklab.measure.communication import CommunicationLog
from shardlab.common import agreement
from shardlab.common.torch_internals import FakeTensorMode, TorchDispatchMode, changes_arguments
from shardlab.data_parallel import DistributedDataParallel, FlatBucket

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(tables)
LADDER = REPLICAS[1:]  # without the server


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
    """Three backwards, one of them under no_sync, nothing set to zero between them, with gradients
    of autograd.grad after each.

    Must catch: a server that divides once more what is a mean already, or multiplies a mean to
    which autograd.grad adds nothing."""
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


def copied_in_a_group(door):
    """PyTorch's refuses alike. Must catch: PyTorch's own words about pickling a C++ object."""
    copy.deepcopy(DistributedDataParallel(nn.Linear(4, 2), group=dist.new_group([0, 1])))


NEWER = "CannotReplicate: a newer {} averages gradients of this module: call that one."
OTHER = "CannotReplicate: 0.weight is trained, and was frozen or another parameter when these"
OTHER += " replicas were made: make them anew after a change to the module."
NAMES = dict(zip(REPLICAS, ("ParameterServer", "PerTensor", "Bucketed", "DistributedDataParallel")))
ROWS = takes(
    REPLICAS,
    made_twice,
    (by_the_former, {door: NEWER.format(name) for door, name in NAMES.items()}),
    (unfrozen_later, dict.fromkeys(REPLICAS, OTHER)),
    (assigned, dict.fromkeys(REPLICAS, OTHER)),
    frozen_later,
    (copied, copy.deepcopy),
    (copied, loaded),
    accumulated,
    without_a_name,
    of_any_strides,
    *((masked, when) for when in ("before", "after", "after a step")),
    in_16_bits,
    (
        sparse,
        dict.fromkeys(REPLICAS, "CannotReplicate: a gradient is torch.sparse_coo"),
    ),
    (with_a_graph, dict.fromkeys(REPLICAS, "NotOurGradient: backward(create_graph=True): ")),
)
ROWS += takes(("core 0",), (copied, copy.deepcopy, {"core 3": RIGHT}), (copied, loaded))
ODD = {
    "another shape": "0 has weight [3, 2] torch.float64, rank 1 has weight [4, 2] torch.float64: ",
    "a layer more": "0 has nothing more, rank 1 has 1.weight [2, 2] torch.float64: all ranks",
    "another order": "0 has a.weight [6, 4] torch.float64, rank 1 has b.weight [4, 6]",
    "frozen on one rank": "0 has bias [2] torch.float64, rank 1 has bias [2] torch.float64 frozen:",
    "lazy": "0: 0.weight has no shape yet: call the module once first.",
    "lazy on one rank": "1: weight has no shape yet: call the module once first.",
    "no parameters": "0: no parameter of this Tanh requires a gradient: there is nothing to",
    "two devices": "0: the parameters are on 2 devices, cpu and meta: a replica has one.",
    "replicas inside": "0: this Sequential has replicas in it already: make new ones of their .mod",
    "rows that change": "1: 0 has max_norm = 1.0: each rank would shorten the rows of its own",
    "rows of bags": "1: 0 has max_norm = 1.0: each rank would shorten the rows of its own",
    "inference mode": "1: 0.weight was made in inference mode: make the module outside",
    "a table of inference mode": "0: table was made in inference mode: make the module outside",
}
ROWS += takes(
    (),
    *((made_of, name, {"replicas": f"CannotReplicate: rank {said}"}) for name, said in ODD.items()),
    (made_of, "frozen rows", {"replicas": "no word"}),
    (made_twice, "bucketed", {"replicas": RIGHT}),
    (made_twice, "per tensor", {"bucketed": RIGHT}),
    (made_twice, "server", dict.fromkeys(LADDER, RIGHT)),
    (recomputed, dict.fromkeys(LADDER, RIGHT)),
    (
        stepped_within_backward,
        dict.fromkeys(LADDER, "NotOurGradient: a hook took away the gradient of a parameter of"),
    ),
    (
        more_after_its_bucket_had_left,
        {"replicas": "CannotReplicate: ...more gradient after its bucket had left"},
    ),
    (
        copied_in_a_group,
        {"replicas": "CannotReplicate: these replicas have a process group of their own"},
    ),
)


@pytest.mark.parametrize("door, row, args, expected", ROWS)
def test_a_row(worlds, door, row, args, expected):
    """Must catch: what the row says."""
    check(worlds(2, patience_seconds=30), door, row, args, expected)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("door", REPLICAS)
def test_two_steps(worlds, door, n):
    """One rank alone, and an odd number. Other models are in test_random_models.py.

    Must catch: what the row says."""
    check(worlds(n), door, two_steps, (), RIGHT)


# --- how values are handed out, and how a bucket is filled ----------------------------------------


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
        with FakeTensorMode(), Launches() as launches:
            weights = [nn.Parameter(torch.ones(3, device="cuda")) for _ in range(many)]
            for weight in weights:
                weight.grad = torch.ones(3, device="cuda")
            launches.count = 0
            FlatBucket(weights, 3)
        counts[many] = launches.count
    assert counts[40] == counts[2] <= 4


class Launches(TorchDispatchMode):
    """Counts the operations that write."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += changes_arguments(function)
        return function(*args, **(kwargs or {}))
