"""Ways to do the same thing, side by side: built alike, weighed alike, timed in turns.

    TASK = Task("5.3M parameters", dict(layers=4, ...))
    WAYS = {"ours": Way(wrap, peers=("PyTorch",)), "PyTorch": Way(theirs)}
    with ranks(2) as world:
        weights = {name: world.run(weighed, way, TASK)[0] for name, way in WAYS.items()}
        times = world.run(train_in_turns, WAYS, TASK)[0]
    median_ratio(times, "ours", fastest(times, WAYS["ours"].peers))

In turns, so that other load on the machine meets all ways alike; ratios within a turn, and their
median. One work runs twice in each turn: the ratio to itself shows the noise of all ratios.

A topic's runs.py has RUNS, which `make gpu` records, and BENCHES, which `make bench` runs.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import lcm
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.machine.capabilities import memory_bytes
from ranklab.measure.communication import CommunicationLog, Total
from ranklab.measure.ledger import Ledger
from ranklab.measure.links import finish
from ranklab.measure.timing import median_ratio
from ranklab.ranks import ranks
from ranklab.torch_internals import clear_cublas_workspaces
from shardlab.gpt import GPT, GPTConfig, next_token_loss

from .attempts import attempt
from .busy_gpu import gpu_busy_seconds
from .recordings import Row

TURNS, WARM_UP_TURNS = 31, 3  # PyTorch arranges its buckets anew after the first step
FEWEST_TURNS, GPU_SECONDS = 5, 20.0  # of the turns on a GPU, whose times vary by a percent
MOST_LEFT = 16 << 20  # bytes on a GPU before a way is weighed: 0.2% of GPT-2's peak
EMPTIES_PINNED = hasattr(torch.accelerator, "empty_host_cache")  # torch 2.10
AGAIN = ", again"  # after the name of a work: the same work a second time in each turn
BUSY = ", busy"  # after the name of a work: its seconds of computing on the GPU, in one more turn


class Run(NamedTuple):
    """A recording of `make gpu`: a function of a device that yields rows. Lower orders come first,
    so that a run that is cut short has them."""

    order: int
    measure: Callable[..., Iterable[Row]]
    quick: dict[str, Any] = {}  # its arguments for a quick trial: little of everything
    on_cpus_alone: bool = False

    @property
    def name(self) -> str:
        return self.measure.__name__


class Bench(NamedTuple):
    """A race of `make bench`: a function that returns results."""

    name: str
    measure: Callable[..., list["Result"]]
    quick: dict[str, Any] = {}


class Result(NamedTuple):
    """One number of `make bench`. `most` is its upper limit, None if it is only reported. `row` and
    `case` are its name and case in a recording; a result without a name is not recorded."""

    part: str
    what: str
    value: float
    unit: str
    most: float | None = None
    note: str = ""
    row: str = ""
    case: dict[str, Any] = {}

    @property
    def verdict(self) -> str:
        if self.most is None:
            return ""
        return "met" if self.value <= self.most else "MISSED"


class Way(NamedTuple):
    """wrap(net, optimizer_cls, **options, **settings) returns the model to call and its
    optimizer."""

    wrap: Callable[..., tuple[Callable, Any]]
    options: dict[str, Any] = {}
    # for shardlab's ways: PyTorch's ways, the fastest of which is the peer
    peers: tuple[str, ...] = ()
    most: float | None = None  # of the peer's time

    def build(self, net: nn.Module, optimizer_cls: type, **settings):
        return self.wrap(net, optimizer_cls, **self.options, **settings)


class TrainingTask(NamedTuple):
    """The training task of all ways: a GPT in fp32 on random tokens, a part of them on each
    rank."""

    name: str
    sizes: dict[str, int]  # of GPTConfig
    microbatch: int = 4

    def model(self, device: str = "cpu") -> GPT:
        torch.manual_seed(0)
        return GPT(GPTConfig(**self.sizes)).to(device)

    def drawn(self, device: str = "cpu", counts: Sequence[int] = ()) -> Tensor:
        """[*counts, B, S]: so many batches, the same in every process."""
        shape = (*counts, self.microbatch, self.sizes["max_sequence"])
        draw = torch.Generator().manual_seed(0)
        return torch.randint(self.sizes["vocabulary"], shape, generator=draw).to(device)

    def batches(self, device: str = "cpu", steps: int = 1) -> Tensor:
        """[steps, n, B, S]: the same on all ranks, each of which takes its own part."""
        return self.drawn(device, (steps, dist.get_world_size()))

    def tokens(self, device: str = "cpu") -> Tensor:
        """[B, S]: this rank's part of the first batch."""
        return self.batches(device)[0, dist.get_rank()]

    def shared_tokens(self, device: str = "cpu") -> Tensor:
        """[B, S]: rank 0's part, for ways whose ranks all see the same. A view, so that a ledger
        counts all parts for each way, as it does for ways whose ranks see their own."""
        return self.batches(device)[0, 0]


