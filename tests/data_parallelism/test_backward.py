"""When a backward begins, which gradient came, when it ends: without ranks."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab.common.backward import (
    BackwardListener,
    as_one_backward,
    when_backward_ends,
    when_gradient_comes,
)
from shardlab.common.torch_internals import current_backward


class Diary(BackwardListener):
    def __init__(self, module):
        self.names = {parameter: name for name, parameter in module.named_parameters()}
        self.told = []
        self.listen_to(module.parameters())

    def backward_begins(self):
        self.told.append("begin")

    def gradient_arrives(self, parameter):
        assert parameter.grad is not None and not torch.is_grad_enabled()
        self.told.append(self.names[parameter])

    def backward_ends(self):
        self.told.append("end")


def net():
    return nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))


WHOLE = ["begin", "1.weight", "0.weight", "end"]


def backward(model):
    model(torch.ones(1, 2)).sum().backward()


def test_a_backward():
    """Must catch: the end told when the next backward begins; the beginning told once for all."""
    model = net()
    diary = Diary(model)
    backward(model)
    assert diary.told == WHOLE and not diary.in_backward
    backward(model)
    assert diary.told == 2 * WHOLE
    diary.listening = False
    backward(model)
    assert diary.told == 2 * WHOLE


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError


@pytest.mark.parametrize("within", [False, True])
def test_a_backward_that_raises(within):
    """Or one around a checkpoint's. Must catch: a listener that remembers by a flag that it is in a
    backward; hooks that keep the end of a backward alive that was given up."""
    model = net()
    diary = Diary(model)
    x = Raises.apply(model[0](torch.ones(1, 2, requires_grad=within)))
    y = checkpoint(model[1], x, use_reentrant=True) if within else model[1](x)
    with pytest.raises(ArithmeticError) as error:
        y.sum().backward()
    assert diary.told == ["begin", "1.weight"] and not diary.in_backward
    backward(model)
    assert diary.told == ["begin", "1.weight", *WHOLE]
    assert error.type is ArithmeticError


def test_a_forward_within_backward():
    """Must catch: a forward that resets what is known of the backward under way."""
    model = net()
    diary = Diary(model)
    x = torch.ones(1, 2, requires_grad=True)
    for layer in model:
        x = checkpoint(layer, x, use_reentrant=False)
    x.sum().backward()
    assert diary.told == WHOLE


@pytest.mark.parametrize("depth", [1, 2])
def test_a_backward_within_a_backward(depth):
    """Must catch: the end told when the inner backward, a reentrant checkpoint's, is over; a
    listener that no longer waits for the outer one; hooks that stay at a leaf."""
    model = net()
    diary = Diary(model)
    x = torch.ones(1, 2, requires_grad=True)
    inside = model[1]
    for _ in range(depth):
        inside = partial(checkpoint, inside, use_reentrant=True)
    for _ in range(2):
        inside(model[0](x)).sum().backward()
        assert diary.told == WHOLE and not diary.in_backward
        diary.told.clear()
    for _ in range(2):  # nothing is before the checkpoint but a leaf
        inside(x).sum().backward()
        assert diary.told == ["begin", "1.weight", "end"] and not diary.in_backward
        diary.told.clear()


class StopsBehind(torch.autograd.Function):
    """Computes backward as a reentrant checkpoint does, then stops."""

    @staticmethod
    def forward(ctx, x, part):
        ctx.part, ctx.x = part, x.detach()
        return part(x)

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            ctx.part(ctx.x).backward(dy)
        raise KeyboardInterrupt


def test_a_stop_between_an_inner_backward_and_the_rest():
    """Must catch: a listener that waits for a backward that was stopped, and averages nothing any
    more."""
    model = net()
    diary = Diary(model)
    loss = StopsBehind.apply(model[0](torch.ones(1, 2)), model[1]).sum()
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    diary.told.clear()
    diary.listen_last(model.parameters())
    assert not diary.in_backward and loss.requires_grad
    backward(model)
    assert diary.told == WHOLE and not diary.in_backward


def test_the_newest_owns():
    """Must catch: both told; the first told; a listener kept alive by its parameters."""
    model = net()
    first = Diary(model)
    second = Diary(model[1])
    backward(model)
    assert first.told == ["begin", "0.weight", "end"] and first.taken_by == "Diary"
    assert second.told == ["begin", "weight", "end"] and second.taken_by is None
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    backward(model)
    assert second.told == 2 * ["begin", "weight", "end"]
    assert all(len(p._post_accumulate_grad_hooks) == 1 for p in model.parameters())


def test_a_copied_parameter():
    """Must catch: owners kept in the parameter, where a copy inherits them."""
    model = net()
    diary = Diary(model)
    twin = copy.deepcopy(model)
    backward(twin)
    assert diary.told == []
    of_the_twin = Diary(twin)
    backward(twin)
    assert of_the_twin.told == WHOLE and diary.told == []


def test_for_techniques_that_act_before():
    """Must catch: a call for each gradient and not for the first; a call when all have come; an end
    that comes early."""
    model, told = net(), []
    running = []

    def begins():
        told.append(current_backward() is not None)
        running.append(when_backward_ends(lambda: told.append("end")))

    hidden = model[0](torch.ones(1, 2))
    later = hidden * 2  # its gradient is the first
    hidden.register_hook(lambda _: told.append("second") and None)
    when_gradient_comes([hidden, later], begins)
    when_gradient_comes([], begins)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: told.append(running[0]() is None))
    model[1](later).sum().backward()
    assert (
        told == [True, "second", False, "end"]
        and running[0]() is None
        and current_backward() is None
    )


def test_several_backwards_as_one():
    """Must catch: each backward told; a listener that hears nothing forever after; a gradient said
    to be complete before the last backward."""
    model = net()
    model.extra, model.unused = extra, _ = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    diary = Diary(model)
    with as_one_backward([*model.parameters(), nn.Parameter(torch.zeros(1))]):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
        extra.grad = torch.ones(2)
        assert diary.told == []
    assert diary.told[0] == "begin" and diary.told[-1] == "end"
    assert sorted(diary.told[1:-1]) == ["0.weight", "1.weight", "extra"]
    assert diary.told.index("1.weight") < diary.told.index("0.weight")
    diary.told.clear()
    backward(model)
    assert diary.told == WHOLE
    diary.told.clear()
    with pytest.raises(ValueError):
        with as_one_backward(model.parameters()):
            model(torch.ones(1, 2)).sum().backward()
            raise ValueError
    assert diary.told == [] and diary.listening
    diary.listening = False
    with as_one_backward(model.parameters()):
        model(torch.ones(1, 2)).sum().backward()
    assert diary.told == [] and not diary.listening
    diary.listening = True
    model(torch.ones(1, 2)).sum().backward()
    assert diary.told == ["begin", "1.weight", "0.weight", "end"]
