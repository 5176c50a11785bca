"""Hooks beside PyTorch's own on gloo, in float64 where they take it."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from night import world_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from shardlab.compression import Compressed, power_sgd, sixteen_bits

ONE_BUCKET = 1000  # MB: PyTorch's PowerSGD sends from threads, so two buckets would cross


def net(seed=0):
    layers = lambda: nn.Sequential(nn.Linear(19, 23), nn.Tanh(), nn.Linear(23, 11)).double()
    return drawn(layers, seed, std=0.4)


def loss_of(model, step, rank=None):
    rank = dist.get_rank() if rank is None else rank
    draw = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(5, 19, dtype=torch.float64, generator=draw)).square().mean()


def differences(model, module):
    pairs = zip(model.parameters(), module.parameters())
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


world = world_of(2, 3)


def beside_fp16():
    theirs = DistributedDataParallel(net())
    theirs.register_comm_hook(None, default_hooks.fp16_compress_hook)
    ours = Compressed(net(), partial(sixteen_bits, dtype=torch.float16))
    for model in (ours, theirs):
        loss_of(model, 0).backward()
    pairs = zip(ours.parameters(), theirs.module.parameters())
    return max(((a.grad - b.grad).abs().max() / b.grad.abs().max()).item() for a, b in pairs)


def test_sixteen_bits(world):
    """PyTorch rounds before it divides by n, so two roundings of 2^-11 and those of the sum may
    differ. Must catch: bf16 instead of fp16, which is eight times coarser."""
    assert max(world.run(beside_fp16)) < 2e-3


def beside_power_sgd(rank, steps=6):
    theirs = DistributedDataParallel(net(), bucket_cap_mb=ONE_BUCKET)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1
    )
    order = []  # of the only bucket, which is built anew after the first step

    def hook(state, bucket):
        order[:] = bucket.parameters()
        return powerSGD_hook.powerSGD_hook(state, bucket)

    theirs.register_comm_hook(state, hook)
    ours = Compressed(net(), None)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    for step in range(steps):
        if step == 3:  # PyTorch begins at 2, with a Q of its own: we go on from there
            ours.hook = partial(power_sgd, rank=rank)
            ours.load_hook_state_dict([as_here(ours, theirs, order, state, rank)])
        for model, optimizer in zip((ours, theirs), optimizers):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
        if step == 2:
            ours.module.load_state_dict(theirs.module.state_dict())
    return differences(ours.module, theirs.module)


def as_here(ours, theirs, order, state, rank):
    """PyTorch's errors, divided by n, and its Q, in the order of the bucket here."""
    (error,), (q,) = state.error_dict.values(), state.q_memory_dict.values()
    errors = dict(zip(order, (error / dist.get_world_size()).split([p.numel() for p in order])))
    matrices = [p for p in order if p.dim() > 1]
    qs = dict(zip(matrices, q.split([rank * p.shape[1] for p in matrices])))
    same = dict(zip(ours.module.parameters(), theirs.module.parameters()))
    bucket = [same[p] for p in ours.buckets[0]]
    return {
        "error": torch.cat([errors[p] for p in bucket]),
        "q": torch.cat([qs[p] for p in bucket if p in qs]),
    }


@pytest.mark.parametrize("rank", [1, 3])
def test_power_sgd(world, rank):
    """Three steps that go on from PyTorch's state. PyTorch makes Q orthonormal before it uses Q,
    which changes no product P Q^T. Must catch: a Q that is drawn anew, an error that is dropped."""
    assert max(world.run(beside_power_sgd, rank)) < 1e-10


def accumulated(make, switched):
    """Gradients of two microbatches. The switch is thrown between forward and backward, or
    no_sync() surrounds backward alone."""
    model = make(net())
    for number in (0, 1):
        loss = loss_of(model, number) / 2
        model.require_backward_grad_sync = number == 1 or not switched
        with nullcontext() if switched or number == 1 else model.no_sync():
            loss.backward()
    grads = torch.cat([p.grad.flatten() for p in model.module.parameters()])
    mean = grads / dist.get_world_size()
    dist.all_reduce(mean)
    return (grads - mean).abs().max().item() < 1e-12


def test_accumulation_that_looks_in_forward(worlds):
    """PyTorch decides in forward whether a backward sends: the last microbatch, whose forward saw
    the switch off, is not averaged. Must catch: replicas here that decide in forward as well."""
    assert worlds(2).run(accumulated, DistributedDataParallel, True) == [False, False]
    assert worlds(2).run(accumulated, Compressed, False) == [True, True]
