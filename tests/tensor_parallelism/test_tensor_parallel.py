"""Tensor and sequence parallelism against the plain model: loss and every gradient; bytes kept and
sent; what is refused.

Each rank draws its model from a seed of its own, so that only rank 0's values, handed out, give the
plain model's. Biases are drawn too, the vocabulary is odd, dropout is on. Sums over ranks are made
in another order than the plain model's, hence 1e-12 and not equality; float64 throughout.
"""

import sys
from contextlib import ExitStack

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.ranks import ranks
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.whole import cuts_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CLOSE = 1e-12
WAYS = ("tensor", "sequence", "sequence, gathered again")


@pytest.fixture(scope="module")
def worlds():
    """One of each size for all tests."""
    with ExitStack() as stack:
        started = {}

        def world_of(n):
            if n not in started:
                started[n] = stack.enter_context(ranks(n, device="cpu", announce=False))
            return started[n]

        yield world_of


@pytest.fixture(params=(2, 3, 4))
def world(request, worlds):
    return worlds(request.param)


def gpt_2(n, **others):
    """Heads of an odd size, an MLP and a vocabulary that no number of ranks divides."""
    sizes = dict(layers=2, hidden=6 * n, heads=2 * n, feed_forward=29, vocabulary=101)
    return GPTConfig(**{**sizes, "max_sequence": 4 * n, "dropout": 0.1, **others})


def llama(n, **others):
    """Two queries share a key."""
    sizes = dict(hidden=4 * n, heads=2 * n, key_value_heads=n, biases=0, gated_mlp=1, tied_head=0)
    return gpt_2(n, **{**sizes, "learned_positions": 0, "dropout": 0.0, **others})


MODELS = {
    "GPT-2": gpt_2,
    "GPT-2, not tied, fused attention": lambda n: gpt_2(n, tied_head=0, dropout=0.0),
    "Llama": llama,
    "Llama, tied, dropout": lambda n: llama(n, tied_head=1, dropout=0.1),
}


def plan_of(config, way):
    plan = gpt_plan(config)
    return plan if way == "tensor" else sequence_parallel(plan, regather="again" in way)


def drawn(config, seed):
    """A model with every parameter drawn at random, biases and norms too."""
    torch.manual_seed(seed)
    model = GPT(config).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batch_of(config, n, seed=3):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocabulary, (2, 3, 2 * n), generator=draw)


def far(ours, plain):
    return ((ours - plain).abs().max() / plain.abs().max()).item()


def errors(config, way):
    """On a rank: how far loss and each gradient are from the plain model's."""
    torch.set_num_threads(1)
    me, n = dist.get_rank(), dist.get_world_size()
    tokens, targets = batch_of(config, n)
    model = drawn(config, seed=100 + me)
    torch.manual_seed(5 + me)
    apply_tensor_parallel(model, plan_of(config, way))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = vocabulary_parallel_loss(model(tokens), targets, config.vocabulary)
    loss.backward()
    if way != "tensor":
        sum_gradients(optimizer)
    plain = drawn(config, seed=100)
    torch.manual_seed(5)
    plain_loss = next_token_loss(plain(tokens), targets)
    plain_loss.backward()
    found = {"loss": far(loss, plain_loss)}
    whole, cuts = dict(plain.named_parameters()), {name: cut for name, cut, _ in cuts_of(model)}
    for name, parameter in model.named_parameters():
        gradient = whole.pop(name).grad
        if name in cuts:
            gradient = cuts[name].part(gradient, me, n)
        assert gradient.shape == parameter.grad.shape, name
        found[name] = far(parameter.grad, gradient)
    assert not whole
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_parity(world, model, way):
    """Loss and every gradient are the plain model's.

    Must catch: a collective left out or made twice, forward or backward; a bias added before the
    sum; heads cut through; a mask off by one; a mask of dropout that depends on the ranks;
    gradients of norms that are not summed."""
    config = MODELS[model](world.world_size)
    for found in world.run(errors, config, way):
        assert {name: error for name, error in found.items() if not error < CLOSE} == {}
