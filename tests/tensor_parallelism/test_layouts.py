"""Tensor parallelism beside data parallelism and ZeRO: a whole training on 4 and 8 ranks, against
the plain model on the whole batch, with gradients clipped on the way."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from shardlab import zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mesh import Mesh
from shardlab.ranks import ranks
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.full_parameters import whole_state_dict
from shardlab.zero.full_parameters import unsharded

cloudpickle.register_pickle_by_value(sys.modules[__name__])
SGD = dict(lr=0.2, momentum=0.9)
CONFIG = GPTConfig(
    layers=2, hidden=24, heads=8, key_value_heads=4, feed_forward=29, vocabulary=101, max_sequence=8
)


@pytest.fixture(scope="module", params=(4, 8))
def world(request):
    with ranks(request.param, device="cpu", announce=False) as world:
        yield world


def drawn(seed):
    torch.manual_seed(seed)
    model = GPT(CONFIG).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batches(steps, parts):
    draw = torch.Generator().manual_seed(3)
    return torch.randint(CONFIG.vocabulary, (steps, 2, parts, 2, 8), generator=draw)


def trained(stage, dp, tp, sequence):
    """On a rank: (largest norm difference, largest difference of a parameter) after two steps."""
    torch.set_num_threads(1)
    mesh, plan = Mesh(dp=dp, tp=tp), gpt_plan(CONFIG)
    model = drawn(seed=100 + torch.distributed.get_rank())
    if mesh.dp.rank == mesh.tp.rank == 0:
        model = drawn(seed=100)
    apply_tensor_parallel(model, sequence_parallel(plan) if sequence else plan, mesh.tp.group)
    net = model
    model, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, group=mesh.dp.group, **SGD)
    plain = drawn(seed=100)
    plain_optimizer = torch.optim.SGD(plain.parameters(), **SGD)
    worst = 0.0
    for inputs, targets in batches(2, dp):
        scores = model(inputs[mesh.dp.rank])
        vocabulary_parallel_loss(
            scores, targets[mesh.dp.rank], CONFIG.vocabulary, mesh.tp.group
        ).backward()
        if sequence:
            sum_gradients(optimizer, mesh.tp.group)
        if sequence and stage in (0, 3):  # PyTorch's, which knows the parts
            norm = clip_grad_norm_(model.parameters(), 0.5)
        else:
            norm = clip_gradients(optimizer, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        next_token_loss(plain(inputs.flatten(0, 1)), targets.flatten(0, 1)).backward()
        plain_norm = clip_grad_norm_(plain.parameters(), 0.5)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        worst = max(worst, abs(norm / plain_norm - 1).item())
    if stage == 3:
        with unsharded(net):
            found = whole_state_dict(net)
    else:
        found = whole_state_dict(net)
    want = plain.state_dict()
    assert found.keys() == want.keys()
    return worst, max(
        ((found[name] - want[name]).abs().max() / want[name].abs().max()).item() for name in want
    )


@pytest.mark.parametrize("sequence", (False, True), ids=("tensor", "sequence"))
@pytest.mark.parametrize("stage", (0, 1, 2, 3))
def test_training_beside_zero(world, stage, sequence):
    """Two clipped steps of momentum, on parts of the batch, are the plain model's on all of it.

    Must catch: squares of a norm added over data parallelism alone, or of what tensor parallelism
    replicates added twice, by our clipping or by PyTorch's; cut and whole parameters in one flat
    tensor; gradients of own tokens not summed, or not those of shards; stages that hand out values
    across tensor-parallel ranks."""
    layouts = {4: ((2, 2),), 8: ((4, 2), (2, 4))}[world.world_size]
    for dp, tp in layouts:
        for found in world.run(trained, stage, dp, tp, sequence):
            assert max(found) < 1e-12, (dp, tp)
