"""The device of a rank, its backend, and the process group."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from .asked import Asked
from .findings import NCCL_START_SECONDS
from .place import give_device

# the first version that lets several ranks share a GPU, as an experiment; not yet tested here
SHARING_NCCL = "2.30"
FEW_BLOCKS = "4"


class CannotBeHad(ValueError):
    """This machine cannot provide the requested device or backend: one sentence."""


def choose_device(rank: int, ranks_here: int, gpus: int, asked: Asked) -> tuple[torch.device, str]:
    """(device, backend) of a rank. With a GPU for each rank: NCCL. With more ranks than GPUs: gloo,
    or NCCL by `share_gpus`. Without a GPU: gloo."""
    device, backend = asked.device, asked.backend
    if device == "cuda" and not gpus:
        raise CannotBeHad("device is cuda, but this machine shows no CUDA GPU.")
    if asked.share_gpus and backend != "gloo" and gpus and device != "cpu":
        if ranks_here > gpus:
            allow_shared_gpus(ranks_per_gpu=-(-ranks_here // gpus))
        backend = "nccl"
    elif backend == "nccl" and (ranks_here > gpus or device == "cpu"):
        raise CannotBeHad(
            f"NCCL wants a GPU for each rank: {ranks_here} ranks, {gpus} GPUs. Leave backend away,"
            f" or take gloo; NCCL {SHARING_NCCL} or newer can let ranks share one: share_gpus=True."
        )
    if not gpus or device == "cpu":
        return torch.device("cpu"), "gloo"
    # messages overtake the kernels beside which they run; NCCL's groups read this variable
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
    return torch.device("cuda", rank % gpus), backend or ("nccl" if ranks_here <= gpus else "gloo")


def take_device(rank: int, ranks_here: int, asked: Asked) -> tuple[torch.device, str]:
    """Make this process one of so many ranks of this machine. Returns its device and its
    backend."""
    device, backend = choose_device(rank, ranks_here, torch.cuda.device_count(), asked)
    give_device(device)
    return device, backend


def make_group(backend: str, rank: int, asked: Asked, store: dist.Store | None = None):
    """Make the process group of all ranks. The board tells which rank keeps a collective waiting
    too long; the backend's own limit is for when it cannot."""
    starts = NCCL_START_SECONDS if backend == "nccl" else 0.0
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
        store=store,
        rank=rank,
        world_size=asked.world_size,
        timeout=timedelta(seconds=2 * asked.patience_seconds + 30 + starts),
    )


def allow_shared_gpus(ranks_per_gpu: int):
    """NCCL reads these variables when its first communicator is made. Its multicast does not work
    with shared GPUs, and the blocks of all ranks' kernels must fit on a GPU at once, or the kernels
    wait for each other forever."""
    found = torch.cuda.nccl.version()
    if found[:2] < tuple(map(int, SHARING_NCCL.split("."))):
        raise CannotBeHad(
            f"share_gpus wants NCCL {SHARING_NCCL} or newer, and this PyTorch brings"
            f" {'.'.join(map(str, found))}: leave it away, and ranks that share a GPU take gloo."
        )
    os.environ.update(NCCL_MULTI_RANK_GPU_ENABLE="1", NCCL_NVLS_ENABLE="0")
    if ranks_per_gpu > 2:
        os.environ.setdefault("NCCL_MAX_CTAS", FEW_BLOCKS)
