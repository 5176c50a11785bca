"""Tensor and sequence parallelism by DTensor's plans."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

kind = "cuda" if torch.cuda.is_available() else "cpu"
mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return self.down(self.up(self.norm(x)).relu())


model = nn.Sequential(*(Layer() for _ in range(2))).to(kind)
plan = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}
for layer in model:
    parallelize_module(layer, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(10):
    x = torch.randn(2, 64 // mesh.size(), 64, device=kind)
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
