"""GPipe in plain PyTorch: a model cut by depth, one stage on each rank.

torchrun --standalone --nproc-per-node 4 examples/pipeline.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS, MICROBATCHES, BATCH, WIDTH, LAYERS = 50, 8, 64, 16, 4

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
first, last = rank == 0, rank == ranks - 1

torch.manual_seed(0)  # all ranks make the same model and the same batches
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
share = LAYERS // ranks
stage = nn.Sequential(*layers[rank * share : (rank + 1) * share])  # the cut
optimizer = torch.optim.SGD(stage.parameters(), lr=4.0)

for step in range(STEPS):
    inputs = torch.randn(BATCH, WIDTH)
    targets = inputs.flip(1).tanh()
    kept, losses = [], []  # of each microbatch: what backward needs

    for x, target in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES)):
        if not first:
            x = torch.empty(BATCH // MICROBATCHES, WIDTH)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        y = stage(x)
        if not last:
            dist.send(y.detach(), rank + 1)
        else:
            y = mse_loss(y, target) / MICROBATCHES
            losses.append(y.item())
        kept.append((x, y))

    for x, y in kept:
        dy = None
        if not last:
            dy = torch.empty_like(y)
            dist.recv(dy, rank + 1)
        y.backward(dy)
        if not first:
            dist.send(x.grad, rank - 1)

    optimizer.step()
    optimizer.zero_grad()
    if last and step % 10 == 9:
        print(f"step {step + 1}: loss {sum(losses):.6f}", flush=True)

dist.destroy_process_group()
