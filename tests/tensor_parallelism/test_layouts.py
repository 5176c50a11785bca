"""Tensor parallelism beside data parallelism and ZeRO: a whole training on 4 and 8 ranks, against
the plain model on the whole batch, with gradients clipped on the way."""

import re
import sys
from functools import partial

import cloudpickle
import compositions
import pytest
import torch
from torch import nn

from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(compositions)
CONFIG = GPTConfig(
    layers=2, hidden=24, heads=8, key_value_heads=4, feed_forward=29, vocabulary=101, max_sequence=8
)


def drawn(seed):
    torch.manual_seed(seed)
    model = GPT(CONFIG).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batches(steps, parts):
    draw = torch.Generator().manual_seed(3)
    return torch.randint(CONFIG.vocabulary, (steps, 2, parts, 2, 8), generator=draw)


@pytest.mark.parametrize(
    "dp, tp, stage, sequence, chunks",
    [(2, 2, stage, sequence, 0) for stage in range(4) for sequence in (False, True)]
    + [(2, 2, stage, stage % 2, 3) for stage in range(4)]
    + [(4, 2, 1, True, 0), (2, 4, 3, True, 0)],
)
def test_training_beside_zero(worlds, dp, tp, stage, sequence, chunks):
    """Clipped steps of momentum, on parts of the batch, are the plain model's on all of it.

    Must catch: squares of a norm added over data parallelism alone, or of what tensor parallelism
    replicates added twice, by our clipping or by PyTorch's; cut and whole parameters in one flat
    tensor; gradients of own tokens not summed, or not those of shards; stages that hand out values
    across tensor-parallel ranks; with overlap, gradients that pass the hooks by."""
    case = compositions.layout(dp, stage, tp=tp, sequence_parallel=sequence, chunks=chunks)
    assert compositions.parity_in(worlds(dp * tp), case) == "parity"


# --- groups that mix parts ------------------------------------------------------------------------


def cut(mesh):
    return apply_tensor_parallel(drawn(seed=1), sequence_parallel(gpt_plan(CONFIG)), mesh.tp.group)


def shared(group, stage):
    return lambda mesh: zero.shard(
        cut(mesh), torch.optim.SGD, stage=stage, group=group(mesh), lr=0.1
    )


def summed(stage, group):
    def sum_over(mesh):
        model = cut(mesh)
        if stage is None:
            return sum_gradients(torch.optim.SGD(model.parameters()), group(mesh))
        _, optimizer = zero.shard(model, torch.optim.SGD, stage=stage, group=mesh.dp.group, lr=0.1)
        return sum_gradients(optimizer, group(mesh))

    return sum_over


def staged(mesh, parts=False):
    """A pipeline over the group that tensor parallelism has in the other cases."""
    model, layers = drawn(seed=1), lambda: [model.embedding, *model.blocks, model.head]
    plan = plan_pipeline(layers(), schedule("1F1B", 2, 2), batches(1, 1)[0, 0, 0])
    if parts:
        apply_tensor_parallel(model, gpt_plan(CONFIG), mesh.tp.group)
    return Pipeline(layers(), plan, next_token_loss, mesh.tp.group)


def cut_later(mesh, stage=None):
    """Tensor parallelism of a model that is in stages, has replicas or is sharded."""
    if stage is None:
        return apply_tensor_parallel(staged(mesh).layers, {}, mesh.tp.group)
    model = drawn(seed=1)
    kept = zero.shard(model, torch.optim.SGD, stage=stage, group=mesh.dp.group, lr=0.1)
    return apply_tensor_parallel(model, gpt_plan(CONFIG), mesh.tp.group), kept


GROUPS = dict(world=lambda mesh: None, tp=lambda mesh: mesh.tp.group, dp=lambda mesh: mesh.dp.group)
PARTS = r"rank \d: (\S+) is in part 1 of 2 of a model that is cut over ranks \[(0, 1|2, 3)\]"
CUT_ALREADY = r"rank \d: .* is a part or a shard, or has replicas or copies, already: cut the plain"
NOT_CUT = "no tensor parallelism cut this model over the ranks .* of this group: give sum_gradients"
MISUSES = {
    **{
        f"stage {stage} over {group}": (shared(GROUPS[group], stage), PARTS)
        for stage in (0, 1, 2, 3)
        for group in ("world", "tp")
    },
    **{
        f"sums over {group}, stage {stage}": (summed(stage, GROUPS[group]), NOT_CUT)
        for stage in (None, 1, 3)
        for group in ("world", "dp")
    },
    "stages in replicas": (lambda mesh: DistributedDataParallel(staged(mesh)), PARTS),
    "stages in shards": (
        lambda mesh: zero.shard(staged(mesh), torch.optim.SGD, stage=1, group=mesh.tp.group),
        PARTS,
    ),
    "a pipeline over parts": (lambda mesh: staged(mesh, parts=True), PARTS),
    "a shard in replicas": (
        lambda mesh: DistributedDataParallel(
            zero.shard(drawn(1), torch.optim.SGD, stage=3, group=mesh.tp.group, lr=0.1)[0]
        ),
        PARTS,
    ),
    "cut twice": (
        lambda mesh: apply_tensor_parallel(cut(mesh), gpt_plan(CONFIG), mesh.dp.group),
        CUT_ALREADY,
    ),
    "stages, then cut": (cut_later, CUT_ALREADY),
    **{
        f"stage {stage}, then cut": (partial(cut_later, stage=stage), CUT_ALREADY)
        for stage in (0, 1, 2, 3)
    },
}


def said_of_all(names):
    """On a rank: what each misuse raises."""
    torch.set_num_threads(1)
    mesh, said = Mesh(dp=2, tp=2), []
    for name in names:
        with pytest.raises(ValueError) as raised:
            MISUSES[name][0](mesh)
        said.append(str(raised.value))
    return said


def test_groups_that_mix_parts(worlds):
    """Two ranks of a group have other parts, or other layers, of what the group would replicate,
    shard or sum. Each is refused on all ranks, so all of them go on.

    Must catch: the guard left out of data parallelism, of stages 1 and 2, of stage 3, of a pipeline
    or of sums; a group that is compared by identity, not by its ranks; layers of a pipeline taken
    for whole; ZeRO's group taken for the one that has cut the model."""
    for said in worlds(4).run(said_of_all, list(MISUSES)):
        for (name, (_, pattern)), text in zip(MISUSES.items(), said, strict=True):
            assert re.match(pattern, text), (name, text)
