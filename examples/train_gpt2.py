"""GPT-2 124M on several GPUs in the form of nanoGPT's train.py: DDP, autocast, accumulation.

torchrun --nproc-per-node 8 examples/train_gpt2.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shardlab.gpt import GPT, GPTConfig, next_token_loss

ACCUMULATE, BATCH, SEQUENCE = 5, 12, 1024

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
torch.set_float32_matmul_precision("high")
model = DistributedDataParallel(GPT(GPTConfig()).to(device), device_ids=[device.index])
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
text = torch.randint(50_257, (1_000_000,))  # instead of a dataset


def next_batch():
    starts = torch.randint(len(text) - SEQUENCE, (BATCH,))
    rows = torch.stack([text[at : at + SEQUENCE + 1] for at in starts])
    rows = rows.pin_memory().to(device, non_blocking=True)
    return rows[:, :-1], rows[:, 1:]


for step in range(1000):
    for microbatch in range(ACCUMULATE):
        last = microbatch == ACCUMULATE - 1
        model.require_backward_grad_sync = last  # as no_sync()
        tokens, targets = next_batch()
        with torch.autocast("cuda", torch.bfloat16):
            loss = next_token_loss(model(tokens), targets)
        (loss / ACCUMULATE).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.4f}")
