"""Saving a model that tensor parallelism or a pipeline has cut, wrappers, and ranks that disagree:
one folder for all, right afterwards, or refused before anything is written."""

import fcntl
import json
import os
import random
from contextlib import nullcontext

import compositions
import numpy as np
import pytest
import torch
import torch.distributed as dist
from night import at_night
from refusals import answer_of
from told import from_told
from torch import nn

from shardlab import zero
from shardlab.saving import Damaged, durable, resume, save
from shardlab.saving.together import reason
from shardlab.tensor_parallel import apply_tensor_parallel
from shardlab.tensor_parallel.hardened.plan import Whole
from shardlab.zero.hardened import stage3


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
    said = answer_of(save, folder, model, optimizer, step, **options)
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
    return answer_of(save, folder, model, optimizer, 1)


def averages_of_shards(folder):
    torch.manual_seed(0)
    model, optimizer = zero.shard(nn.Linear(4, 4), torch.optim.SGD, stage=3, lr=0.1)
    average = [p.detach().clone() for p in model.parameters()]
    return answer_of(save, folder, model, optimizer, 1, extra=dict(average=average))


def buffers_before(technique):
    model = nn.Linear(3, 4)
    if dist.get_rank() == 1:
        model.register_buffer("seen", torch.zeros(2))
    if technique == "tensor parallelism":
        return answer_of(apply_tensor_parallel, model, {"": Whole()})
    return answer_of(zero.shard, model, torch.optim.SGD, stage=technique, lr=0.1)


@pytest.mark.parametrize("technique", (0, 1, 3, "tensor parallelism"))
def test_a_buffer_on_one_rank(technique, worlds):
    """Must catch: buffers handed out to a rank that does not have them, which waits forever."""
    for said in worlds(2).run(buffers_before, technique, limit_seconds=600):
        assert "rank 0 has nothing more, rank 1 has seen [2] torch.float32" in said


@from_told("case, said")
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
    said = answer_of(resume, folder, run.net, run.optimizer)
    assert all(map(torch.equal, before.values(), run.whole_weights().values()))
    return said


def test_another_number_of_parts(worlds, tmp_path):
    """Must catch: a part taken for the whole where the shapes allow it, silently."""
    worlds(2).run(compositions.first_half, compositions.layout(1, 0, tp=2), str(tmp_path))
    for dp, axes in ((1, {}), (1, dict(pp=2, microbatches=2)), (2, {})):
        for said in worlds(dp * axes.get("pp", 1)).run(resumed_on, str(tmp_path / "run"), dp, axes):
            assert said.startswith("ValueError: step-2: "), said
            assert "pp" in axes or (", part 1 of 2, now it is " in said and "whole_state" in said)


# --- saved beside training ------------------------------------------------------------------------


def made(seed=0, rule=torch.optim.SGD):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return model, rule(model.parameters(), lr=0.1)


def save_at(folder, step, **options):
    return answer_of(save, folder, *made(), step, **options)


def resume_from(folder):
    return answer_of(resume, folder, *made())


