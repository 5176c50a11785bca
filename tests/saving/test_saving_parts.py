"""Saving a model that tensor parallelism or a pipeline has cut, wrappers, and ranks that disagree:
one folder for all, right afterwards, or refused before anything is written."""

import os
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import one_f_one_b
from shardlab.saving import Damaged, SaveFailed, resume, save
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict
from shardlab.tensor_parallel.hardened.plan import Whole
from shardlab.zero.hardened.full_parameters import unsharded

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CONFIG = dict(layers=2, hidden=8, heads=2, vocabulary=12, max_sequence=6)
RULE = dict(lr=0.1, weight_decay=0.1)


def outcome(work, *args, **options):
    """The result of work, or the sentence of its error."""
    try:
        return work(*args, **options)
    except (ValueError, SaveFailed, Damaged) as error:
        return f"{type(error).__name__}: {error}"


def gpt(seed):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    model = GPT(GPTConfig(**CONFIG))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batch(step, dp):
    """(tokens, targets) of this rank; a step has four sequences, however many ranks share it."""
    draw = torch.Generator().manual_seed(step)
    both = torch.randint(12, (2, 4, 6), generator=draw)
    return both.chunk(dp.size, 1)[dp.rank]


class Run:
    """A GPT on a mesh, cut by tensor parallelism into parts of equal shapes, or by a pipeline, or
    not cut; `stage` of ZeRO or of data parallelism, None for neither."""

    def __init__(self, seed, stage, **axes):
        mesh = self.mesh = Mesh(**axes)
        model, self.pipeline = gpt(seed), None
        if mesh.tp.size > 1:
            apply_tensor_parallel(model, gpt_plan(model.config), mesh.tp.group)
        if mesh.pp.size > 1:
            layers = [model.embedding, *model.blocks, model.head]
            plan = plan_pipeline(layers, one_f_one_b(2, 2), batch(0, mesh.dp)[0])
            model = self.pipeline = Pipeline(layers, plan, next_token_loss, mesh.pp.group)
        self.plain = model
        if stage is None:
            self.model = model
            self.optimizer = torch.optim.AdamW(model.parameters(), **RULE)
            return
        units = dict(units=model.blocks) if stage == 3 else {}
        self.model, self.optimizer = zero.shard(
            model, torch.optim.AdamW, stage=stage, group=mesh.dp.group, **RULE, **units
        )

    def step(self, number):
        tokens, targets = batch(number, self.mesh.dp)
        self.optimizer.zero_grad()
        if self.pipeline is not None:
            self.pipeline.step(tokens, targets)
        elif self.mesh.tp.size > 1:
            group = self.mesh.tp.group
            vocabulary_parallel_loss(self.model(tokens), targets, 12, group).backward()
        else:
            next_token_loss(self.model(tokens), targets).backward()
        self.optimizer.step()

    def weights(self):
        """The weights of the plain model, in the order of its names; of a pipeline this rank's."""
        with unsharded(self.plain):
            states = whole_state_dict(self.plain) if self.pipeline is None else {}
            return [p.clone() for p in (states or dict(self.plain.named_parameters())).values()]


def trained(folder, stage, axes, first, end, group=None):
    """Steps from `first` on, after a resume if it is not 0; a save in the middle. (step resumed at,
    weights)"""
    run, begin = Run(first, stage, **axes), 0
    if first:
        begin = resume(folder, run.model, run.optimizer).step
        assert begin == first
    for number in range(begin, end):
        run.step(number)
        if number == 1 and not first:
            save(folder, run.model, run.optimizer, 2)
    return run.weights()


@pytest.mark.parametrize(
    "before, after",
    [
        ((None, dict(tp=2)), (1, dict(dp=2, tp=2))),
        ((0, dict(dp=2, tp=2)), (3, dict(dp=2, tp=2))),
        ((3, dict(dp=2, tp=2)), (None, dict(tp=2))),
        ((0, dict(dp=2, pp=2)), (2, dict(dp=2, pp=2))),
        ((1, dict(dp=2, pp=2)), (None, dict(pp=2))),
    ],
)
def test_all_parts_in_one_folder(before, after, worlds, tmp_path):
    """Cut by tensor parallelism or by a pipeline, saved by all ranks without a group, resumed in
    another stage and by more or fewer replicas: two steps later the uninterrupted run's weights.

    Must catch: each rank's half of its own part sewn together; one part given to all ranks; a part
    known by the rank that saved it."""
    (stage, axes), (stage_after, axes_after) = before, after
    many, others = (worlds(2 * each.get("dp", 1)) for each in (axes, axes_after))
    want = many.run(trained, str(tmp_path), stage, axes, 0, 4)
    assert os.listdir(tmp_path) == ["step-2"]
    found = others.run(trained, str(tmp_path), stage_after, axes_after, 2, 4)
    for rank, weights in enumerate(found):
        for one, other in zip(want[rank % 2], weights, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-11)


