"""Where data parallelism was wrong without a word: now the plain model's result, or one sentence.

Each test but the last has a case that once returned a wrong number, or raised PyTorch's own words.
The other cases, and the last test, were right before and stay right.
"""

import copy
import io
import sys
from contextlib import nullcontext

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab.common import agreement
from shardlab.common.backward import NotOurGradient
from shardlab.common.torch_internals import FakeTensorMode, TorchDispatchMode, changes_arguments
from shardlab.data_parallel import (
    Bucketed,
    CannotReplicate,
    DistributedDataParallel,
    FlatBucket,
    ParameterServer,
    PerTensor,
)
from shardlab.measure.communication import CommunicationLog
from shardlab.ranks import ranks

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two():
    with ranks(2, device="cpu", announce=False) as world:
        yield world


def layers(*sizes):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))


def own_input(features):
    """1, 1, ... on rank 0; 2, 2, ... on rank 1: the mean is 1.5."""
    return torch.full((1, features), 1.0 + dist.get_rank())


def gradients_beside(net, loss):
    """Largest difference of a gradient from the plain model's, of which `loss(model, x)` is the
    loss; the model has been through its backward."""
    n = dist.get_world_size()
    plain = copy.deepcopy(net).double()
    plain.zero_grad()
    inputs = [torch.full((1, 64), 1.0 + rank, dtype=torch.float64) for rank in range(n)]
    (sum(loss(plain, x) for x in inputs) / n).backward()
    pairs = zip(net.parameters(), plain.parameters())
    return max((ours.grad - theirs.grad).abs().max().item() for ours, theirs in pairs)


def summed(model, x):
    return model(x).sum()


def wrapped_anew(first, second):
    net = layers(64, 64, 64, 64).double()
    kept = first(net)(own_input(64).double())  # an output of the cell's first run is still there
    model = second(net)
    summed(model, own_input(64).double()).backward()
    return kept.numel(), gradients_beside(net, summed)


SMALL = 1000


def small(net):
    return DistributedDataParallel(net, SMALL)


@pytest.mark.parametrize(
    "first, second",
    [
        (small, small),
        (Bucketed, small),
        (PerTensor, Bucketed),
        *((ParameterServer, kind) for kind in (small, Bucketed, PerTensor)),
    ],
)
def test_replicas_made_anew(two, first, second):
    """Two replicas of one module are alive: the newest average, once.

    Must catch: both average, so that gradients are divided twice or summed where nobody waits."""
    for _, difference in two.run(wrapped_anew, first, second):
        assert difference < 1e-12


def older_replicas():
    net = layers(4, 2)
    older, newer = DistributedDataParallel(net), DistributedDataParallel(net)
    with torch.no_grad():
        older(own_input(4))  # nothing to average
    newer(own_input(4)).sum().backward()
    try:
        older(own_input(4))
    except CannotReplicate as error:
        return str(error)


def test_older_replicas_refuse(two):
    """Must catch: older replicas that compute and average nothing."""
    assert (
        two.run(older_replicas)
        == ["a newer DistributedDataParallel averages gradients of this module: call that one."] * 2
    )


class Towers(nn.Module):
    """Two encoders in one module, each called by itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x, which):
        return getattr(self, which)(x)


def both_towers(model, x):
    recomputed = (
        checkpoint(model, x.clone().requires_grad_(), which, use_reentrant=False)
        for which in ("image", "text")
    )
    return sum(y.pow(2).sum() for y in recomputed)


def recomputed_replicas(kind):
    net = Towers().double()
    model = kind(net)
    both_towers(model, own_input(64).double()).backward()
    return gradients_beside(net, both_towers)


@pytest.mark.parametrize("kind", [small, Bucketed, PerTensor])
def test_a_forward_within_backward(two, kind):
    """Replicas that are called twice and recomputed.

    Must catch: the recomputed forward ends the backward under way, whose buckets are lost."""
    for _ in range(3):  # it was a race
        assert max(two.run(recomputed_replicas, kind)) < 1e-12


def copied(way):
    model = DistributedDataParallel(layers(4, 2))
    if way == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    twin(own_input(4)).sum().backward()
    of_the_copy = twin.module[0].weight.grad.unique().tolist()
    untouched = model.module[0].weight.grad is None
    model(own_input(4)).sum().backward()
    return of_the_copy, untouched, model.module[0].weight.grad.unique().tolist()


@pytest.mark.parametrize("way", ["deepcopy", "load"])
def test_a_copy_averages(two, way):
    """And the original goes on.

    Must catch: a copy without hooks, whose gradients are each rank's own."""
    assert two.run(copied, way) == [([1.5], True, [1.5])] * 2


