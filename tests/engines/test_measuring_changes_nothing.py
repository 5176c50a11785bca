"""A ledger and a communication log change nothing that they measure: no number, no memory, no error
that would have come without them."""

import gc
import time
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from ranklab.measure.weigh import weigh
from shardlab.common.collective_wire import reduce_scatter_single
from shardlab.gpt import GPT, GPTConfig, next_token_loss


@pytest.fixture(autouse=True)
def no_collector():
    """Objects in a circle stay until the collector comes: it does not come here. What PyTorch
    imports at a first forward holds its tensors in one."""
    with Ledger(model := small_gpt()):
        model(some_tokens())
    del model
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def small_gpt(**changes):
    torch.manual_seed(0)
    sizes = dict(layers=2, hidden=16, heads=2, vocabulary=31, max_sequence=8)
    return GPT(GPTConfig(**{**sizes, **changes}))


def some_tokens():
    return torch.randint(31, (3, 8), generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_a_gpt_leaves_its_parameters_only(fused):
    """After 40 forwards of which no backward came, and after one that was weighed. Must catch: a
    pack hook that returns the tensor itself; an entry for what is dead."""
    model, tokens = small_gpt(fused_attention=fused), some_tokens()
    with Ledger(model) as ledger:
        at_rest = ledger.bytes
        for _ in range(40):
            loss = next_token_loss(model(tokens), tokens)
            gone = weakref.ref(loss.untyped_storage())
            del loss
            assert gone() is None
        left = ledger.bytes
    assert left.parameters == at_rest.parameters
    assert left.total - at_rest.total == tokens.nbytes  # the embedding has met the batch
    before = tensors_alive()
    weigh(model, tokens)
    assert tensors_alive() == before


def tensors_alive():
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def train(steps, watch, seen):
    """A GPT of which a step is watched, or not; dropout makes the random numbers count."""
    model, tokens = small_gpt(dropout=0.1), some_tokens()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        with watch(model, optimizer):
            loss = next_token_loss(model(tokens), tokens)
            loss.backward()
            optimizer.step()
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.zero_grad()
        seen(loss, gradients)
    return model, optimizer


def nothing(*_):
    return nullcontext()


def test_the_same_numbers_as_without():
    """Losses, gradients, parameters, states and the random numbers that come next, bit for bit.
    Must catch: a hook that returns a copy of another type; a random number drawn by the ledger."""
    runs = []
    for watch in (nothing, Ledger):
        seen = []
        model, optimizer = train(
            5, watch, lambda loss, grads, seen=seen: seen.append((loss, grads))
        )
        states = [t for state in optimizer.state.values() for t in state.values()]
        flat = [t.detach() for loss, grads in seen for t in (loss, *grads)]
        runs.append([*flat, *(p.detach() for p in model.parameters()), *states, torch.rand(3)])
    assert len(runs[0]) == len(runs[1]) > 100
    for without, under in zip(*runs):
        assert torch.equal(without, under) and without.stride() == under.stride()


def test_second_derivatives_are_the_same():
    """Must catch: a saved tensor handed back rounded to fp32. (Autograd itself gives a detached one
    its history again.)"""
    found = []
    for watch in (nothing, Ledger):
        x = torch.linspace(-1, 1, 7, dtype=torch.float64, requires_grad=True)
        with watch(nn.Module()):
            y = (x.tanh().softmax(0) * x.exp()).sum()
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            (second,) = torch.autograd.grad((first * first).sum(), x)
        found.append((first.detach(), second))
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.slow
def test_sixty_steps_in_constant_memory():
    """A ledger for each step. Must catch: a hook, a graph, an entry or a watcher that stays."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid())
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
    x, counted = torch.ones(2, 4), []
    for step in range(60):
        with Ledger(layer, optimizer) as ledger:
            layer(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if step % 6 == 5:
            hooks = [len(p._post_accumulate_grad_hooks or ()) for p in layer.parameters()]
            counted.append((tensors_alive(), ledger.bytes, sum(hooks)))
    assert len(set(counted)) == 1, counted


@pytest.mark.parametrize("watch", [nothing, Ledger])
def test_a_saved_tensor_that_was_written_is_refused(watch):
    """A tensor that was written is refused as without a ledger: backward would be wrong. Must
    catch: hooks that hand back what was written, which switches PyTorch's own check off."""
    x = torch.ones(3, requires_grad=True)
    with watch(nn.Module()):
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation.*version 1"):
            y.sum().backward()


def messages_and_memory():
    """On a rank: (the same sums with and without a log, tensors alive before and after)."""
    group = dist.group.WORLD

    def sums():
        x = torch.arange(6.0) + dist.get_rank()
        works = [dist.all_reduce(x, async_op=True, group=group)]
        [work.wait() for work in works]
        halves = torch.empty(3)
        reduce_scatter_single(halves, x)
        return x, halves

    sums()
    without = sums()
    gc.collect()
    gc.disable()
    with CommunicationLog() as log:
        under = sums()
        same = all(torch.equal(a, b) for a, b in zip(without, under))
        gone = [weakref.ref(tensor.untyped_storage()) for tensor in under]
        del under
        end = time.monotonic() + 30
        while any(storage() is not None for storage in gone) and time.monotonic() < end:
            time.sleep(0.01)  # a thread of the backend may let go of a sum a moment later
        dead = [storage() is None for storage in gone]
        counts = set()
        for step in range(200):
            sums()
            if step % 20 == 19:
                counts.add(tensors_alive())
    gc.enable()
    # a sum that is done may be let go of a moment later, by a thread of the backend
    return same, dead, max(counts) - min(counts) < 10, len(log.messages)


def test_a_log_keeps_no_tensor(worlds):
    """Must catch: a message that holds the tensor it weighed; a sum made twice."""
    found = worlds(2).run(messages_and_memory)
    assert found == [(True, [True, True], True, 402)] * 2
