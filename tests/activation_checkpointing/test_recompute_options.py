"""Selective checkpoints, activations on the host, and which layers: bits of the plain model, bytes,
and what is refused."""

import copy
from functools import partial
from itertools import product

import pytest
import torch
from operators import Operators
from test_recompute import SMALL, chain, gpt, same, step, x_of
from torch import nn

from ranklab.measure.ledger import Ledger
from shardlab.common.torch_internals import FUSED_ATTENTION
from shardlab.gpt import GPT, Block, CoreAttention, GPTConfig, next_token_loss
from shardlab.recompute import CheckpointError, checkpoint
from shardlab.recompute.core import checkpoint_by_function
from shardlab.recompute.host_copies import Copies
from shardlab.recompute.layers import checkpoint_modules
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.selective import EXPENSIVE, PRODUCTS, checkpoint_selective

pytestmark = pytest.mark.usefixtures("one_thread")


# --- selective ------------------------------------------------------------------------------------


def test_kept_operators_run_once():
    """Must catch: a product made although it was kept; a second backward that takes what is gone,
    or the output of another call."""
    layers, function = chain()
    x = x_of()
    y = checkpoint_selective(function, x).sum()
    for backward in range(2):
        with Operators() as operators:
            y.backward(retain_graph=True)
        ran = sum(one.overloadpacket in PRODUCTS for one, _ in operators.seen)
        assert ran == (6 if backward else 4)  # each layer's backward has two products
    once = torch.autograd.grad(layers(x).sum(), x)[0]
    assert torch.equal(x.grad, once + once)


class ProductInto(torch.autograd.Function):
    """A product in memory that was there before, as of layers whose messages overlap."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        y = torch.full_like(x, 9.0)
        torch.mm(x.sin(), weight, out=y)  # of which nothing is left
        torch.mm(x, weight, out=y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return dy @ weight.t(), x.t() @ dy


@pytest.mark.parametrize("keep", [EXPENSIVE, (*EXPENSIVE, torch.ops.aten.addmm_)])
def test_an_output_that_is_changed_in_place_is_made_again(keep):
    """Must catch: a product kept after something was added to it, to which the second run adds it
    again; a change through a view that has another counter of versions; memory that the second run
    does not write, since the product that was written there is kept."""
    weight = torch.randn(4, 4, dtype=torch.double, requires_grad=True)

    def function(x):
        y = x @ weight
        y.view(-1).detach().add_(1.0)
        z = (x.tanh() @ weight).add_(x)
        z = z + ProductInto.apply(x.cos(), weight)
        return (y.exp() * z.sin().addmm_(x, weight)).sin()

    gradients = []
    for call in (partial(checkpoint_selective, keep=keep), lambda f, x: f(x)):
        x, weight.grad = x_of(), None
        call(function, x).sum().backward()
        gradients.append((x.grad, weight.grad))
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_selective_inside_a_checkpoint_keeps_nothing():
    """Must catch: outputs kept by a list of Python's, which the outer checkpoint cannot drop."""
    _, function = chain()
    x, kept = x_of(), []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda _: None):
        checkpoint(lambda x: checkpoint_selective(function, x), x)
    assert sum(tensor.numel() for tensor in kept) == x.numel()
    x = x_of()
    checkpoint(lambda x: checkpoint_selective(function, x), x).sum().backward()
    assert torch.equal(x.grad, torch.autograd.grad(function(x).sum(), x)[0])


def test_a_backward_inside_of_the_function():
    """Must catch: a second run within the first, whose products are counted as the first run's, so
    that gradients are made with others."""
    layer, x = nn.Linear(6, 6), torch.randn(4, 6)

    def force(x):
        z = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(z).pow(3).sum(), z, create_graph=True)
        return layer(x).tanh() + gradient.sin()

    gradients = []
    for call in (force, partial(checkpoint, force)):
        layer.zero_grad()
        call(x).sum().backward()
        gradients.append(layer.weight.grad)
    assert torch.equal(*gradients)
    with pytest.raises(CheckpointError, match="the function goes backward itself"):
        checkpoint_selective(force, x)


