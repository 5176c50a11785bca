"""Runs that are killed, in a step and while they save, and go on: their losses are those of a run
that nobody disturbed. On as many ranks they are the same numbers, dropout included; on others the
batch is summed in other parts, and each step carries that on, hence 1e-10, without dropout, which
each rank draws for itself."""

import os
import shutil
import signal
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from night import at_night

from coursekit.topics.saving import pictures
from ranklab.ranks import RankDied
from shardlab import zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.saving import checkpoint as saving
from shardlab.saving import durable
from shardlab.saving.checkpoint import SaveFailed, resume, save
from shardlab.saving.folders import saves

CONFIG = GPTConfig(layers=2, hidden=12, heads=2, vocabulary=29, max_sequence=8)
BATCH, END, EVERY = 12, 9, 3
# torch.distributed.checkpoint says that it works for one process, which is what these tests want
WITHOUT_GROUPS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def train(stage, folder, dropout=0.0, dies=None, **options):
    """{step: loss} from the last save on. `dies` is (rank, step): there it is killed, when it has
    its gradients."""
    n, me = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(me)
    model = GPT(replace(CONFIG, dropout=dropout)).double()
    own = dict(units=model.blocks) if stage == 3 else dict(bucket_bytes=5_000)
    rule = dict(optimizer_cls=torch.optim.AdamW, lr=0.01, weight_decay=0.1)
    _, optimizer = zero.shard(model, stage=stage, **rule, **own)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, END)
    begin, losses = 0, {}
    if (saved := resume(folder, model, optimizer)) is not None:
        begin = saved.step
        scheduler.load_state_dict(saved.extra["scheduler"])
    for step in range(begin, END):
        chance = torch.Generator().manual_seed(step)
        tokens = torch.randint(29, (BATCH, 8), generator=chance)[
            BATCH * me // n : BATCH * (me + 1) // n
        ]
        optimizer.zero_grad()
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        if dies == (me, step):
            kill()
        optimizer.step()
        scheduler.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses[step] = total.item() / n
        if (step + 1) % EVERY == 0 and step + 1 < END:
            save(
                folder,
                model,
                optimizer,
                step + 1,
                extra=dict(scheduler=scheduler.state_dict()),
                **options,
            )
    return losses


def last(losses, begin):
    return {step: losses[step] for step in range(begin, END)}


@pytest.mark.parametrize("stage, dropout", [(3, 0.1), *at_night((1, 0.0), (2, 0.0), (3, 0.0))])
def test_killed_in_a_step(stage, dropout, worlds, tmp_path):
    """In step 7, after saves at 3 and 6: bit for bit on three ranks, 1e-10 on two and four.
    Mutations: dropout's random state, the schedule, or a moment not brought back; chunks of the
    save's ranks taken for those of the ranks that there are."""
    three, disturbed = worlds(3), tmp_path / "disturbed"
    whole = three.run(train, stage, str(tmp_path / "whole"), dropout)[0]
    with pytest.raises(RankDied, match="Rank 1 died: .* SIGKILL"):
        three.run(train, stage, str(disturbed), dropout, (1, 7))
    assert sorted(os.listdir(disturbed)) == ["step-3", "step-6"]
    for n in (3,) if dropout else (3, 2, 4):
        shutil.copytree(disturbed, folder := tmp_path / f"{n}")
        found = worlds(n).run(train, stage, str(folder), dropout)[0]
        assert found == (last(whole, 6) if n == 3 else pytest.approx(last(whole, 6), rel=1e-10)), n


def dies_in_the_save(stage, folder, rank, where):
    """A run whose rank is killed in the save of step 6, in or before what `where` says."""

    def at(function, number=0):
        calls = iter(range(1_000))

        def killing(*args):
            if (
                os.path.isdir(f"{folder}/step-3")
                and next(calls) == number
                and dist.get_rank() == rank
            ):
                kill()
            return function(*args)

        return killing

    def removes_some(path):
        os.remove(f"{path}/rest.pt")
        kill()

    if where == "in its file":
        durable.Hashed.write = at(durable.Hashed.write, 5)
    elif where == "before the manifest":
        saving.write_json = at(saving.write_json)
    elif where == "before the move":
        os.rename = at(os.rename)
    elif where == "after the move":
        # the first is that of step 3, the second before the move
        saving.flush_folder = at(saving.flush_folder, 2)
    elif where == "while it removes the older one":
        shutil.rmtree = removes_some
    train(stage, folder, keep=1)


