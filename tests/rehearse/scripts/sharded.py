"""Stage 3 by fully_shard, from the meta device, with weights in bf16."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

kind = "cuda" if torch.cuda.is_available() else "cpu"
mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("shard",))
with torch.device("meta"):
    model = nn.Sequential(
        nn.Embedding(96, 64),
        *(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)),
        nn.Linear(64, 96),
    )
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device=kind)
for parameter in model.parameters():
    nn.init.normal_(parameter, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
torch.manual_seed(dist.get_rank())
for _ in range(10):
    tokens = torch.randint(96, (4, 32), device=kind)
    logits = model(tokens).float()
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
