"""Data parallelism in plain PyTorch: every rank holds the whole model, gradients are averaged.

torchrun --nproc-per-node 1 examples/train_ddp.py              # one process: the same losses
torchrun --nproc-per-node 2 examples/train_ddp.py              # a laptop, over gloo
torchrun --nproc-per-node 8 examples/train_ddp.py --bf16       # eight GPUs, over NCCL

A second call with the same --save goes on where the first ended.
"""

import argparse
import contextlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_gpt import TinyGPT, microbatches
from torch.nn.parallel import DistributedDataParallel

TEXT = Path(__file__).with_name("tiny_gpt.py")
parser = argparse.ArgumentParser()
parser.add_argument("--text", type=Path, default=TEXT, help="what to train on")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--batch", type=int, default=16, help="windows in a step, over all ranks")
parser.add_argument("--accumulate", type=int, default=2, help="microbatches in a step")
parser.add_argument("--bf16", action="store_true", help="compute in bf16; weights stay fp32")
parser.add_argument("--save", type=Path, help="file to resume from, written after the last step")
args = parser.parse_args()

gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
micro, rest = divmod(args.batch, ranks * args.accumulate)
if rest or not micro:
    raise SystemExit(
        f"--batch {args.batch} is not a multiple of {ranks} ranks x {args.accumulate}."
    )

torch.manual_seed(0)  # DDP hands out rank 0's parameters in any case
model = TinyGPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
done = 0
if args.save and args.save.exists():
    saved = torch.load(args.save, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["step"]
ddp = DistributedDataParallel(model, device_ids=[device.index] if gpu else None)

batches = microbatches(args.text, micro, done * args.accumulate)
for step in range(done, args.steps):
    total = torch.zeros((), device=device)
    for i in range(args.accumulate):
        tokens, targets = (part.to(device) for part in next(batches))
        last = i == args.accumulate - 1
        # ranks talk in the last backward only
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = ddp(tokens, targets) / args.accumulate
            loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of averages: alike on all ranks
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total, dist.ReduceOp.SUM)
    if rank == 0:
        print(f"step {step + 1} loss {total.item() / ranks:.6f}", flush=True)

if args.save and args.steps > done and rank == 0:
    state = dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=args.steps)
    torch.save(state, args.save.with_suffix(".tmp"))
    os.replace(args.save.with_suffix(".tmp"), args.save)  # the file is whole, or absent
dist.destroy_process_group()
