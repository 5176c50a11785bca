"""Activation checkpointing under data parallelism and ZeRO: the plain model's parameters."""

from functools import partial

import pytest
import torch
from night import at_night
from tables import RIGHT, Beside, check
from torch import nn

from shardlab.recompute import checkpoint, checkpoint_by_function
from shardlab.recompute.layers import checkpoint_every
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.selective import checkpoint_selective


class Called(nn.Module):
    def __init__(self, call, layer):
        super().__init__()
        self.call, self.layer = call, layer

    def forward(self, x):
        return self.call(self.layer, x)


def blocks():
    inner = lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), inner()) for _ in range(3)))


def inside(net, call):
    """Checkpoints inside of units."""
    for block in net:
        block[1] = Called(call, block[1])


def around(net, call):
    for number, block in enumerate(net):
        net[number] = Called(call, block)


def of_forward(net, call):
    for block in net:
        block.forward = partial(call, block.forward)


def in_groups(net, call):
    net.forward = checkpoint_every(nn.Sequential(*net), 2, call).forward


def recomputed(door, place, call):
    """Two microbatches, checkpoints in both models. Must catch: gradients sent before the second
    run has added its own; a unit of stage 3 that is not there when its layers run again."""
    before = (lambda net: place(net, call)) if place is inside else lambda net: None
    beside = Beside(door, blocks, before=before)
    for net in (beside.plain,) if place is inside else beside.nets:
        place(net, call)
    for _ in range(2):
        beside.optimizer.zero_grad()
        beside.plain_optimizer.zero_grad()
        for _ in range(2):
            beside.backward()
        beside.step()
    return beside.verdict()


def called_with_nothing(door):
    checkpoint(torch.tanh, torch.ones(2))


def offloaded(function, *args):
    with offload_activations(0):
        return function(*args)


CALLS = (checkpoint, checkpoint_by_function, checkpoint_selective, offloaded)


PLACES = (inside, around, of_forward, in_groups)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "door, place",
    [(door, place) for door in ("replicas", "stage 3") for place in PLACES]
    + [("stage 2", around)]  # whose hooks find gradients of the second run
    + at_night(*(("stage 1", place) for place in PLACES))
    + at_night(*(("stage 2", place) for place in (inside, of_forward, in_groups))),
)
def test_the_parameters_of_the_plain_model(worlds, door, place):
    """Must catch: what the row says."""
    for call in CALLS:
        check(worlds(2, patience_seconds=30), door, recomputed, (place, call), RIGHT)


def test_the_sentence_comes_on_every_rank(worlds):
    """Must catch: an error that a rank keeps for itself, or that cannot travel."""
    said = "CheckpointError: nothing that checkpoint() was given"
    check(worlds(2, patience_seconds=30), "replicas", called_with_nothing, (), said)
