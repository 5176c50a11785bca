"""ZeRO stage 3 in plain PyTorch: fully_shard (FSDP2). Every rank holds a part of each parameter.

torchrun --nproc-per-node 1 examples/train_fsdp2.py            # one process: the same losses
torchrun --nproc-per-node 2 examples/train_fsdp2.py            # a laptop, over gloo
torchrun --nproc-per-node 8 examples/train_fsdp2.py --bf16     # eight GPUs, over NCCL

A second call with the same --save goes on where the first ended, on any number of ranks.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from tiny_gpt import TinyGPT, microbatches
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

TEXT = Path(__file__).with_name("tiny_gpt.py")
parser = argparse.ArgumentParser()
parser.add_argument("--text", type=Path, default=TEXT, help="what to train on")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--batch", type=int, default=16, help="windows in a step, over all ranks")
parser.add_argument("--accumulate", type=int, default=2, help="microbatches in a step")
parser.add_argument("--bf16", action="store_true", help="compute and gather in bf16")
parser.add_argument("--save", type=Path, help="folder of saves: the newest is resumed")
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

with torch.device("meta"):  # shapes only: no rank ever holds the whole model on its device
    model = TinyGPT()
mesh = init_device_mesh(device.type, (ranks,))
policy = MixedPrecisionPolicy(torch.bfloat16 if args.bf16 else None, torch.float32)
for unit in (*model.blocks, model):  # inner units first; the model takes what is left
    fully_shard(unit, mesh=mesh, mp_policy=policy)
    unit.set_force_sum_reduction_for_comms(not gpu)  # gloo of torch 2.8 takes a mean for a sum
model.to_empty(device=device)
torch.manual_seed(0)
whole = TinyGPT().state_dict() if rank == 0 else {}  # or read from a file
options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
set_model_state_dict(model, whole, options=options)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # after sharding, so it holds shards

done = 0
# .metadata is what a save writes last: without it the save is not whole
saves = {int(m.parent.name): m.parent for m in args.save.glob("*/.metadata")} if args.save else {}
if saves:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    states = dict(model=model_state, optimizer=optimizer_state)
    checkpoint.load(states, checkpoint_id=saves[max(saves)])
    set_state_dict(
        model,
        optimizer,
        model_state_dict=states["model"],
        optim_state_dict=states["optimizer"],
    )
    done = max(saves)

batches = microbatches(args.text, micro, done * args.accumulate)
for step in range(done, args.steps):
    total = torch.zeros((), device=device)
    for i in range(args.accumulate):
        tokens, targets = (part.to(device) for part in next(batches))
        # gradients are reduced in the last backward only, and stay unsharded until then
        model.set_requires_gradient_sync(i == args.accumulate - 1)
        loss = model(tokens, targets) / args.accumulate
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one norm over all shards
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(total, dist.ReduceOp.SUM)
    if rank == 0:
        print(f"step {step + 1} loss {total.item() / ranks:.6f}", flush=True)

if args.save and args.steps > done:  # every rank writes its shards
    model_state, optimizer_state = get_state_dict(model, optimizer)
    states = dict(model=model_state, optimizer=optimizer_state)
    checkpoint.save(states, checkpoint_id=args.save / str(args.steps))
dist.destroy_process_group()
