"""Data parallelism in mixed precision, as a user writes it: autocast, a scaler, clipping."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

kind = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device(kind, local_rank if kind == "cuda" else None)
if kind == "cuda":
    torch.cuda.set_device(device)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)).to(device)
model = DistributedDataParallel(model, device_ids=[local_rank] if kind == "cuda" else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler(kind)
for step in range(10):
    x = torch.randn(64, 128, device=device)
    with torch.autocast(kind, dtype=torch.float16):
        loss = model(x).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(step, loss.item())
dist.destroy_process_group()
