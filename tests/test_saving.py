"""Saving and resuming: the same run afterwards, on as many ranks and on others; and every way in which a save can go wrong."""

import os
import resource
import signal
import sys

import cloudpickle
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from shardlab import saving  # noqa: E402
from shardlab.ranks import RankDied, ranks  # noqa: E402
from shardlab.saving import Damaged, SaveFailed, resume, save  # noqa: E402
from shardlab.zero import stage1, stage2, stage3  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def two():
    with ranks(2, device="cpu", announce=False) as world:
        yield world


@pytest.fixture(scope="module")
def three():
    with ranks(3, device="cpu", announce=False) as world:
        yield world


class Network(nn.Module):
    """Odd sizes, a shard without elements on three ranks, a frozen layer, a buffer that changes."""

    def __init__(self):
        super().__init__()
        self.first, self.frozen, self.last = nn.Linear(5, 7), nn.Linear(7, 7).requires_grad_(False), nn.Linear(7, 1)
        self.scale = nn.Linear(1, 2, bias=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.scale(self.last(self.frozen(torch.tanh(self.first(x)))))


def training(stage, seed=0):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    model = Network()
    if stage == 3:
        stage3.fully_shard(model, [model.first, model.frozen, model.last, model.scale])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    else:
        optimizer = (stage1, stage2)[stage - 1].ShardedOptimizer(model.parameters(), torch.optim.AdamW, bucket_bytes=300, lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def steps(model, optimizer, scheduler, begin, end):
    """The losses of all ranks together: the batch of a step is the same however many share it."""
    n, me, losses = dist.get_world_size(), dist.get_rank(), []
    for step in range(begin, end):
        torch.manual_seed(step)
        x = torch.randn(6, 5)[6 * me // n:6 * (me + 1) // n]
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / n)
    return losses


def run_and_save(stage, folder, at=(2, 4), end=6):
    """The losses of a run that saves on its way."""
    model, optimizer, scheduler = training(stage)
    losses, begin = [], 0
    for step in (*at, end):
        losses += steps(model, optimizer, scheduler, begin, step)
        begin = step
        if step != end:
            save(folder, model, optimizer, step, extra=dict(scheduler=scheduler.state_dict()))
    return losses


def run_on(stage, folder, end=6):
    """(step resumed at, losses from there)."""
    model, optimizer, scheduler = training(stage, seed=9)
    saved = resume(folder, model, optimizer)
    scheduler.load_state_dict(saved.extra["scheduler"])
    return saved.step, steps(model, optimizer, scheduler, saved.step, end), model.seen.item()


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_the_run_goes_on(stage, two, three, tmp_path):
    """The losses of an undisturbed run: equal on as many ranks, to rounding on others, in both directions.

    Mutations: the step counter, a moment or the learning rate not brought back; chunks put one after the other in the order of the
    ranks, whatever their number; the frozen layer or the buffer forgotten; parameters of stages 1 and 2 not gathered."""
    for before, same, other in ((two, two, three), (three, three, two)):
        folder = tmp_path / f"{before.world_size}"
        whole = before.run(run_and_save, stage, str(folder))[0]
        assert sorted(path.name for path in folder.iterdir()) == ["step-2", "step-4"]
        step, losses, _ = same.run(run_on, stage, str(folder))[0]
        assert step == 4 and losses == whole[4:]
        found = other.run(run_on, stage, str(folder))
        assert found[0][1] == pytest.approx(whole[4:], rel=1e-12)
        assert found[0][2] == 4 * 6 / before.world_size + 2 * 6 / other.world_size


def killed_while_saving(stage, folder):
    model, optimizer, scheduler = training(stage)
    steps(model, optimizer, scheduler, 0, 5)
    whole = saving.flush

    def flush(file):
        whole(file)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # its file is written, the save is not

    saving.flush = flush
    save(folder, model, optimizer, 5)


def test_killed_while_saving(two, tmp_path):
    """The save before is there, and the next one takes the place of what was left.

    Mutations: files written into the folder with the final name; older saves removed before the new one is whole."""
    whole = two.run(run_and_save, 2, str(tmp_path), (4,))[0]
    with pytest.raises(RankDied, match="SIGKILL"):
        two.run(killed_while_saving, 2, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-4", "step-5.partial"]
    step, losses, _ = two.run(run_on, 2, str(tmp_path))[0]
    assert step == 4 and losses == whole[4:]


def full_disk(folder):
    model, optimizer, scheduler = training(3)
    steps(model, optimizer, scheduler, 0, 5)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        save(folder, model, optimizer, 5)
    except SaveFailed as failed:
        return str(failed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_full_disk(two, tmp_path):
    """A file that may not grow on one rank: all ranks say whose, and the save before is there.

    Mutation: the other rank goes on, and waits for ever or calls the save whole."""
    whole = two.run(run_and_save, 3, str(tmp_path), (4,))[0]
    for sentence in two.run(full_disk, str(tmp_path)):
        assert sentence.startswith(f"rank 1 could not write to {tmp_path}: ")
    assert two.run(run_on, 3, str(tmp_path))[0][:2] == (4, whole[4:])


def refused(stage, folder):
    model, optimizer, _ = training(stage)
    before = [p.detach().clone() for p in model.parameters()]
    try:
        resume(folder, model, optimizer)
    except (Damaged, ValueError) as error:
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
        return f"{type(error).__name__}: {error}"


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_one_flipped_bit(two, tmp_path):
    """In the middle of a rank's file, and in the manifest: refused on all ranks, nothing changed, the older save named.

    Mutation: the checksum not compared; compared after the first parameter was overwritten."""
    two.run(run_and_save, 3, str(tmp_path))
    file = tmp_path / "step-4" / "rank-1.pt"
    flip(file, file.stat().st_size // 2)
    for sentence in two.run(refused, 3, str(tmp_path)):
        assert sentence == ("Damaged: step-4/rank-1.pt is damaged: its SHA-256 is another than when it was saved. "
                            "Older saves: step-2.")
    flip(file, file.stat().st_size // 2)
    assert two.run(refused, 3, str(tmp_path)) == [None, None]
    file.write_bytes(file.read_bytes()[:-1])
    assert two.run(refused, 3, str(tmp_path))[0].startswith("Damaged: step-4/rank-1.pt has ")
    manifest = tmp_path / "step-4" / "manifest.json"
    flip(manifest, manifest.read_text().index("4"))
    assert two.run(refused, 3, str(tmp_path))[0].startswith("Damaged: step-4/manifest.json is damaged")


def bad_input(folder):
    model, optimizer, _ = training(2)
    found = [resume(folder, model, optimizer)]
    save(folder, model, optimizer, 1)
    for attempt in (lambda: save(folder, model, optimizer, 1), lambda: save(folder, model, optimizer, 2, keep=0)):
        try:
            attempt()
        except ValueError as error:
            found.append(str(error))
    return [*found, refused(3, folder)]


def test_bad_input(two, tmp_path):
    """Nothing to resume, a step saved twice, nothing to keep, another layout. Mutation: any check left out."""
    for nothing, twice, keep, layout in two.run(bad_input, str(tmp_path / "new")):
        assert nothing is None
        assert twice == "step = 1: step-1 is there already, and a save is never written over."
        assert keep == "keep = 0: at least the save just made must stay."
        assert layout.startswith("ValueError: step-1 has flat tensors [['bucket 0', ")
