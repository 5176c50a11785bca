"""A pipeline by torch.distributed.pipelining: 1F1B."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

kind = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
part = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).to(kind)
shape = torch.empty(8, 64, device="meta", requires_grad=True)
stage = PipelineStage(part, rank, ranks, torch.device(kind), input_args=shape, output_args=shape)
schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, target: (y - target).pow(2).mean())
optimizer = torch.optim.SGD(part.parameters(), lr=0.1, foreach=False)
x = torch.randn(32, 64, device=kind)
for _ in range(10):
    if rank == 0:
        schedule.step(x)
    elif rank == ranks - 1:
        schedule.step(target=x)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
