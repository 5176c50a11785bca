"""Saving beside the usual path: another run in the folder, folders and links of the reader,
manifests that nobody wrote, states that are easily forgotten."""

import fcntl
import json
import os
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from told import told
from torch import nn

from shardlab.saving import Damaged, SaveFailed, durable, resume, save
from shardlab.saving.together import reason
from shardlab.zero.hardened import stage3


def made(seed=0, rule=torch.optim.SGD):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return model, rule(model.parameters(), lr=0.1)


def outcome(work, *args, **options):
    """The result of work, or the sentence of its error."""
    try:
        return work(*args, **options)
    except (ValueError, SaveFailed, Damaged) as error:
        return f"{type(error).__name__}: {error}"


def save_at(folder, step, **options):
    return outcome(save, folder, *made(), step, **options)


def resume_from(folder):
    return outcome(resume, folder, *made())


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


PART = dict(ranks=[0, 1], flats=[], contents={})


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "changes, sentence", told("test_saving_beside::test_a_manifest_that_nobody_wrote", globals())
)
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
    return outcome(save, folder, model, optimizer, 1)


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
