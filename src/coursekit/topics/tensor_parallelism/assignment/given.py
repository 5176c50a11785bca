"""Helpers that the trials of the assignment share."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.exercises.grading import Assignment
from coursekit.exercises.on_a_rank import Here
from shardlab.gpt import Block
from shardlab.tensor_parallel import apply_tensor_parallel, core, vocabulary_parallel_loss
from shardlab.tensor_parallel.hardened.layers import (
    ColumnLinear,
    Cut,
    Parts,
    RowLinear,
    TokenEmbedding,
)
from shardlab.tensor_parallel.hardened.pairs import enter, leave
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Drops, Rows, Whole


def split_block(block: Block, group: dist.ProcessGroup | None = None) -> Block:
    """The reference's: what gpt_plan says of a block."""
    attention, mlp = block.attention, block.mlp
    size = (attention.queries_per_group + 2) * attention.head_size
    heads, inner = attention.qkv.out_features // size, mlp.up.out_features
    plan = {
        "attention_norm": Whole(),
        "attention": Around(),
        "attention.qkv": Columns(heads, "key_value_heads"),
        "attention.core.dropout": Drops(),
        "attention.output": Rows(heads, "key_value_heads"),
        "mlp_norm": Whole(),
        "mlp": Around(),
        "mlp.up": Columns(inner),
        "mlp.down": Rows(inner),
        "dropout": Whole(),
    }
    if mlp.gate is not None:
        plan["mlp.gate"] = Columns(inner)
    return apply_tensor_parallel(block, plan, group)


ASSIGNMENT = Assignment(
    "tensor_parallelism",
    reference={
        "enter": enter,
        "leave": leave,
        "ColumnLinear": lambda linear, group=None: ColumnLinear(
            linear, linear.out_features, Parts(group)
        ),
        "RowLinear": lambda linear, group=None: RowLinear(linear, linear.in_features, Parts(group)),
        "TokenEmbedding": lambda embedding, group=None: TokenEmbedding(embedding, Parts(group)),
        "vocabulary_parallel_loss": vocabulary_parallel_loss,
        "split_block": split_block,
    },
    core={
        "enter": core.enter,
        "leave": core.leave,
        "ColumnLinear": core.ColumnLinear,
        "RowLinear": core.RowLinear,
        "TokenEmbedding": core.TokenEmbedding,
        "vocabulary_parallel_loss": core.vocabulary_parallel_loss,
        "split_block": core.split_block,
    },
    forbidden=(
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.distributed._functional_collectives",
        "torch.distributed.nn",
    ),
    may_import=("shardlab.gpt",),
)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def filled(module: nn.Module, seed: int = 1) -> nn.Module:
    """The module in float64, with random biases too: zeros would hide a bias that is added on each
    rank."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data.normal_(generator=generator)
    return module


def part_of(whole: Tensor, dim: int, here: Here) -> Tensor:
    """This rank's part: the first ranks have one more where n does not divide."""
    return Cut(dim, whole.shape[dim]).part(whole, here.me, here.n)