TASKS = (
    TrainingTask(
        "5.3M parameters", dict(layers=4, hidden=256, heads=4, vocabulary=8192, max_sequence=64)
    ),
    TrainingTask(
        "27.3M parameters", dict(layers=8, hidden=512, heads=8, vocabulary=4096, max_sequence=64)
    ),
)
GPU_TASK = TrainingTask(
    "16.9M parameters", dict(layers=4, hidden=512, heads=8, vocabulary=8192, max_sequence=128)
)
# enough for a large GPU to compute while the host launches what comes next
LARGE_TASK = TrainingTask(
    "GPT-2 124M", dict(layers=12, hidden=768, heads=12, vocabulary=50_257, max_sequence=1024), 8
)
LARGE_TASK_BYTES = 64 * 2**30  # of a GPU, for all ways of a race at once
TINY = TrainingTask("tiny", dict(layers=1, hidden=16, heads=2, vocabulary=11, max_sequence=8))


def gpu_task(device: torch.device, small: TrainingTask = GPU_TASK) -> TrainingTask:
    """The task of `make gpu`: a small one would measure a large GPU's launches alone."""
    large = device.type == "cuda" and memory_bytes(device) >= LARGE_TASK_BYTES
    return LARGE_TASK if large else small


def cut_heads(task: TrainingTask, count: int) -> TrainingTask:
    """The task with as many heads on each rank: more and smaller ones where that takes them."""
    return task._replace(sizes={**task.sizes, "heads": lcm(task.sizes["heads"], count)})


def layouts(
    device: torch.device, task: TrainingTask | None, small: TrainingTask = GPU_TASK
) -> Iterator[tuple[dict[str, Any], TrainingTask]]:
    """(the case of their rows, what they train): a rank on each GPU (NCCL), and on a single GPU
    also two that share it (gloo); two on a CPU. Without a task, ranks that share a GPU train the
    small one: the gradients of the other would be on their way through the host for minutes."""
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    for count in (1, 2) if gpus == 1 else (gpus or 2,):
        share = count > gpus > 0
        trained = task or (small if share else gpu_task(device, small))
        case = dict(
            ranks=count,
            backend="nccl" if count == gpus else "gloo",
            device=device.type,
            ranks_share_a_gpu=share,
            task=trained.name,
        )
        yield case, trained


# --- on a rank ------------------------------------------------------------------------------------


def train_step(model: Callable, optimizer, tokens: Tensor) -> Tensor:
    """A whole step; the loss before it."""
    loss = next_token_loss(model(tokens), tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def step_by(gradients: Callable, optimizer, tokens: Tensor) -> Tensor:
    """A whole step of a way that runs backward itself; the loss that gradients(tokens, targets)
    returns."""
    loss = gradients(tokens, tokens)
    optimizer.step()
    optimizer.zero_grad()
    return loss


# for ways that run backward themselves, and whose ranks all see the same
OWN_BACKWARD = dict(step=step_by, tokens=TrainingTask.shared_tokens)


def in_turns(
    works: dict[str, Callable], turns: int = TURNS, device: str = "cpu"
) -> dict[str, list[float]]:
    """Seconds of each work on this rank, and of the first of them again: all works one after the
    other, `turns` times after a warm-up of no more turns; on a GPU as often as GPU_SECONDS allow.
    Every work begins
    on all ranks together, and on CPUs ends with the slowest. On a GPU also the seconds in which it
    computed, where they can be known."""
    first = next(iter(works))
    works, alone = {**works, first + AGAIN: works[first]}, works

    def meet():
        if dist.is_initialized():
            dist.barrier()
        finish(here)

    def seconds(work):
        meet()
        begin = perf_counter()
        work()
        finish(here)
        if device == "cpu":
            meet()
        return perf_counter() - begin

    here = torch.empty(0, device=device)
    for _ in range(min(WARM_UP_TURNS, turns)):
        turn_seconds = sum(map(seconds, works.values()))
    if device != "cpu":
        turns = min(turns, max(FEWEST_TURNS, int(GPU_SECONDS / slowest(turn_seconds))))
    found = [{name: seconds(work) for name, work in works.items()} for _ in range(turns)]
    times = {name: [turn[name] for turn in found] for name in works}
    if device != "cpu":
        busy = {name + BUSY: gpu_busy_seconds(work) for name, work in alone.items()}
        times |= {name: [seconds] for name, seconds in busy.items() if seconds is not None}
    return times


def slowest(seconds: float) -> float:
    """The most of all ranks' seconds."""
    found = [seconds]
    if dist.is_initialized():
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, seconds)
    return max(found)


