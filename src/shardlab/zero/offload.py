"""Practical options of ZeRO: clipping by the norm of all shards, states on the host.

    clip_gradients(optimizer, 1.0)                       before step(), in every stage
    torch.amp.GradScaler()                               PyTorch's own, in every stage:
                                                         before_step.py
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

from ..shards import Groups, groups_of, updated_by
from ..torch_internals import version


@torch.no_grad()
def clip_gradients(
    optimizer: torch.optim.Optimizer, max_norm: float, stages: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale all gradients so that their norm, together, is at most max_norm. Returns the norm
    before.

    Shards count over their ranks, whole gradients (all gradients in data parallelism) count once;
    parts of tensor parallelism count over its ranks, too. All ranks call it, between backward and
    step(). `stages` are ranks that have other parameters altogether: a pipeline's.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm!r}: it must be above 0.")
    updated = updated_by(optimizer)
    squares = sum(squares_by_groups(updated).values())
    if stages is not None:
        dist.all_reduce(squares, group=stages)
    norm = squares.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1)  # 1e-6 as in PyTorch
    for parameter in updated:
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad.device))
    return norm


def squares_by_groups(updated: list[Tensor]) -> dict[Groups, Tensor]:
    """The sum of the squares of all gradients, of parts over the ranks of their groups; () is what
    every rank has whole."""
    found: dict[Groups, Tensor] = {}
    for parameter in updated:
        groups, gradient = groups_of(parameter), parameter.grad
        if groups not in found:
            wide = torch.promote_types(parameter.dtype.to_real(), torch.float32)
            found[groups] = torch.zeros((), dtype=wide, device=updated[0].device)
        if gradient is not None:
            gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
            found[groups] = (
                found[groups] + torch.linalg.vector_norm(gradient).to(found[groups]) ** 2
            )
    for groups, squares in found.items():
        for group in groups:
            dist.all_reduce(squares, group=group)
    return found


# --- optimizer states on the host -----------------------------------------------------------------


def cpu_offload(optimizer_cls: type) -> type:
    """The same optimizer, with its states and a copy of its parameters in host memory, where it
    also computes, as in ZeRO-Offload (Ren et al. 2021). Each step copies gradients to the host and
    parameters back. On a GPU the host's copies are pinned."""

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
            self.note_versions()
            super().add_param_group({**param_group, "params": copies})

        @torch.no_grad()
        def step(self, closure=None):
            for device, host in self.pairs:
                if version(device) != self.versions[device]:  # somebody has written into it
                    host.copy_(device)
                host.grad = None if device.grad is None else host_copy(device.grad)
            loss = super().step(closure)
            for device, host in self.pairs:
                device.copy_(host, non_blocking=True)
                host.grad = None
            self.note_versions()
            return loss

        def note_versions(self):
            """All writes into the parameters until now are known."""
            self.versions = {device: version(device) for device, _ in self.pairs}

        @torch.no_grad()
        def load_state_dict(self, state_dict):
            """Parameters are restored before their states, so that the updated copies
            are those of the restored parameters."""
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
    it by itself. The copy is complete on return, and so is every earlier transfer to that GPU: one
    stream does one thing after the other."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor.detach())