PLACES = (
    (1, "in its file"),
    (0, "before the manifest"),
    (0, "before the move"),
    (0, "after the move"),
    (0, "while it removes the older one"),
)
NEWEST = {pictures.OLD_SAVE: 3, pictures.NEW_SAVE: 6}
KILLS = [
    (*place, NEWEST[phase.found]) for place, phase in zip(PLACES, pictures.SAVE_PHASES, strict=True)
]


@pytest.mark.parametrize("rank, where, begin", [KILLS[0], *at_night(*KILLS[1:])])
def test_killed_in_the_save(rank, where, begin, worlds, tmp_path):
    """In each phase of the picture. Mutations: files written into the folder with the final name;
    the older save removed before the new one is whole; the older one removed under its name, so
    that a half of it looks like a whole; a picture that says otherwise."""
    whole = worlds(2).run(train, 2, str(tmp_path / "whole"), keep=1)[0]
    folder = tmp_path / "disturbed"
    with pytest.raises(RankDied, match=f"Rank {rank} died: .* SIGKILL"):
        worlds(2).run(dies_in_the_save, 2, str(folder), rank, where)
    left = any(".partial" in name for name in os.listdir(folder))
    assert f"step-{begin}" in os.listdir(folder)
    assert left == (rank == 0 and where != "after the move")  # a rank 0 that lives clears up
    assert worlds(2).run(train, 2, str(folder), keep=1)[0] == last(whole, begin)
    if begin == 3:
        assert os.listdir(folder) == ["step-6"]


CALLS = ("write", "write_json", "os.rename", "flush_folder", "shutil.rmtree")


def saves_after_a_failure(call, folder):
    """On a rank: whole saves, the newest first, after one whose last call of this name failed."""
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters())
    save(folder, model, optimizer, 3)
    fails = [None] * (call == "flush_folder") + [OSError]  # the first is before the move
    stop = mock.patch(f"shardlab.saving.checkpoint.{call}", side_effect=fails)
    with stop, suppress(SaveFailed):
        save(folder, model, optimizer, 6, keep=1)
    return [found.name for found in saves(folder)]


def saves_after_each(folder):
    return [saves_after_a_failure(call, folder / call) for call in CALLS]


def test_what_can_be_read_after_each_phase(worlds, tmp_path):
    """Must catch: a folder that gets its name before its manifest; a picture that says so; an older
    save that is half removed and looks whole."""
    (found,) = worlds(1).run(saves_after_each, tmp_path)
    wanted = [f"step-{NEWEST[phase.found]}" for phase in pictures.SAVE_PHASES]
    assert [newest for newest, *_ in found] == wanted and found[-1] == wanted[-1:]


def two_halves(stage, folder, begin):
    """Ranks 0 and 1, 2 and 3 have a model for each pair, which is saved in a folder of its own."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    number = dist.get_rank() // 2
    torch.manual_seed(begin + number)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    _, optimizer = zero.shard(model, torch.optim.AdamW, stage=stage, group=pairs[number])
    if begin == 0:
        save(f"{folder}/{number}", model, optimizer, 1)
    else:
        resume(f"{folder}/{number}", model, optimizer)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("stage", (1, 3))
def test_groups_of_ranks(stage, worlds, tmp_path):
    """Mutation: shards cut by the world instead of the group that the model or the optimizer
    has."""
    saved, resumed = (worlds(4).run(two_halves, stage, str(tmp_path), begin) for begin in (0, 9))
    for before, after in zip(saved, resumed):
        assert all(map(torch.equal, before, after))
    assert sorted(path.name for path in (tmp_path / "1" / "step-1").glob("*.pt")) == [
        "rank-0.pt",
        "rank-1.pt",
        "rest.pt",
    ]


def overwrites(path, number):
    """torch.save over a file of the same size, in a process that is killed before the number-th
    part of it is written; the number of parts of one that is not."""

    class Killing(durable.Hashed):
        parts = 0

        def write(self, part):
            if self.parts == number:
                self.file.flush()
                kill()
            self.parts += 1
            return super().write(part)

    if not (child := os.fork()):
        with open(path, "wb") as file:
            torch.save(torch.ones(64, 64), killing := Killing(file))
        os._exit(killing.parts)
    ended = os.waitpid(child, 0)[1]
    assert number is None or os.WTERMSIG(ended) == signal.SIGKILL
    return os.waitstatus_to_exitcode(ended)


def overwrites_dcp(folder, killed):
    """A save by torch.distributed.checkpoint, killed when it has opened its file and writes the
    first tensor."""
    if killed:
        torch.save = lambda *_: kill()
    dcp.save(dict(w=torch.ones(64, 64)), checkpoint_id=folder, no_dist=True)


class Nothing:
    """An optimizer without states, as SGD is; to make one of torch's takes a new rank a second."""

    def __init__(self, parameters):
        self.param_groups = [dict(params=list(parameters), lr=0.1)]

    def state_dict(self):
        return dict(state={}, param_groups=[])


