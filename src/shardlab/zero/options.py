"""What one wants of ZeRO in practice, beside the idea: clipping by the norm of all shards, states
on the host.

    clip_gradients(optimizer, 1.0)                       before step(), in every stage
    ShardedOptimizer(params, cpu_offload(AdamW), ...)    optimizer states in host memory, stages 1
                                                         and 2
    fully_shard(model, units, shard_device="cpu")        shards, their gradients and so their
                                                         optimizer states there, stage 3
    fully_shard(model, units, compute_dtype=bfloat16)    16-bit parameters and gradients are what
                                                         travels and computes, over fp32 shards:
                                                         stage 3
    Prefetch(model)                                      the next unit's parameters travel while
                                                         this one computes: stage 3, prefetch.py

The two arguments of fully_shard are in stage3.py, where each is a word in one line.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


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


def cpu_offload(optimizer_cls: type) -> type:
    """The same optimizer, with its states and a copy of its parameters in host memory, where it
    also computes: what ZeRO-Offload (Ren et al. 2021) does. Each step copies gradients to the host
    and parameters back. On a GPU the host's copies are pinned."""

    class Offloaded(optimizer_cls):
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

    Offloaded.__name__ = Offloaded.__qualname__ = f"{optimizer_cls.__name__}Offloaded"
    return Offloaded


def host_copy(tensor: Tensor) -> Tensor:
    """A copy in host memory; pinned if it comes from a GPU, because then the copy engine can fetch
    it by itself. It is there on return, and so is all that was on its way to that GPU before: one
    stream does one thing after the other."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach())
