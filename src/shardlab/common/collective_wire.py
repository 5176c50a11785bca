"""Helpers of all collectives: a rank's place in its group, checks of shards, the group's backend,
and copies of tensors that the backend can send."""

import torch
import torch.distributed as dist
from torch import Tensor

from .torch_internals import active_fake_mode, storage_key

Group = dist.ProcessGroup | None

# PyTorch's own, under the names that 2.13 gave them; shards are equally large
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def place(group: Group, root: int = 0) -> tuple[int, int]:
    """(n, this rank's number) in the group."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    if me < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is no member of the group: only members call its collectives."
        )
    if not 0 <= root < n:
        raise ValueError(f"root = {root}: the group has ranks 0 to {n - 1}.")
    return n, me


def check_shard(shard: Tensor, full: Tensor | None, n: int, me: int, times: int = 1):
    if full is None:
        raise ValueError(f"rank {me} is the root: it gives the full tensor.")
    size = times * len(range(me, full.numel(), n))
    if shard.numel() != size:
        raise ValueError(
            f"shard has {shard.numel():,} elements: of {full.numel():,} in full, rank {me} of {n}"
            f" has {size:,}."
        )
    if (shard.dtype, shard.device) != (full.dtype, full.device):
        raise ValueError(
            f"shard is {shard.dtype} on {shard.device}, full is {full.dtype} on {full.device}: they"
            " must agree."
        )


def backend_for(device_type: str, group: Group) -> str | None:
    """The group's backend for tensors on that device, such as "gloo"; None if it has none."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return backends.get(device_type)


def has_exact_mean(dtype: torch.dtype, n: int) -> bool:
    """NCCL's mean of floating-point numbers is a sum of shares, for which it rounds 1/n to their
    dtype: 16 bits have it for powers of two."""
    return dtype.itemsize > 2 or n & (n - 1) == 0


def has_mean(device: torch.device, group: Group) -> bool:
    """Whether a collective makes the mean itself: NCCL's do. Tensors without contents belong to
    virtual GPUs."""
    return active_fake_mode() is not None or backend_for(device.type, group) == "nccl"


def can_send(device_type: str, group: Group) -> bool:
    """Whether the group's backend has send and recv for tensors on that device."""
    backend = backend_for(device_type, group)
    return backend is not None and (device_type, backend) != ("cuda", "gloo")


def wire(tensor: Tensor, group: Group) -> Tensor:
    """The elements in order, in memory from which the backend can send: a flat view of the tensor
    if possible, else a copy."""
    tensor = tensor.detach()
    return (tensor if can_send(tensor.device.type, group) else tensor.cpu()).contiguous().view(-1)


def copy_if_shared(flat: Tensor, other: Tensor) -> Tensor:
    """These elements outside of the other's memory: what arrives there overwrites none of them."""
    shared = storage_key(flat.untyped_storage()) == storage_key(other.untyped_storage())
    return flat.clone() if shared else flat


def land(flat: Tensor, tensor: Tensor):
    """Copy the result back into the tensor if it was computed in a copy."""
    if storage_key(flat.untyped_storage()) != storage_key(tensor.untyped_storage()):
        tensor.detach().copy_(flat.view(tensor.shape))