def saves_again(folder, number):
    """save() of a plain model, killed before the number-th part of all that it writes."""
    model = torch.nn.Linear(64, 64)
    whole, written = durable.Hashed.write, iter(range(1_000_000))

    def write(self, part):
        if next(written) == number:
            kill()
        return whole(self, part)

    durable.Hashed.write = write
    try:
        save(folder, model, Nothing(model.parameters()), 1 if number is None else 2)
    finally:
        durable.Hashed.write = whole
    return next(written)


@WITHOUT_GROUPS
def test_killed_while_overwriting(worlds, tmp_path):
    """At eight points: only save()'s old one can be read. Mutation: one of them killed before it
    begins or after it is done, which proves nothing."""
    path, folder = tmp_path / "model.pt", tmp_path / "saves"
    parts = overwrites(path, None)
    (all_parts,) = worlds(1).run(saves_again, str(folder), None)
    for eighth in range(8):
        overwrites(path, None)
        assert torch.load(path).sum() == 64 * 64
        overwrites(path, eighth * parts // 8)
        with pytest.raises((RuntimeError, OSError, EOFError)):
            torch.load(path)
        with pytest.raises(RankDied):
            worlds(1).run(saves_again, str(folder), eighth * all_parts // 8)
        (newest,) = saving.saves(folder)
        for name, written in durable.read_json(newest / saving.MANIFEST)["files"].items():
            durable.read(newest / name, *written)
        assert newest.name == "step-1"
    worlds(1).run(overwrites_dcp, str(tmp_path / "dcp"), False)
    dcp.load(dict(w=torch.zeros(64, 64)), checkpoint_id=tmp_path / "dcp", no_dist=True)
    with pytest.raises(RankDied):
        worlds(1).run(overwrites_dcp, str(tmp_path / "dcp"), True)
    with pytest.raises(dcp.api.CheckpointException):
        dcp.load(dict(w=torch.zeros(64, 64)), checkpoint_id=tmp_path / "dcp", no_dist=True)


@WITHOUT_GROUPS
def test_one_flipped_bit_in_torchs_own(tmp_path):
    """PyTorch says nothing, as the chapter does; a later one may. Mutation: the bit flipped beside
    the tensor's bytes."""
    tensor = torch.linspace(1, 2, 64)
    torch.save(dict(w=tensor), tmp_path / "model.pt")
    dcp.save(dict(w=tensor), checkpoint_id=tmp_path / "dcp")

    def load_dcp():
        found = dict(w=torch.zeros(64))
        dcp.load(found, checkpoint_id=tmp_path / "dcp")
        return found["w"]

    for path, load in (
        (tmp_path / "model.pt", lambda: torch.load(tmp_path / "model.pt")["w"]),
        (tmp_path / "dcp" / "__0_0.distcp", load_dcp),
    ):
        whole = path.read_bytes()
        begin = whole.index(tensor.numpy().tobytes())
        assert torch.equal(load(), tensor)
        for bit in range(0, 8 * tensor.nbytes, 61):
            place = begin + bit // 8
            path.write_bytes(
                whole[:place] + bytes([whole[place] ^ 1 << bit % 8]) + whole[place + 1 :]
            )
            assert (load() != tensor).sum() == 1
