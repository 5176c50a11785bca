"""What one wants of ZeRO in practice, beside the idea: clipping by the norm of all shards, states
on the host, gathering ahead.

    clip_gradients(optimizer, 1.0)                       before step(), in every stage
    ShardedOptimizer(params, on_the_host(AdamW), ...)    optimizer states in host memory, stages 1
                                                         and 2
    fully_shard(model, units, shard_device="cpu")        shards, their gradients and so their
                                                         optimizer states there, stage 3
    fully_shard(model, units, compute_dtype=bfloat16)    16-bit parameters and gradients are what
                                                         travels and computes, over fp32 shards:
                                                         stage 3
    GatherAhead(model)                                   the next unit's parameters travel while
                                                         this one computes: stage 3

The two arguments of fully_shard are in stage3.py, where each is a word in one line.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..torch_internals import version
from .stage3 import Unit, sharded_units


@torch.no_grad()
def clip_gradients(optimizer: torch.optim.Optimizer, max_norm: float, group=None) -> Tensor:
    """Scale the gradients of all shards so that their norm, together, is at most max_norm. Returns
    the norm before.

    torch.nn.utils.clip_grad_norm_ would take each rank's norm of its own shard, and every rank
    would scale by another number. All ranks call it, between backward and step(). `group` is the
    one that shares the parameters.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm!r}: it must be above 0.")
    if hasattr(optimizer, "reduce_gradients"):  # stage 1, whose shards have no gradients yet
        optimizer.reduce_gradients()
    if hasattr(optimizer, "buckets"):
        shards = [shard for bucket in optimizer.buckets for shard in bucket.shards]
    else:
        shards = [p for param_group in optimizer.param_groups for p in param_group["params"]]
    gradients = [p.grad for p in shards if p.grad is not None]
    squares = sum(
        (
            torch.linalg.vector_norm(g.to(torch.promote_types(g.dtype, torch.float32))) ** 2
            for g in gradients
        ),
        torch.zeros(
            (), device=shards[0].device, dtype=torch.promote_types(shards[0].dtype, torch.float32)
        ),
    )
    dist.all_reduce(squares, group=getattr(optimizer, "group", group))
    norm = squares.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)  # 1e-6 as PyTorch's has it
    for gradient in gradients:
        gradient.mul_(scale)
    return norm


# --- optimizer states on the host -----------------------------------------------------------------


def on_the_host(optimizer_cls: type) -> type:
    """The same optimizer, with its states and a copy of its parameters in host memory, where it
    also computes: what ZeRO-Offload (Ren et al. 2021) does. Each step copies gradients to the host
    and parameters back. On a GPU the host's copies are pinned."""

    class OnTheHost(optimizer_cls):
        def add_param_group(self, param_group):
            self.pairs = getattr(self, "pairs", [])
            given = (
                [param_group["params"]]
                if isinstance(param_group["params"], Tensor)
                else list(param_group["params"])
            )
            copies = [nn.Parameter(host_copy(parameter)) for parameter in given]
            self.pairs += zip(given, copies)
            super().add_param_group({**param_group, "params": copies})

        @torch.no_grad()
        def step(self, closure=None):
            for device, host in self.pairs:
                host.grad = None if device.grad is None else host_copy(device.grad)
            loss = super().step(closure)
            for device, host in self.pairs:
                device.copy_(host, non_blocking=True)
                host.grad = None
            return loss

        @torch.no_grad()
        def load_state_dict(self, state_dict):
            """Parameters come back before their states: the copies that are updated have to be
            theirs."""
            super().load_state_dict(state_dict)
            for device, host in self.pairs:
                host.copy_(device)

        def zero_grad(self, set_to_none=True):
            for device, _ in self.pairs:
                if device.grad is not None:
                    device.grad = None if set_to_none else device.grad.zero_()

    OnTheHost.__name__ = OnTheHost.__qualname__ = f"{optimizer_cls.__name__}OnTheHost"
    return OnTheHost


def host_copy(tensor: Tensor) -> Tensor:
    """A copy in host memory; pinned if it comes from a GPU, because then the copy engine can fetch
    it by itself. It is there on return, and so is all that was on its way to that GPU before: one
    stream does one thing after the other."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach())


# --- gathering ahead ------------------------------------------------------------------------------


class GatherAhead:
    """While a unit computes, a thread gathers the one that came after it in the step before, over
    connections of its own: what the link needs hides behind computing. It costs the memory of one
    unit more.

    On CPU ranks. On CUDA the gathering would need a stream of its own, which nobody has tried:
    refused. `close()` ends it.
    """

    def __init__(self, module: nn.Module):
        self.units = [unit.sharded_unit for unit in sharded_units(module)]
        if not self.units:
            raise ValueError(f"{type(module).__name__} is not sharded: call fully_shard first.")
        if any(flat.full.is_cuda for unit in self.units for flat in unit.flats):
            raise ValueError("the units are on CUDA: gathering ahead is made for CPU ranks.")
        self.group = dist.new_group(
            dist.get_process_group_ranks(self.units[0].flats[0].group or dist.group.WORLD)
        )
        self.thread = ThreadPoolExecutor(1)
        self.after: dict[tuple, Unit] = {}  # (in backward?, a unit) -> the one that came next
        self.last = None  # the key of the unit gathered last
        self.ahead: tuple[Unit, list[int], Future] | None = None
        for unit in self.units:
            unit.gather, unit.reshard = partial(self.gather, unit), partial(self.reshard, unit)

    def gather(self, unit: Unit):
        """In the place of Unit.gather."""
        key = (unit.in_backward, unit)
        if self.last is not None and self.last[0] == key[0]:
            self.after[self.last] = unit
        expected = self.take()
        if expected is not unit:
            if expected is not None:  # it will be wanted another time
                Unit.reshard(expected)
            Unit.gather(unit)
        self.last, following = key, self.after.get(key)
        if following is not None and not following.whole:
            following.allocate()
            self.ahead = (
                following,
                versions(following),
                self.thread.submit(following.fill, self.group),
            )

    def reshard(self, unit: Unit):
        """In the place of Unit.reshard: not while the thread is at it."""
        if self.ahead is not None and self.ahead[0] is unit:
            self.take()
        Unit.reshard(unit)

    def take(self) -> Unit | None:
        """The unit that was gathered ahead, when it is there; None if its shards have changed
        since."""
        if self.ahead is None:
            return None
        (unit, before, future), self.ahead = self.ahead, None
        future.result()
        if versions(unit) == before:
            return unit
        Unit.reshard(unit)

    def close(self):
        if (unit := self.take()) is not None:
            Unit.reshard(unit)
        for unit in self.units:
            del unit.gather, unit.reshard
        self.thread.shutdown()
        dist.destroy_process_group(self.group)


def versions(unit: Unit) -> list[int]:
    """Of its shards: each change of a tensor in place counts one up."""
    return [version(flat.shard) for flat in unit.flats]