def test_another_run_saves(two, tmp_path):
    """Must catch: no lock: the two saves would clear away each other's files."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    sentence = (
        f"SaveFailed: another run saves into {tmp_path} at this moment: give each run a folder of"
        " its own."
    )
    assert two.run(save_at, str(tmp_path), 1) == [sentence] * 2
    os.close(handle)
    assert two.run(save_at, str(tmp_path), 1) == [None] * 2
    assert os.listdir(tmp_path) == ["step-1"]


def test_what_is_the_readers_stays(two, tmp_path):
    """Must catch: a partial folder taken by its name alone; a link followed, or refused by rmtree
    forever; an empty folder counted as a save when old ones are removed; digits of other scripts
    taken for a step."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "manifest.json").write_text("{}")
    (tmp_path / "saves").mkdir()
    (tmp_path / "saves" / "step-0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "saves" / "step-notes.partial").mkdir()
    (tmp_path / "saves" / "step-3.partial").write_text("a file")
    (tmp_path / "saves" / "step-4.partial").mkdir()
    (tmp_path / "saves" / "step-4.partial" / "notes.txt").write_text("mine")
    (tmp_path / "saves" / "step-2").mkdir()
    (tmp_path / "saves" / "step-\N{ARABIC-INDIC DIGIT NINE}").mkdir()
    for step in (5, 6, 7):
        assert two.run(save_at, str(tmp_path / "saves"), step) == [None] * 2
    assert sorted(os.listdir(tmp_path / "saves")) == [
        "step-0",
        "step-2",
        "step-3.partial",
        "step-4.partial",
        "step-6",
        "step-7",
        "step-notes.partial",
        "step-\N{ARABIC-INDIC DIGIT NINE}",
    ]
    assert os.listdir(tmp_path / "elsewhere") == ["manifest.json"]


@pytest.mark.parametrize("step, keep", [(True, 2), (1.0, 2), (1, 2.5), (1, "2"), (1, True)])
def test_numbers_that_are_none(step, keep, two, tmp_path):
    """Must catch: `step-True`, which resume never finds; a save that is whole and says it failed,
    because keep cannot cut a list."""
    for said in two.run(save_at, str(tmp_path / "new"), step, keep=keep):
        assert said.startswith("ValueError: ") and "must be a whole number" in said
    assert not (tmp_path / "new").exists()


def forge(manifest, **changes):
    content = json.loads(manifest.read_text())
    content.pop("sha256")
    content = {key: value for key, value in {**content, **changes}.items() if value is not None}
    manifest.write_text(json.dumps(content | {"sha256": durable.digest(content)}))


PART = dict(ranks=[0, 1], contents={}, written=[])


@pytest.mark.one_in(2)
@from_told("changes, sentence")
def test_a_manifest_that_nobody_wrote(changes, sentence, two, tmp_path):
    """Must catch: numbers of a manifest used before they are compared: uninitialised memory for no
    ranks, hours for a billion, `Cannot specify ',' with 's'` for a size; a format of tomorrow."""
    two.run(save_at, str(tmp_path), 1)
    forge(tmp_path / "step-1" / "manifest.json", **changes)
    for said in two.run(resume_from, str(tmp_path)):
        assert said.startswith("Damaged: ") and sentence in said


@pytest.mark.parametrize("extra", [0, [], "", None, {"a": 0}])
def test_extra_comes_back(extra, two, tmp_path):
    """Must catch: `extra or {}`, which turns 0 and an empty list into a dict."""
    two.run(save_at, str(tmp_path), 1, extra=extra)
    want = {} if extra is None else extra
    assert [found.extra for found in two.run(resume_from, str(tmp_path))] == [want] * 2


def own_states(folder):
    """On each rank other running means, and other places of its generators."""
    model, optimizer = made()
    me = dist.get_rank()
    model(torch.full((5, 3), 1.0 + me) * torch.arange(5.0)[:, None])
    random.seed(me)
    np.random.seed(me)
    save(folder, model, optimizer, 1)
    before = model[1].running_mean.clone(), random.random(), np.random.rand()
    again, optimizer = made(1)
    random.seed(99)
    np.random.seed(99)
    resume(folder, again, optimizer)
    after = again[1].running_mean, random.random(), np.random.rand()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    return model[1].running_mean.tolist()


def test_buffers_and_generators_of_every_rank(two, worlds, tmp_path):
    """Must catch: rank 0's running means given to all; Python's and NumPy's generators left where
    they were."""
    ours, theirs = two.run(own_states, str(tmp_path))
    assert ours != theirs

    def alone(folder):
        model, optimizer = made(1)
        resume(folder, model, optimizer)
        return model[1].running_mean.tolist()

    assert worlds(1).run(alone, str(tmp_path)) == [ours]


class Remembers(torch.optim.SGD):
    """Keeps two gradients of each shard, as LBFGS keeps a hundred."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["history"] = torch.zeros(2, p.numel())


def with_a_history(folder):
    torch.manual_seed(0)
    model = stage3.fully_shard(nn.Linear(3, 4))
    optimizer = Remembers(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()
    return answer_of(save, folder, model, optimizer, 1)


def test_states_of_another_shape(two, tmp_path):
    """Must catch: what an optimizer remembers saved as rank 0's and given to all."""
    for said in two.run(with_a_history, str(tmp_path)):
        assert said.startswith("ValueError: ") and "element by element" in said


def test_code_in_a_file_is_not_read(tmp_path):
    """Must catch: torch's own message, which says how to run the code all the same."""

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    written = durable.write(tmp_path / "file.pt", Evil())
    with pytest.raises(Damaged, match="it was not read, because reading it could run code") as told:
        durable.read(tmp_path / "file.pt", *written)
    assert "weights_only" not in str(told.value) and not (tmp_path / "ran").exists()


def test_a_circle_of_causes():
    """Must catch: a walk along `raise error from error` that never ends."""
    error = RuntimeError("full")
    error.__cause__ = error
    assert reason(error) == "full"