def train_in_turns(
    ways: dict[str, Way],
    task: TrainingTask,
    turns: int = TURNS,
    optimizer_cls: type = torch.optim.AdamW,
    device: str = "cpu",
    step: Callable = train_step,
    tokens: Callable = TrainingTask.tokens,
) -> dict[str, list[float]]:
    """Seconds of a training step by each way, and by the first of them again."""
    works = {}
    for name, way in ways.items():
        built = way.build(task.model(device), optimizer_cls, lr=1e-3)
        works[name] = partial(step, *built, tokens(task, device).clone())
    return in_turns(works, turns, device)


class Weighed(NamedTuple):
    """One training step of one way, on this rank."""

    peak_bytes: int  # most at a time, by the ledger
    messages: dict[str, Total]  # by operation
    allocated_bytes: int  # most that the CUDA allocator had given out

    def sent_bytes(self, n: int) -> int:
        """The bytes of these messages that one of n ranks sends by rings: (n - 1)/n of what it
        scatters or gathers, twice that of what it adds up. Messages of this book's ring are counted
        as they are."""
        total = 0
        for operation, (_, nbytes, _) in self.messages.items():
            if operation == "send":
                total += n * nbytes
            elif operation != "recv":
                total += (n - 1) * nbytes * (2 if operation == "all_reduce" else 1)
        return total // n


def weighed(
    way: Way,
    task: TrainingTask,
    optimizer_cls: type = torch.optim.AdamW,
    device: str = "cpu",
    kind: str | None = None,
    step: Callable = train_step,
    tokens: Callable = TrainingTask.tokens,
) -> Weighed:
    """The last step of a warm-up, with its peak on devices of this kind. The model is wrapped under
    the ledger, which therefore knows the tensors that the wrapper keeps."""
    empty_gpu(device)
    net, batch = task.model(device), tokens(task, device)
    with Ledger(net, device=kind or device) as ledger:
        work = partial(step, *way.build(net, optimizer_cls, lr=1e-3), batch)
        return weigh_last(work, ledger, device)


def empty_gpu(device: str):
    """Collect what the way before left in cycles on this rank, hooks and graphs: it would count in
    the peak of the next way. Raises RuntimeError where more than a crumb stays."""
    if device == "cuda":
        gc.collect()
        clear_cublas_workspaces()
        if EMPTIES_PINNED:
            torch.accelerator.empty_host_cache()
        if (left := torch.cuda.memory_allocated()) > MOST_LEFT:
            raise RuntimeError(
                f"{left:,} bytes of an earlier way are still on the GPU, and at most {MOST_LEFT:,}"
                " may be: the next peak would not be its own."
            )


def weigh_last(
    step: Callable[[], object], ledger: Ledger, device: str, steps: int = WARM_UP_TURNS
) -> Weighed:
    """The last of so many steps, under a ledger that watches."""
    for _ in range(steps):
        line = len(ledger.timeline)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with CommunicationLog() as log:
            step()
    # no change on devices of this kind
    points = ledger.timeline[line:] or ledger.timeline[-1:]
    return Weighed(
        max(point.bytes.total for point in points),
        log.totals(),
        torch.cuda.max_memory_allocated() if device == "cuda" else 0,
    )


# --- what times say -------------------------------------------------------------------------------


def fastest(times: dict[str, list[float]], names: Iterable[str]) -> str:
    return min(names, key=lambda name: median(times[name]))


def identical(times: dict[str, list[float]]) -> tuple[float, float]:
    """5th and 95th percentile of the ratio of a work to itself."""
    again = next(name for name in times if name.endswith(AGAIN))
    of_itself = [a / b for a, b in zip(times[again], times[again.removesuffix(AGAIN)])]
    low, *_, high = quantiles(of_itself, n=20)
    return low, high


def step_result(
    group: str,
    what: str,
    times: dict[str, list[float]],
    name: str,
    peer: str,
    most: float | None = None,
    shown: str = "",
) -> Result:
    """The time of one way over its peer's. `shown` is its name on the pages, which show the rows of
    `<group>_race`; without a name the ratio is only reported."""
    low, high = identical(times)
    case = dict(what=shown, peer=peer, identical_low=round(low, 3), identical_high=round(high, 3))
    found = round(median_ratio(times, name, peer), 3)
    by_chance = most is not None and most < found <= high
    return Result(
        group.replace("_", " "),
        f"{what}: step, {name} / {peer}",
        found,
        "x",
        most,
        f"{len(times[name])} interleaved turns; {peer} {1000 * median(times[peer]):.1f} ms; A/A"
        f" {low:.2f} to {high:.2f}{', which holds the excess' * by_chance}",
        f"{group}_race.step" if shown else "",
        case if shown else {},
    )


