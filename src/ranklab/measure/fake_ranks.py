"""One rank of a world of thousands on one machine: fake tensors and a fake process group.

    with fake_ranks(world_size=1024), FakeTensorMode(), Ledger(model, optimizer) as ledger:
        ...                                        # a training step of rank 0

Fake tensors have shapes and no contents; PyTorch's fake process group returns at once without
sending. The ledger and the communication log see the same as on a real rank. Values that depend on
contents, such as the loss, do not exist.
"""

from contextlib import contextmanager

import torch.distributed as dist

from ranklab.torch_internals import fake_store


@contextmanager
def fake_ranks(world_size: int, rank: int = 0):
    """A context in which this process is `rank` of a fake world. torch.distributed must not be in
    use in this process."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank = {rank}: a world of {world_size} has ranks 0 to {world_size - 1}.")
    if dist.is_initialized():
        raise ValueError(
            f"this process is rank {dist.get_rank()} of {dist.get_world_size()} already: "
            "a fake world needs a process of its own."
        )
    try:
        dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=world_size)
        yield
    finally:
        if dist.is_initialized():  # unless the reader stopped it before it was
            dist.destroy_process_group()
