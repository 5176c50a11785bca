"""Memory of a loader's workers, and other people's loaders beside this book's."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coursekit.formulas import evaluate
from shardlab.data_loading.core import TokenFile, TokenLoader, write_tokens

WORKERS_READ = """
import os, sys
from pathlib import Path

def pss(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))

items = %s
pids, (wait, go), (hear, say) = [], os.pipe(), os.pipe()
for _ in range(2):
    if pid := os.fork():
        pids.append(pid)
        continue
    os.write(say, b"x")
    os.read(wait, 1)
    for item in items:
        pass
    os.write(say, b"x")
    os.read(wait, 1)
    os._exit(0)
found = []
for _ in range(2):
    for _ in pids:
        os.read(hear, 1)
    found.append(sum(map(pss, [os.getpid(), *pids])))
    os.write(go, b"x" * len(pids))
print(found[1] - found[0])
"""
SAMPLES = 400_000


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this system counts no shared pages"
)
@pytest.mark.parametrize(
    "items, each",
    [
        ('[f"{i:07d}" for i in range(400_000)]', 64),  # 49 + 7, and up to the next 16
        ('[f"{i:030d}" for i in range(400_000)]', 80),
        ('b"0123456" * 400_000', 0),  # one object
    ],
    ids=["short strings", "longer strings", "one object"],
)
def test_workers_copy_what_they_read(items, each):
    """Must catch: half of a list a worker, which is what PSS says of one of them alone; a list that
    is thought to be shared because nobody writes to it."""
    asked = [sys.executable, "-c", WORKERS_READ % items]
    found = int(subprocess.run(asked, capture_output=True, check=True, text=True).stdout)
    given = dict(samples=SAMPLES, loader_workers=2)
    names = ["copied_by_workers_bytes"]
    if each:
        (formula,) = evaluate(names, object_bytes=each, **given).values()
        assert found == pytest.approx(formula, rel=0.05)
    else:
        assert found < 0.05 * 2 * SAMPLES * 64


@pytest.fixture
def loader(tmp_path):
    write_tokens(tmp_path / "t", np.arange(1001) * 7 % 777, 777)
    return TokenLoader(TokenFile(tmp_path / "t", 777), 10, global_batch=4, seed=3, epochs=1)


class Windows(torch.utils.data.Dataset):
    """Inputs by the number of a window."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return self.loader.windows

    def __getitem__(self, number):
        start = np.array([number * self.loader.sequence])
        return torch.from_numpy(self.loader.file.windows(start, self.loader.sequence)[0])


def order_of(loader):
    """Numbers of windows, in the order in which the loader has them."""
    steps = range(loader.steps)
    return np.concatenate([loader.starts(step) // loader.sequence for step in steps]).tolist()


def by_dataloader(loader, folder, begin):
    order = order_of(loader)[4 * begin :]
    return torch.utils.data.DataLoader(Windows(loader), 4, sampler=order)


def by_stateful_dataloader(loader, folder, begin):
    """Resumes by its own state, taken after the batch before."""
    stateful = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed: pip install torchdata"
    )
    make = lambda: stateful.StatefulDataLoader(Windows(loader), 4, sampler=order_of(loader))
    first, again = make(), make()
    batches = iter(first)
    for _ in range(begin):
        next(batches)
    again.load_state_dict(first.state_dict())
    return again


def by_webdataset(loader, folder, begin):
    """A tar in the order of the loader; a stream skips to where it goes on."""
    web = pytest.importorskip(
        "webdataset", reason="webdataset is not installed: pip install webdataset"
    )
    with web.TarWriter(str(folder / "all.tar")) as tar:
        for place, number in enumerate(order_of(loader)):
            tar.write({"__key__": f"{place:06d}", "npy": Windows(loader)[number].numpy()})
    stream = web.WebDataset(str(folder / "all.tar"), shardshuffle=False).decode().to_tuple("npy")
    rows = [torch.from_numpy(row) for (row,) in stream][4 * begin :]
    return [torch.stack(rows[at : at + 4]) for at in range(0, len(rows), 4)]


def by_datasets(loader, folder, begin):
    """An Arrow table, and the order as its indices."""
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed: pip install datasets"
    )
    rows = [Windows(loader)[number].tolist() for number in range(loader.windows)]
    try:
        table = datasets.Dataset.from_dict(dict(tokens=rows)).with_format("torch")
    except pickle.PicklingError as error:  # of a type of pyarrow, by 5.2 on Python 3.11
        pytest.skip(f"datasets {datasets.__version__} cannot hash its own table: {error}")
    chosen = table.select(order_of(loader)[4 * begin :])
    return [batch["tokens"] for batch in chosen.iter(batch_size=4)]


PEERS = by_dataloader, by_stateful_dataloader, by_webdataset, by_datasets


@pytest.mark.parametrize("begin", [0, 7])
@pytest.mark.parametrize("peer", PEERS, ids=[peer.__name__ for peer in PEERS])
def test_peers_give_the_same_batches(loader, tmp_path, peer, begin):
    """From the beginning, and from step 7. Must catch: a window that begins one token later; an
    order that is another one after a resumption."""
    found = list(peer(loader, tmp_path, begin))
    wanted = [inputs for inputs, _ in loader.batches(begin)]
    assert len(found) == len(wanted) == 25 - begin
    assert all(map(torch.equal, found, wanted))
