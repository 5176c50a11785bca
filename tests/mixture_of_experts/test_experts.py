"""A mixture of experts beside loops over tokens, and on ranks beside one process: outputs, every
gradient, loads; what drops, what balances.

Sums over ranks and over a token's rows are made in another order than in one process, hence 1e-12
of the largest element; float64 throughout, with random biases.
"""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from shardlab.experts.core import mixtures, move_biases
from shardlab.experts.core_parallel import average_gradients, expert_parallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mesh import Mesh

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SIZES = dict(layers=2, hidden=12, heads=2, feed_forward=20, vocabulary=31, max_sequence=9)
LLAMA = dict(learned_positions=0, biases=0, gated_mlp=1, tied_head=0)
KINDS = {  # sizes, settings of routers, capacity
    "top 2": (dict(experts=12, experts_per_token=2), {}, None),
    "top 1, shared": (dict(LLAMA, experts=12, experts_per_token=1, shared_experts=2), {}, None),
    "sigmoid, losses, bias": (
        dict(LLAMA, experts=12, experts_per_token=3, shared_experts=1),
        dict(sigmoid=True, balance=0.3, z=0.2, bias_step=0.5),
        None,
    ),
    "capacity": (dict(experts=12, experts_per_token=2), dict(z=0.3), 1.0),
}


def model_of(kind, **changes):
    sizes, settings, capacity = KINDS[kind]
    torch.manual_seed(0)
    model = GPT(GPTConfig(**{**SIZES, **sizes, **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    for layer in mixtures(model):
        layer.capacity = capacity
        vars(layer.router).update(settings)
        layer.router.moves += torch.randint(-2, 3, layer.router.moves.shape)
    return model


def batch_of(ranks, sequences=2):
    tokens = torch.randint(
        31, (2, ranks * sequences, 9), generator=torch.Generator().manual_seed(1)
    )
    return tokens


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(found, right, where=""):
    assert found.shape == right.shape, where
    scale = right.abs().max().clamp(min=1e-6)
    assert (found - right).abs().max() <= 1e-12 * scale, where


# --- on ranks -------------------------------------------------------------------------------------


def in_one_process(kind, ranks):
    """The whole batch at once; under a capacity each rank's part, because each rank drops."""
    model, outputs = model_of(kind), []
    parts = 1 if KINDS[kind][2] is None else ranks
    for layer in mixtures(model):
        layer.router.loss_scale = 1 / parts
    for inputs, targets in zip(*(x.chunk(parts) for x in batch_of(ranks))):
        output = model(inputs)
        (next_token_loss(output, targets) / parts).backward()
        outputs += output.detach().chunk(ranks // parts)
    loads = [layer.router.load.clone() for layer in mixtures(model)]
    move_biases(model)
    moves = [layer.router.moves for layer in mixtures(model)]
    return outputs, gradients(model), loads, moves


def on_a_rank(kind):
    torch.set_num_threads(1)
    n, me = dist.get_world_size(), dist.get_rank()
    model = expert_parallel(model_of(kind))
    inputs, targets = (x.chunk(n)[me] for x in batch_of(n))
    output = model(inputs)
    next_token_loss(output, targets).backward()
    average_gradients(model, replicas=Mesh(dp=n).tp.group)  # of this rank alone
    loads = [layer.router.total(layer.router.load) for layer in mixtures(model)]
    move_biases(model)
    moves = [layer.router.moves for layer in mixtures(model)]
    return output.detach(), gradients(model), loads, moves


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_parity(worlds, n, kind):
    """Must catch: experts averaged over all ranks, or not divided by their degree; a balance loss
    of a rank's own counts; a choosing bias that gets into the gates; rows that come back in the
    order of ranks; a loss that a rank joins as a sum."""
    outputs, right, loads, moves = in_one_process(kind, n)
    for rank, (output, found, own_loads, own_moves) in enumerate(worlds(n).run(on_a_rank, kind)):
        assert_same(output, outputs[rank], "output")
        assert all(map(torch.equal, own_loads, loads))
        assert all(map(torch.equal, own_moves, moves))
        for name, gradient in found.items():
            want = right[name]
            if "experts." in name:
                want = want.chunk(n)[rank]
            assert_same(gradient, want, name)