def copied_in_a_group():
    model = DistributedDataParallel(layers(4, 2), group=dist.new_group([0, 1]))
    try:
        copy.deepcopy(model)
    except CannotReplicate as error:
        return str(error)


def test_a_copy_in_a_group_of_its_own_is_refused(two):
    """PyTorch's refuses alike. Must catch: PyTorch's own words about pickling a C++ object."""
    for sentence in two.run(copied_in_a_group):
        assert sentence.startswith("these replicas have a process group of their own")


def changed(what):
    net = layers(4, 3, 2)
    net[0].weight.requires_grad_(what != "unfrozen")
    model = DistributedDataParallel(net)
    if what == "unfrozen":
        net[0].weight.requires_grad_()
    if what == "assigned":
        state = {name: value.clone() for name, value in net.state_dict().items()}
        model.load_state_dict(state, assign=True)
    if what == "frozen":
        net[0].weight.requires_grad_(False)
    try:
        model(own_input(4)).sum().backward()
    except CannotReplicate as error:
        return str(error)
    return net[0].weight.grad, net[1].bias.grad.tolist()


def test_a_module_that_changed(two):
    """A parameter that is trained and has no hook is named; a frozen one has no gradient.

    Must catch: gradients of each rank's own, and copies that drift apart."""
    sentence = (
        "0.weight is trained, and was frozen or another parameter when these replicas were made:"
        " make them anew after a change to the module."
    )
    assert two.run(changed, "unfrozen") == [sentence] * 2
    assert two.run(changed, "assigned") == [sentence] * 2
    assert two.run(changed, "frozen") == [(None, [1.0, 1.0])] * 2


def accumulated(kind):
    """Largest difference of a gradient after three backwards, one of them under no_sync, with
    nothing set to zero between them, and with gradients of autograd.grad after each."""
    net = layers(64, 64, 64).double()
    model, plain = kind(net), copy.deepcopy(net)
    for number in range(3):
        with model.no_sync() if number == 1 else nullcontext():
            model(own_input(64).double() + number).sum().backward()
        inputs = [torch.full((1, 64), 1.0 + r + number, dtype=torch.float64) for r in range(2)]
        (sum(plain(x).sum() for x in inputs) / 2).backward()
        for asked in (list(net.parameters()), [net[0].weight]):
            loss = model(own_input(64).double()).square().sum()
            torch.autograd.grad(loss, asked, create_graph=number > 0)
    pairs = [(p.grad, q.grad) for p, q in zip(net.parameters(), plain.parameters())]
    return [(a - b).abs().max().item() for a, b in pairs if a is not None]


@pytest.mark.parametrize("kind", [ParameterServer, PerTensor, Bucketed, small])
def test_accumulation_with_messages(two, kind):
    """Several backwards that all send add up, also where the server alone has the sum.

    Must catch: a server that divides once more what is a mean already, or multiplies a mean to
    which autograd.grad adds nothing."""
    first, second = two.run(accumulated, kind)
    assert len(first) == 4 and max(first + second) < 1e-10


def strided():
    net = layers(3, 3)
    me = dist.get_rank()
    net.register_buffer("part", (torch.arange(16.0).view(4, 4) + 100 * me)[:, :2])
    net.register_buffer("repeated", torch.full((1,), 1.0 + me).expand(200_000))
    net[0].weight = nn.Parameter((torch.arange(9.0).view(3, 3) + me).t(), requires_grad=False)
    DistributedDataParallel(net)
    return net.part.tolist(), net.repeated.unique().tolist(), net[0].weight.tolist()


def test_buffers_and_frozen_parameters_of_any_strides(two):
    """All ranks begin with rank 0's values, element by element.

    Must catch: the memory behind a strided tensor sent instead of its elements; an expanded tensor
    written past its end."""
    want = torch.arange(16.0).view(4, 4)[:, :2].tolist()
    transposed = torch.arange(9.0).view(3, 3).t().tolist()
    assert two.run(strided) == [(want, [1.0], transposed)] * 2


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