def share_result(
    group: str, what: str, row: str, peer: str, mine: int, theirs: int, most: float | None = None
) -> Result:
    """Bytes of shardlab's way over a peer's."""
    return Result(
        group.replace("_", " "),
        f"{what}: {row}, shardlab / {peer}",
        round(mine / theirs, 6 if row == "sent" else 4),
        "x",
        most,
        f"{mine:,} and {theirs:,} bytes",
        f"{group}_race.{row}",
        dict(what=what, peer=peer),
    )


def beside(
    group: str,
    on: str,
    times: dict[str, list[float]],
    name: str,
    peer: str,
    step: float | None = None,
    share: float | None = None,
    shown: str = "",
    **nbytes: Sequence[int],
) -> list[Result]:
    """One way beside its peer: its step, and each pair of bytes, its own and the peer's. `step` and
    `share` are their limits, `shown` the way's name on the pages."""
    shown = shown or f"{name}, {on}"
    shares = (share_result(group, shown, row, peer, *both, share) for row, both in nbytes.items())
    return [step_result(group, on, times, name, peer, step, shown), *shares]


def race_of_ways(
    group: str,
    ways: dict,
    weigh: Callable,
    tasks: Iterable,
    counts: Iterable[int],
    turns: int,
    **settings,
) -> list[Result]:
    """The step of each way, in turns, its peak and the bytes that it sends, beside each of its
    peers, for each task on so many ranks. weigh(way, task) is called on every rank; the settings
    are those of train_in_turns."""
    results = []
    for count in counts:
        with ranks(count, device="cpu", announce=False) as world:
            for task in tasks:
                found = {name: world.run(weigh, way, task)[0] for name, way in ways.items()}
                times = world.run(train_in_turns, ways, task, turns, **settings)[0]
                for name, way in ways.items():
                    for peer in way.peers:
                        pair = found[name], found[peer]
                        results += beside(
                            *(group, f"{count} ranks, {task.name}", times, name, peer),
                            *(way.most, way.most),
                            peak=[weight.peak_bytes for weight in pair],
                            sent=[weight.sent_bytes(count) for weight in pair],
                        )
    return results


def rows_of_ways(group, part, case, ways, task, turns, rows_of, **settings) -> Iterator[Row]:
    """Rows for `make gpu`: rows_of(world, way, task, case) of each way, on ranks that are new, so
    that its peak is its own, and so is its death; then the times of all that did not fail, which
    train_in_turns finds with these settings."""
    ran, device = {}, case["device"]
    start = partial(ranks, case["ranks"], device=device, announce=False)
    for name, way in ways.items():
        with start() as world:
            found = rows_of(world, way, task, dict(**case, implementation=name))
            if (yield from attempt(f"{part}, {name}", found)):
                ran[name] = way
    if ran:
        with start() as world:
            times = world.run(train_in_turns, ran, task, turns, device=device, **settings)[0]
        yield from step_rows(group, ran, times, case)


def weight_rows(group: str, found: Weighed, case: dict, *predicted) -> Iterator[Row]:
    """Rows for `make gpu`: the bytes that a rank sends in a step, and its peak."""
    yield Row(f"{group}.sent", found.sent_bytes(case["ranks"]), "bytes", case, *predicted)
    yield Row(f"{group}.peak", found.peak_bytes, "bytes", case)
    if case["device"] == "cuda":
        yield Row(f"{group}.allocated_peak", found.allocated_bytes, "bytes", case)


def step_rows(
    group: str, ways: dict[str, Way], times: dict[str, list[float]], case: dict
) -> Iterator[Row]:
    """Rows for `make gpu`: seconds of a step of each way, the share of them in which the GPU
    computed, and the ratio of this book's way to the fastest of its peers that ran."""
    for name, way in ways.items():
        this = dict(**case, implementation=name)
        yield Row(f"{group}.step", median(times[name]), "seconds", this)
        if name + BUSY in times:
            busy = times[name + BUSY][0] / median(times[name])
            yield Row(f"{group}.gpu_busy", busy, "ratio", this)
        if ran := [peer for peer in way.peers if peer in times]:
            peer = fastest(times, ran)
            ratio = median_ratio(times, name, peer)
            yield Row(f"{group}.step_ratio", ratio, "ratio", dict(**this, peer=peer))
