"""Data parallelism with microbatches of which the last alone is averaged, and checkpoints."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
            for _ in range(3)
        )
        self.head = nn.Linear(64, 100)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x)


device = "cuda:0" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = Blocks()
model.to(device)
model = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
tokens = TensorDataset(torch.randint(100, (512, 32)))
sampler = DistributedSampler(tokens, ranks, rank)
on_gpu = torch.cuda.is_available()
loader = DataLoader(tokens, 8, sampler=sampler, num_workers=2 * on_gpu, pin_memory=on_gpu)
loss_of = nn.CrossEntropyLoss()
for number, (batch,) in enumerate(loader):
    batch = batch.to(device, non_blocking=True, copy=True)
    last = number % 4 == 3
    with nullcontext() if last else model.no_sync():
        loss = loss_of(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        (loss / 4).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and int(os.environ["LOCAL_RANK"]) == 0:
            print(number, f"{loss.item():.3f}")
