"""How a step is fed: for `make gpu`, four kinds of copies beside a step, and steps that wait for a
loader; for `make bench`, this book's loader beside DataLoader, and sleeping stores beside the
formula."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import torch
from torch.utils.data import DataLoader, Dataset

from coursekit.formulas import evaluate
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import Bench, Result, Run
from coursekit.recordings.recordings import Row
from shardlab.data_loading.core import TokenFile, TokenLoader, prefetched, write_tokens

COPIED_BYTES = 2**27  # of a batch: 256 images of 3 x 224 x 224 in fp32 are a little more
FED_STEPS = 20
FEEDERS = 0, 1, 2, 4


# --- copies beside a step -------------------------------------------------------------------------


def copied_by(to: Callable, batches: Iterable) -> Iterator:
    return ([to(part) for part in batch] for batch in batches)


def kinds_of_copies(device: torch.device) -> dict[str, Callable[[Iterable], Iterator]]:
    """Name -> batches on the host to batches on the device."""
    pinned = lambda part: part.pin_memory().to(device, non_blocking=True)
    not_waiting = lambda part: part.to(device, non_blocking=True)
    return {
        "pageable": partial(copied_by, lambda part: part.to(device)),
        "pageable, non-blocking": partial(copied_by, not_waiting),
        "pinned in the loop, non-blocking": partial(copied_by, pinned),
        "pinned by a thread, own stream": lambda batches: prefetched(batches, device),
    }


def multiplications(device: torch.device, size: int, count: int) -> Callable[[], object]:
    """A step that computes, and reads nothing back."""
    x = torch.randn(size, size, device=device)

    def step():
        for _ in range(count):
            torch.mm(x, x)

    return step


def seconds_a_step(batches: Iterator, step: Callable, steps: int, device: torch.device) -> float:
    """After two steps, of which the first may begin threads or processes."""
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for number, _ in enumerate(islice(batches, steps + 2)):
        step()
        if number == 1:
            finish()
            begin = perf_counter()
    finish()
    return (perf_counter() - begin) / steps


def copies_beside_a_step(device, nbytes: int, steps: int, size: int = 8192) -> Iterator[Row]:
    """The host's batch is one tensor, whose copy takes a few milliseconds; a step multiplies about
    as long."""
    batch = [torch.zeros(nbytes // 4)]
    step = multiplications(device, size, 2)
    case = dict(nbytes=nbytes, size=size)
    alone = seconds_a_step(repeat(None), step, steps, device)
    yield Row("feeding.copy_step", alone, "seconds", dict(**case, kind="no copy"))
    for kind, copies in kinds_of_copies(device).items():
        seconds = seconds_a_step(copies(repeat(batch)), step, steps, device)
        yield Row("feeding.copy_step", seconds, "seconds", dict(**case, kind=kind))


# --- a step and its loader ------------------------------------------------------------------------


class SleepingStore(Dataset):
    """Samples that take a while and nothing of the CPU."""

    def __init__(self, count: int, seconds: float):
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        sleep(self.seconds)
        return number


def loader_of(data: Dataset, batch: int, workers: int, **more) -> DataLoader:
    with warnings.catch_warnings(action="ignore"):  # more workers than cores
        return DataLoader(data, batch, num_workers=workers, **more)


def loaded_steps(
    device: torch.device,
    step: Callable,
    steps: int,
    workers: Iterable[int] = FEEDERS,
    sample_seconds: float = 0.005,
    batch: int = 8,
) -> Iterator[tuple[int, float, float, float]]:
    """(workers, seconds of a step, by formula, without loading), the step timed alone first."""
    alone = seconds_a_step(repeat(None), step, steps, device)
    for count in workers:
        store = SleepingStore((steps + 2) * batch, sample_seconds)
        found = seconds_a_step(iter(loader_of(store, batch, count)), step, steps, device)
        given = dict(
            loader_batch=batch,
            sample_microseconds=round(1e6 * sample_seconds),
            loader_workers=count,
            fed_step_microseconds=max(1, round(1e6 * alone)),
        )
        yield count, found, evaluate(["loaded_step_seconds"], **given)["loaded_step_seconds"], alone


def until_done(step: Callable, device: torch.device) -> Callable:
    """The step, until the device has done it, as one that reads its loss."""

    def whole():
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return whole


def steps_beside_a_loader(device, steps: int, size: int, **loads) -> Iterator[Row]:
    step = until_done(multiplications(device, size, 4), device)
    for workers, found, formula, alone in loaded_steps(device, step, steps, **loads):
        case = dict(workers=workers, by_formula=formula, alone=alone, device=device.type)
        yield Row("feeding.loaded_step", found, "seconds", case)


def feeding(
    device: torch.device,
    steps: int = FED_STEPS,
    nbytes: int = COPIED_BYTES,
    size: int = 8192,
    **loads,
) -> Iterator[Row]:
    """Copies beside a step where there is a CUDA GPU, and steps that wait for their loader."""
    if device.type == "cuda":
        copies = copies_beside_a_step(device, nbytes, steps, size)
        yield from attempt("feeding, copies", copies)
    beside = steps_beside_a_loader(device, steps, size if device.type == "cuda" else 256, **loads)
    yield from attempt("feeding, loader", beside)


# --- beside DataLoader ----------------------------------------------------------------------------


class ShuffledWindows(Dataset):
    """The windows of a file, for a DataLoader that shuffles and collates."""

    def __init__(self, file: TokenFile, sequence: int):
        self.file, self.sequence = file, sequence

    def __len__(self) -> int:
        return (len(self.file) - 1) // self.sequence

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.tensor([number * self.sequence]).numpy()
        row = torch.from_numpy(self.file.windows(start, self.sequence + 1)[0])
        return row[:-1], row[1:]


def race(tokens=20_000_000, turns=9, steps=10, step_ms=200) -> list[Result]:
    """An epoch by this book's loader over one by DataLoader with two workers, with their start and
    after the first batch; sleeping stores over the formula. Sleeps are long beside the microseconds
    by which a scheduler ends them late."""
    times = {name: [] for name in ("ours", "theirs", "ours, epoch", "theirs, epoch")}
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps mapped files
        path = Path(folder) / "tokens.bin"
        write_tokens(path, torch.arange(tokens) % 50_257, 50_257)
        file = TokenFile(path, 50_257)
        loader = TokenLoader(file, sequence=1024, global_batch=32, epochs=1)
        ways = {
            "ours": lambda: prefetched(loader.batches(0), "cpu"),
            "theirs": lambda: iter(
                loader_of(ShuffledWindows(file, 1024), 32, 2, shuffle=True, drop_last=True)
            ),
        }
        for _ in range(turns):
            for name, way in ways.items():
                begin = perf_counter()
                batches = way()
                next(batches)
                first = perf_counter()
                count = sum(1 for _ in batches)
                times[name].append((perf_counter() - first) / count)
                times[f"{name}, epoch"].append(perf_counter() - begin)
    results = []
    for which, words in (("", "a batch of 32 x 1,024 tokens"), (", epoch", "an epoch of them")):
        ours, theirs = (times[f"{name}{which}"] for name in ("ours", "theirs"))
        ratio = median(a / b for a, b in zip(ours, theirs))
        note = f"{1e3 * median(ours):.2f} and {1e3 * median(theirs):.2f} ms, {turns} turns"
        what = f"{words}, this book's loader / DataLoader, 2 workers"
        results.append(Result("feeding", what, round(ratio, 3), "x", 1.0, note))
    step = lambda: sleep(step_ms / 1e3)
    stores = loaded_steps(torch.device("cpu"), step, steps, sample_seconds=step_ms / 4e3)
    for workers, found, formula, _ in stores:
        what = f"{step_ms} ms, 8 samples of {step_ms / 4:g}, {workers} workers: measured / formula"
        note = f"{1e3 * found:.1f} and {1e3 * formula:.1f} ms"
        results.append(Result("feeding", what, round(found / formula, 3), "x", 1.1, note))
    return results


RUNS = (
    Run(85, feeding, dict(steps=2, nbytes=2**16, size=32, workers=(0, 1), sample_seconds=0.001)),
)
BENCHES = (Bench("feeding", race, dict(tokens=200_000, turns=1, steps=2, step_ms=20)),)
