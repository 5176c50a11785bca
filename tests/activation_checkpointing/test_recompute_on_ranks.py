"""Activation checkpointing under data parallelism and ZeRO: the plain model's parameters."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardlab import zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.ranks import ranks
from shardlab.recompute import checkpoint, checkpoint_by_function
from shardlab.recompute.hardened.determinism import CheckpointError
from shardlab.recompute.layers import checkpoint_every
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.selective import checkpoint_selective
from shardlab.zero.hardened.full_parameters import unsharded


@pytest.fixture(scope="module")
def pair():
    with ranks(2, device="cpu", announce=False, patience_seconds=30) as world:
        yield world


class Called(nn.Module):
    def __init__(self, call, layer):
        super().__init__()
        self.call, self.layer = call, layer

    def forward(self, x):
        return self.call(self.layer, x)


def gpt(kind):
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=3, hidden=12, heads=2, vocabulary=31, max_sequence=8, **kind))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.double()


def inside(model, call):
    """Checkpoints inside of units: each MLP."""
    for block in model.blocks:
        block.mlp = Called(call, block.mlp)


def around(model, call):
    model.blocks = nn.ModuleList(Called(call, block) for block in model.blocks)


def of_forward(model, call):
    for block in model.blocks:
        block.forward = partial(call, block.forward)


def in_groups(model, call):
    model.blocks = checkpoint_every(model.blocks, 2)


def far_from_plain(kind, stage, place, call, steps=2):
    """Largest difference of a parameter after steps of SGD with two microbatches on each rank."""
    n, me = dist.get_world_size(), dist.get_rank()
    plain, ours = gpt(kind), gpt(kind)
    torch.manual_seed(100 + me)
    units = [ours.embedding, *ours.blocks, ours.head] if stage == 3 else None
    if place is inside:
        place(ours, call)
    called, optimizer = zero.shard(ours, torch.optim.SGD, stage=stage, units=units, lr=0.1)
    if place is not inside:
        place(ours, call)
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    for number in range(steps):
        torch.manual_seed(number)
        batches = torch.randint(31, (2, n, 2, 8))
        for one in (optimizer, other):
            one.zero_grad()
        for microbatch in batches:
            rows = microbatch[me]
            (next_token_loss(called(rows[:, :-1]), rows[:, 1:]) / 2).backward()
            rows = microbatch.flatten(0, 1)
            (next_token_loss(plain(rows[:, :-1]), rows[:, 1:]) / 2).backward()
        for one in (optimizer, other):
            one.step()
    with unsharded(ours):
        pairs = zip(ours.parameters(), plain.parameters(), strict=True)
        return max((mine - theirs).abs().max().item() for mine, theirs in pairs)


KINDS = [dict(), dict(key_value_heads=1, biases=0, gated_mlp=1, learned_positions=0, tied_head=0)]


def offloaded(function, *args):
    with offload_activations(0):
        return function(*args)


CALLS = (checkpoint, checkpoint_by_function, checkpoint_selective, offloaded)


@pytest.mark.parametrize("place", [inside, around, of_forward, in_groups])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_parameters_of_the_plain_model(pair, stage, place):
    """Must catch: gradients sent before the second run has added its own; a unit of stage 3 that is
    not there when its layers run again, or gathers only then."""
    for kind in KINDS:
        for call in CALLS if place is not in_groups else [None]:
            found = pair.run(far_from_plain, kind, stage, place, call)
            assert max(found) < 1e-12, (kind, call)


def called_with_nothing():
    try:
        checkpoint(torch.tanh, torch.ones(2))
    except CheckpointError as error:
        return str(error)


def test_the_sentence_comes_on_every_rank(pair):
    """Must catch: an error that a rank keeps for itself, or that cannot travel."""
    sentences = pair.run(called_with_nothing)
    assert len(set(sentences)) == 1 and sentences[0].startswith(
        "nothing that checkpoint() was given"
    )
