"""Each rank says who it is, and all of them add up their numbers.

torchrun --nproc-per-node 8 examples/hello.py
"""

import os
import socket

import torch
import torch.distributed as dist

# torchrun started this process and told it its place in the environment
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
gpu = torch.cuda.is_available()
device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)  # before the group: NCCL takes the current GPU

# waits until all ranks are here, then connects them
dist.init_process_group("nccl" if gpu else "gloo")
print(
    f"rank {rank} of {dist.get_world_size()}: process {os.getpid()} on {socket.gethostname()},"
    f" local rank {local_rank}, {device}"
)

mine = torch.full((4,), float(rank), device=device)
dist.all_reduce(mine)  # in place; every rank calls it
if rank == 0:
    print(f"all-reduce: {mine.tolist()}, on every rank")

dist.destroy_process_group()
