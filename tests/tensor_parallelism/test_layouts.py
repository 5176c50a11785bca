"""Tensor parallelism beside data parallelism and ZeRO: a whole training on 4 and 8 ranks, against
the plain model on the whole batch, with gradients clipped on the way."""

from functools import partial

import compositions
import pytest
import torch
from drawn import drawn_gpt
from night import at_night
from refusals import begins, said_by
from told import told
from torch import nn

from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel  # noqa: F401 (told.md names it)
from shardlab.gpt import GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)

CONFIG = GPTConfig(
    layers=2, hidden=24, heads=8, key_value_heads=4, feed_forward=29, vocabulary=101, max_sequence=8
)


def batches(steps, parts):
    draw = torch.Generator().manual_seed(3)
    return torch.randint(CONFIG.vocabulary, (steps, 2, parts, 2, 8), generator=draw)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "dp, tp, stage, sequence, chunks",
    [(2, 2, 0, True, 0), (2, 2, 2, True, 0), (2, 2, 3, False, 0), (2, 2, 1, 1, 3), (2, 2, 3, 1, 3)]
    + at_night(
        *((2, 2, 1, False, 0), (2, 2, 0, 0, 3), (2, 2, 2, 0, 3)),
        *((2, 2, stage, stage % 2 == 1, 0) for stage in range(4)),
        *((4, 2, 1, True, 0), (2, 4, 3, True, 0)),
    ),
)
def test_training_beside_zero(worlds, dp, tp, stage, sequence, chunks):
    """Must catch: squares of a norm added over data parallelism alone, or of what tensor
    parallelism replicates added twice, by our clipping or by PyTorch's; cut and whole parameters in
    one flat tensor; gradients of own tokens not summed, or not those of shards; stages that hand
    out values across tensor-parallel ranks; with overlap, gradients that pass the hooks by."""
    case = compositions.layout(dp, stage, tp=tp, sequence_parallel=sequence, chunks=chunks)
    assert compositions.parity_in(worlds(dp * tp), case) == "parity"


shard = partial(zero.shard, optimizer_cls=torch.optim.SGD, lr=0.1)


def cut(mesh):
    return apply_tensor_parallel(
        drawn_gpt(CONFIG, seed=1), sequence_parallel(gpt_plan(CONFIG)), mesh.tp.group
    )


def sums(mesh, stage, group):
    model = cut(mesh)
    optimizer = torch.optim.SGD(model.parameters())
    if stage is not None:
        model, optimizer = shard(model, stage=stage, group=mesh.dp.group)
    return sum_gradients(optimizer, group), model  # a model that is let go has nothing to sum


def sums_beside_shards(mesh, group):
    """While another model lives, whose shards know the group."""
    kept = shard(cut(mesh), stage=1, group=mesh.dp.group)
    return sums(mesh, None, group), kept


def staged(mesh, parts=False):
    """A pipeline over the group that tensor parallelism has in the other cases."""
    model, layers = drawn_gpt(CONFIG, seed=1), lambda: [model.embedding, *model.blocks, model.head]
    plan = plan_pipeline(layers(), schedule("1F1B", 2, 2), batches(1, 1)[0, 0, 0])
    if parts:
        apply_tensor_parallel(model, gpt_plan(CONFIG), mesh.tp.group)
    return Pipeline(layers(), plan, next_token_loss, mesh.tp.group)


def cut_later(mesh, stage=None):
    """Tensor parallelism of a model that is in stages, has replicas or is sharded."""
    if stage is None:
        return apply_tensor_parallel(staged(mesh).layers, {}, mesh.tp.group)
    model = drawn_gpt(CONFIG, seed=1)
    kept = stage(model) if callable(stage) else shard(model, stage=stage, group=mesh.dp.group)
    return apply_tensor_parallel(model, gpt_plan(CONFIG), mesh.tp.group), kept


def said_of_all(misuses):
    """On a rank: what each misuse raises."""
    torch.set_num_threads(1)
    mesh = Mesh(dp=2, tp=2)
    return [said_by(partial(misuse, mesh), ValueError) for misuse in misuses]


def test_groups_that_mix_parts(worlds):
    """Must catch: the guard left out of data parallelism, of stages 1 and 2, of stage 3, of a
    pipeline or of sums; PyTorch's replicas of what is cut later, which average none of the parts; a
    group that is compared by identity, not by its ranks; layers of a pipeline taken for whole;
    ZeRO's group taken for the one that has cut the model."""
    misuses, sentences = zip(*told("test_layouts::test_groups_that_mix_parts", globals()))
    for said in worlds(4).run(said_of_all, misuses):
        for sentence, text in zip(sentences, said, strict=True):
            assert begins(text, sentence), (sentence, text)


def norms_beside_fully_shard():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, plain, tokens = Mesh(dp=2, tp=2), drawn_gpt(CONFIG, 0), batches(1, 2)[0]
    of_torch = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["dp"]
    model = apply_tensor_parallel(drawn_gpt(CONFIG, 0), gpt_plan(CONFIG), mesh.tp.group)
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=of_torch)
    inputs, targets = tokens[:, of_torch.get_local_rank()]
    loss = vocabulary_parallel_loss(model(inputs), targets, CONFIG.vocabulary, mesh.tp.group)
    loss.backward()
    next_token_loss(plain(tokens[0].flatten(0, 1)), tokens[1].flatten(0, 1)).backward()
    clipped = [nn.utils.clip_grad_norm_(net.parameters(), 0.1) for net in (model, plain)]
    return [*map(float, clipped), float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))]


def test_the_norm_beside_torchs_fully_shard(worlds):
    """Must catch: a norm that has the other half of the parts in no rank, so that ranks clip
    unlike."""
    for ours, plain, after in worlds(4).run(norms_beside_fully_shard):
        assert ours == pytest.approx(plain, rel=1e-12) and after == pytest.approx(0.1, rel=1e-4)
