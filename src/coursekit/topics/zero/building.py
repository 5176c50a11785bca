"""A model that fits nowhere is built in shards: shapes on the meta device, then memory for this
rank's shards alone, then values that only rank 0 reads. With this book's stage 3, and with FSDP2.

`path` is what torch.save(model.state_dict(), path) wrote; mmap=True reads a tensor of it when it is
asked for. A head that is tied to the token table stays tied in build_sharded. FSDP2's to_empty
gives each of the two memory of its own: tie them again after it, or build an untied model."""

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard as fsdp2

from shardlab.common.shards import groups_of
from shardlab.gpt import GPT, GPTConfig
from shardlab.zero.hardened.full_parameters import unsharded
from shardlab.zero.hardened.stage3 import fully_shard


def read_on_rank_0(path) -> dict[str, torch.Tensor]:
    return torch.load(path, mmap=True) if dist.get_rank() == 0 else {}


def build_sharded(config: GPTConfig, path, device) -> GPT:
    """This book's stage 3: one unit is whole at a time, on every rank."""
    with torch.device("meta"):
        model = GPT(config)  # shapes, and not one byte
    fully_shard(model, [model.embedding, *model.blocks, model.head], device=device)
    saved = read_on_rank_0(path)
    for prefix, unit in model.named_modules():
        if hasattr(unit, "sharded_unit"):
            with unsharded(unit, recurse=False, write=True), torch.no_grad():
                for name, whole in unit.named_parameters(prefix):
                    if name in saved and not groups_of(whole):  # else a shard of another unit
                        whole.copy_(saved[name])
    return model  # each `with` has scattered rank 0's values


def build_with_fsdp2(config: GPTConfig, path, device) -> GPT:
    """FSDP2: one parameter is whole at a time, on every rank."""
    with torch.device("meta"):
        model = GPT(config)
    for block in model.blocks:
        fsdp2(block)
    fsdp2(model)
    model.to_empty(device=device)  # memory for the shards, and nothing in it
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, read_on_rank_0(path), options=options)
    return model
