"""The same code under torchrun: every process runs the whole script, and is one rank of the world that torchrun made.

    torchrun --nproc-per-node 2 train.py                                                       # one machine
    torchrun --nnodes 2 --node-rank 0 --master-addr A --master-port P --nproc-per-node 2 train.py   # and 1 on the other

`world.run(fn, ...)` calls fn here and returns the results of all ranks to each of them. What is printed is torchrun's affair, and
a rank that fails ends all: there is no parent to keep the others alive.
"""

import os

import cloudpickle


def started_us() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


class Torchrun:
    """A world of which this process is a rank."""

    def __init__(self, world_size: int, device: str | None, backend: str | None):
        import torch
        import torch.distributed as dist

        from .worker import choose

        rank, local, there = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        if there != world_size:
            raise ValueError(f"world_size = {world_size}: torchrun started {there} ranks.")
        self.world_size, self.ours = world_size, not dist.is_initialized()
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        self.device, self.backend = choose(local, here, torch.cuda.device_count(), device, backend)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.ours:
            backends = "cpu:gloo,cuda:nccl" if self.backend == "nccl" else self.backend
            dist.init_process_group(backends, rank=rank, world_size=world_size)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if error[0] is None:  # after an error the others may be anywhere: leave, and torchrun ends them
            self.close()

    def run(self, function, *args, limit_seconds: float | None = None, **kwargs) -> list:
        """Call `function(*args, **kwargs)` here, as every other rank does there: all results, in rank order, on every rank."""
        import torch.distributed as dist

        results: list = [None] * self.world_size
        dist.all_gather_object(results, cloudpickle.dumps(function(*args, **kwargs)))
        return [cloudpickle.loads(result) for result in results]

    def close(self):
        import torch.distributed as dist

        if self.ours and dist.is_initialized():
            dist.destroy_process_group()