# --- ranks that disagree --------------------------------------------------------------------------


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


def cut_and_its_replicas(folder):
    """The group of the ranks that hold the same, as for a folder of each part."""
    run = Run(0, 1, dp=2, tp=2)
    return outcome(save, folder, run.model, run.optimizer, 1, group=run.mesh.dp.group)


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
    for said in worlds(2).run(buffers_before, technique, limit_seconds=60):
        assert "rank 0 has nothing more, rank 1 has seen [2] torch.float32" in said


@pytest.mark.parametrize(
    "case, said",
    [
        (replicas_that_differ, "rank 1 has other values of weight than rank 0: a save has one"),
        (other_steps, "rank 0 gives step 0 for {}, rank 1 step 1 for {}: all ranks save together"),
        (other_folders, "rank 0 gives step 1 for {}/0, rank 1 step 1 for {}/1: all ranks save"),
        (cut_and_its_replicas, "and the model is cut among ranks ["),
        (averages_of_shards, "rank 1 has other values of the tensors in extra than rank 0: a save"),
        (a_buffer_on_one, "seen is not there on rank 0, and torch.float32 [2] as a buffer on rank"),
    ],
)
def test_refused_before_anything_is_written(case, said, worlds, tmp_path):
    """Must catch: parts of two models sewn together; older saves pruned for one that cannot be
    resumed; one rank that raises while the other waits."""
    world = worlds(4 if case is cut_and_its_replicas else 2)
    for sentence in world.run(case, str(tmp_path / "new"), limit_seconds=60):
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


def resumed_on(folder, axes):
    run = Run(1, None, **axes)
    before = run.weights()
    said = outcome(resume, folder, run.model, run.optimizer)
    assert all(map(torch.equal, before, run.weights()))
    return said


def test_another_number_of_parts(worlds, tmp_path):
    """Must catch: a part taken for the whole where the shapes allow it, silently."""
    worlds(2).run(trained, str(tmp_path), None, dict(tp=2), 0, 2)
    for axes in (dict(tp=1), dict(pp=2), dict(tp=1, dp=2)):
        for said in worlds(axes.get("pp", 1) * axes.get("dp", 1)).run(
            resumed_on, str(tmp_path), axes
        ):
            assert said.startswith("ValueError: step-2: "), said
            assert "pp" in axes or (", part 1 of 2, now it is " in said and "whole_state" in said)


# --- wrappers -------------------------------------------------------------------------------------


def wrapped(kind, seed):
    """(the model as a script has it, its optimizer); compiled, but never called."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    if kind in ("a compiled child", "a compiled child in stage 3"):
        model[1], model[2] = torch.compile(model[1]), torch.compile(model[2])
    if kind == "compiled replicas":
        model = torch.compile(DistributedDataParallel(model))
    if kind == "replicas of what is compiled":
        model = DistributedDataParallel(torch.compile(model))
    if kind == "PyTorch's replicas":
        model = nn.parallel.DistributedDataParallel(model)
    if kind in (1, 3, "a compiled child in stage 3"):
        return zero.shard(model, torch.optim.SGD, stage=1 if kind == 1 else 3, lr=0.1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def through_wrappers(folder):
    kinds = "plain", "a compiled child", "compiled replicas", 1, "replicas of what is compiled", 3
    found = []
    others = "PyTorch's replicas", "a compiled child in stage 3", "plain"
    for step, kind in enumerate((*kinds, *others)):
        model, optimizer = wrapped(kind, step)
        resume(folder, model, optimizer)
        save(folder, model, optimizer, step)
        if kind != 3 and kind != "a compiled child in stage 3":  # "plain" comes after it
            found.append([tensor.clone() for tensor in (*model.parameters(), *model.buffers())])
    return all(torch.equal(a, b) for other in found for a, b in zip(found[0], other, strict=True))


def test_names_without_wrappers(worlds, tmp_path):
    """One model, saved and resumed within wrapper after wrapper.

    Must catch: "module." or "_orig_mod." of a parameter or of a buffer in a file; a compiled unit
    of stage 3 counted twice."""
    assert worlds(2).run(through_wrappers, str(tmp_path)) == [True] * 2
    manifest = (tmp_path / "step-7" / "manifest.json").read_text()
    assert "1.running_mean" in manifest and "mod" not in manifest