def test_small_tensors_are_handed_out_together(two):
    """Must catch: a message for each parameter of a model, each of them as slow as its latency; the
    pieces of a message in other tensors; a large tensor copied."""
    (first, messages), (second, _) = two.run(handed_out)
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


def large_in_16_bits(kind):
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float16)
    model = kind(layer)
    model(torch.full((1, 1), 40_000.0, dtype=torch.float16)).sum().backward()
    return None if layer.weight.grad is None else layer.weight.grad.item()


def test_16_bits_do_not_overflow(two):
    """2 x 40,000 is more than fp16 has numbers for; their mean is not.

    Must catch: a sum that is divided after it was added."""
    for kind in (PerTensor, Bucketed, DistributedDataParallel):
        assert two.run(large_in_16_bits, kind) == [40_000.0] * 2
    assert two.run(large_in_16_bits, ParameterServer) == [40_000.0, None]


# --- hooks of the reader's, graphs of gradients ---------------------------------------------------


def masked(kind, when):
    """Largest gradient in the row that a hook sets to zero, and elsewhere."""
    net = layers(64, 64, 64)

    def mask(parameter):
        parameter.grad[0] = 0

    if when == "before":
        net[0].weight.register_post_accumulate_grad_hook(mask)
    model = kind(net)
    if when == "after a step":
        model(own_input(64)).sum().backward()
        model.zero_grad()
    if when != "before":
        net[0].weight.register_post_accumulate_grad_hook(mask)
    model(own_input(64)).sum().backward()
    gradient = net[0].weight.grad
    return None if gradient is None else (gradient[0].abs().max().item(), gradient[1:].std() > 0)


@pytest.mark.parametrize("kind", [ParameterServer, PerTensor, Bucketed, small])
def test_a_hook_that_changes_a_gradient(two, kind):
    """It sees this rank's own gradient, whenever it was registered. PyTorch's does the same.

    Must catch: a gradient that is changed while its sum is under way, or after this rank's part has
    left."""
    for when in ("before", "after", "after a step"):
        for found in two.run(masked, kind, when):
            assert found in ((0.0, True), None), when


def stepped_within_backward(kind):
    net = layers(4, 2)
    model = kind(net)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    try:
        model(own_input(4)).sum().backward()
    except NotOurGradient as error:
        return str(error)


def with_a_graph(kind):
    net = layers(4, 2)
    try:
        kind(net)(own_input(4)).pow(2).sum().backward(create_graph=True)
    except NotOurGradient as error:
        return str(error)


def test_gradients_that_cannot_be_averaged(two):
    """Optimizers that step within backward, and create_graph=True, of which PyTorch's own makes
    copies that drift apart, the latter with a warning.

    Must catch: steps by each rank's own gradient; a penalty on a gradient that has lost its
    graph."""
    for kind in (small, PerTensor):
        for sentence in two.run(stepped_within_backward, kind):
            assert sentence.startswith("a hook took away the gradient of a parameter of shape [")
        for sentence in two.run(with_a_graph, kind):
            assert sentence.startswith("backward(create_graph=True): ")


def unready(kind):
    made = dict(
        lazy=lambda: nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)),
        twice=lambda: nn.Sequential(DistributedDataParallel(layers(4, 2))),
        # on one rank: the other would wait
        uneven=lambda: nn.LazyLinear(2) if dist.get_rank() else nn.Linear(4, 2),
    )
    try:
        DistributedDataParallel(made[kind]())
    except CannotReplicate as error:
        return str(error)


def test_modules_that_are_not_ready(two):
    """Must catch: PyTorch's words about load_state_dict; replicas of replicas, whose inner ones
    say that a newer one averages."""
    assert (
        two.run(unready, "lazy")
        == ["rank 0: 0.weight has no shape yet: call the module once first."] * 2
    )
    assert (
        two.run(unready, "uneven")
        == ["rank 1: weight has no shape yet: call the module once first."] * 2
    )
    assert (
        two.run(unready, "twice")
        == ["rank 0: this Sequential has replicas in it already: make new ones of their .module."]
        * 2
    )
