"""Saving a model that tensor parallelism or a pipeline has cut, wrappers, and ranks that disagree:
one folder for all, right afterwards, or refused before anything is written."""

import os
from contextlib import nullcontext

import compositions
import pytest
import torch
import torch.distributed as dist
from night import at_night
from told import told
from torch import nn

from shardlab import zero
from shardlab.saving import Damaged, SaveFailed, resume, save
from shardlab.saving.parts import plain_names
from shardlab.tensor_parallel import apply_tensor_parallel
from shardlab.tensor_parallel.hardened.plan import Whole


def outcome(work, *args, **options):
    """The result of work, or the sentence of its error."""
    try:
        return work(*args, **options)
    except (ValueError, SaveFailed, Damaged) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "axes, before, after",  # (data-parallel ranks, stage)
    [
        (dict(tp=2), (2, 0), (2, 3)),
        (dict(tp=2), (2, 3), (1, 0)),
        (dict(pp=2, microbatches=2), (2, 1), (1, 0)),
        *at_night((dict(tp=2), (1, 0), (2, 1)), (dict(pp=2, microbatches=2), (2, 0), (2, 2))),
    ],
)
def test_all_parts_in_one_folder(axes, before, after, worlds, tmp_path):
    """Must catch: each rank's half of its own part sewn together; one part given to all ranks; a
    part known by the rank that saved it; a save by the group of the ranks that hold the same."""
    case = compositions.layout(*before, after=after, optimizer="AdamW", clip=0, **axes)
    started = lambda n: nullcontext(worlds(n))
    assert compositions.outcome_on(started, case, str(tmp_path)) == "parity"
    assert os.listdir(tmp_path) == ["run"] and os.listdir(tmp_path / "run") == ["step-2"]


def saved(folder, model, step=1, **options):
    """Save and resume; the sentences of both, or None."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = outcome(save, folder, model, optimizer, step, **options)
    dist.barrier()
    return said


def replicas_that_differ(folder):
    """Save plain replicas, or stages of a pipeline by hand that are called alike."""
    torch.manual_seed(dist.get_rank())
    return saved(folder, nn.Linear(3, 4))


def other_steps(folder):
    return saved(folder, nn.Linear(1, 1, bias=False).requires_grad_(False), dist.get_rank())


def other_folders(folder):
    torch.manual_seed(0)
    return saved(f"{folder}/{dist.get_rank()}", nn.Linear(3, 4))


def a_buffer_on_one(folder):
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    _, optimizer = zero.shard(model, torch.optim.SGD, stage=1, lr=0.1)
    if dist.get_rank() == 1:
        model.register_buffer("seen", torch.zeros(2))
    return outcome(save, folder, model, optimizer, 1)


def averages_of_shards(folder):
    torch.manual_seed(0)
    model, optimizer = zero.shard(nn.Linear(4, 4), torch.optim.SGD, stage=3, lr=0.1)
    average = [p.detach().clone() for p in model.parameters()]
    return outcome(save, folder, model, optimizer, 1, extra=dict(average=average))


def buffers_before(technique):
    model = nn.Linear(3, 4)
    if dist.get_rank() == 1:
        model.register_buffer("seen", torch.zeros(2))
    if technique == "tensor parallelism":
        return outcome(apply_tensor_parallel, model, {"": Whole()})
    return outcome(zero.shard, model, torch.optim.SGD, stage=technique, lr=0.1)


@pytest.mark.parametrize("technique", (0, 1, 3, "tensor parallelism"))
def test_a_buffer_on_one_rank(technique, worlds):
    """Must catch: buffers handed out to a rank that does not have them, which waits forever."""
    for said in worlds(2).run(buffers_before, technique, limit_seconds=600):
        assert "rank 0 has nothing more, rank 1 has seen [2] torch.float32" in said


@pytest.mark.parametrize(
    "case, said", told("test_saving_parts::test_refused_before_anything_is_written", globals())
)
def test_refused_before_anything_is_written(case, said, worlds, tmp_path):
    """Must catch: parts of two models sewn together; older saves pruned for one that cannot be
    resumed; one rank that raises while the other waits."""
    for sentence in worlds(2).run(case, str(tmp_path / "new"), limit_seconds=600):
        assert (
            sentence.startswith("ValueError: ")
            and said.replace("{}", str(tmp_path / "new")) in sentence
        )
    assert not (tmp_path / "new").exists()


def other_layers(folder):
    """Stages by hand, and a buffer and a parameter order of each rank's own."""
    me = dist.get_rank()

    def made(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4 + me), nn.BatchNorm1d(4 + me, affine=me == 0))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = made(me)
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    save(folder, model, optimizer, 1)
    again, other = made(9)
    resume(folder, again, other)
    return all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))


def test_stages_by_hand(worlds, tmp_path):
    """Layers that nobody has marked as parts are parts, if they differ in name or shape.

    Must catch: rank 0's list of parameters taken for all ranks'."""
    assert worlds(2).run(other_layers, str(tmp_path)) == [True] * 2


def resumed_on(folder, dp, axes):
    run = compositions.Run(compositions.layout(dp, 0, **axes), 0)
    before = run.whole_weights()
    said = outcome(resume, folder, run.net, run.optimizer)
    assert all(map(torch.equal, before.values(), run.whole_weights().values()))
    return said


def test_another_number_of_parts(worlds, tmp_path):
    """Must catch: a part taken for the whole where the shapes allow it, silently."""
    worlds(2).run(compositions.first_half, compositions.layout(1, 0, tp=2), str(tmp_path))
    for dp, axes in ((1, {}), (1, dict(pp=2, microbatches=2)), (2, {})):
        for said in worlds(dp * axes.get("pp", 1)).run(resumed_on, str(tmp_path / "run"), dp, axes):
            assert said.startswith("ValueError: step-2: "), said
            assert "pp" in axes or (", part 1 of 2, now it is " in said and "whole_state" in said)


@pytest.mark.parametrize(
    "names, plain",
    [
        (["module._orig_mod.a", "module.b._orig_mod.c"], ["a", "b.c"]),
        (["_orig_mod.module.module.a", "module.b"], ["module.a", "b"]),
        (["module.a", "b"], ["module.a", "b"]),
    ],
)
def test_names_without_wrappers(names, plain):
    """Must catch: "module." or "_orig_mod." in a file; a module of the reader's own, called so."""
    assert list(map(plain_names(names), names)) == plain
