"""Optimizer states, and in stage 3 shards, in the memory of the host.

    ShardedOptimizer(params, cpu_offload(AdamW), ...)    stages 1 and 2: optimizer states
    fully_shard(model, units, shard_device="cpu")        stage 3: shards, their gradients and so
                                                         their optimizer states

The argument of fully_shard is in stage3.py, where it is a word in one line.
"""

import torch
from torch import Tensor, nn

from ..torch_internals import version


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