def test_attention_that_drops_is_not_kept():
    """Must catch: the output of a kernel that draws random numbers kept, so that later draws
    differ in the second run."""
    from shardlab.recompute.selective import draws

    kernel = next(op for op in FUSED_ATTENTION if "for_cpu" in str(op)).default
    q = torch.randn(1, 1, 4, 4)
    assert draws(kernel, (q, q, q, 0.1, True), {}) and draws(kernel, (q, q, q), {"dropout_p": 0.1})
    assert not draws(kernel, (q, q, q), {}) and not draws(kernel, (q, q, q, 0.0, True), {})


# --- which layers ---------------------------------------------------------------------------------


def test_modules_of_a_kind():
    """Must catch: names of parameters that change; a forward that is the original's in a copy."""
    for kind, by in product((CoreAttention, Block), (checkpoint, checkpoint_by_function)):
        ours, plain = gpt(fused_attention=False), gpt(fused_attention=False)
        checkpoint_modules(ours, kind, by)
        copied = copy.deepcopy(ours)
        same(step(ours), step(plain))
        assert list(ours.state_dict()) == list(plain.state_dict())
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter.zero_()
        assert step(copied)[0] == step(plain)[0]


# --- on the host ----------------------------------------------------------------------------------


class NumPyCopies(Copies):
    """A host whose memory the ledger does not see."""

    def out(self, flat):
        return flat.numpy().copy()

    def back(self, host, device):
        return torch.empty(len(host), dtype=torch.from_numpy(host).dtype).copy_(
            torch.from_numpy(host)
        ), None


def test_what_is_moved_and_what_stays(monkeypatch):
    """Must catch: parameters that travel as a transpose; a storage that travels for each of its
    views; a copy on the device that stays until the graph is gone."""
    monkeypatch.setattr("shardlab.recompute.host_copies.Copies", NumPyCopies)
    config = GPTConfig(**{**SMALL, "dropout": 0.0, "layers": 6, "hidden": 64})
    model = GPT(config)
    tokens = torch.zeros(8, 16, dtype=torch.long)
    rows = []
    for ahead in (None, 0, 2):
        model.zero_grad()
        with Ledger(model) as ledger:
            if ahead is None:
                loss, moved = next_token_loss(model(tokens), tokens), 0
            else:
                with offload_activations(0, ahead) as offload:
                    loss = next_token_loss(model(tokens), tokens)
                moved = offload.moved_bytes
            rows.append((ledger.bytes.activations, moved))
            loss.backward()
            rows[-1] += (ledger.peak.bytes.total,)
    (kept, _, peak), (none, moved, least), (_, _, more) = rows
    assert none == 0 and moved == kept
    assert least < 0.6 * peak and least < more < peak


def test_small_ones_stay():
    """Must catch: a bound that is asked of a view, not of its storage; the bound turned round."""
    model = gpt(dropout=0.0)
    tokens = torch.zeros(3, 7, dtype=torch.long)
    with Ledger(model) as ledger, offload_activations(least_bytes=3 * 7 * 24 * 8) as offload:
        loss = next_token_loss(model(tokens), tokens)
        stays = ledger.bytes.activations
    assert offload.moved_bytes > 0 and stays > 0
    loss.backward()


def test_a_second_backward_fetches_again():
    """Must catch: an activation that is gone after its first use, or that stays on the device
    after its last one while the graph is alive."""
    _, function = chain()
    x = x_of()
    with offload_activations(0) as offload:
        y = function(x).sum()
    y.backward(retain_graph=True)
    first = x.grad.clone()
    moved = [each() for each in offload.order]
    assert moved and all(each.back is None for each in moved)
    y.backward()
    assert torch.equal(x.grad, 2 * first)


def test_what_stays_is_still_checked():
    """Must catch: a parameter changed between forward and backward, whose gradient is then of
    another weight."""
    layers, function = chain()
    with offload_activations(0):
        y = function(x_of()).sum()
    with torch.no_grad():
        layers[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
