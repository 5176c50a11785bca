"""Exposed time, predicted over measured: each technique on two rehearsed hosts with a link of known
speed between them, one rank on each.

Computing is a sleep of known length inside autograd, so that cores do not decide: what is tested is
who waits for whom. The time of a message is fitted, alpha and bandwidth, from three sizes through
the same collective; the configured speed is not used. Predicted is the closed form of the chapter
with these times; measured is a step less the same step of the same technique in a group of one, in
turns.

Ratios are a little above 1 because a link that has rested passes 10 ms of its speed free, which the
fit, of messages without a pause, does not know. Stage 3 pauses nine times in a step: on an idle
machine it was predicted 961 ms and took 853. Techniques that pause once are 10 to 25 ms off.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from coursekit.formulas import evaluate
from coursekit.recordings.races import Result
from coursekit.topics.data_parallelism.ladder import Bucketed, PerTensor
from ranklab.measure.links import Link, fit_link
from ranklab.ranks import ranks
from ranklab.ranks.links import LinksUnavailable, two_hosts
from shardlab.data_parallel import DistributedDataParallel
from shardlab.zero import shard
from shardlab.zero.hardened.flat import Native, best_collectives

MEGABITS = 200  # a second
UNITS, UNIT_BYTES = 4, 3_750_000  # a message of 150 ms, and 10 ms pass free after a pause
SMALL_TENSORS, SMALL_BYTES = 200, 4_000
FORWARD = 0.05  # seconds of a unit; backward is the regime's
REGIMES = {"computing is slower": 0.25, "the link is slower": 0.06}
LOW, HIGH = 0.85, 1.15


# --- a model that sleeps --------------------------------------------------------------------------


class Sleep(torch.autograd.Function):
    """Takes its time, and gives its weight a gradient."""

    @staticmethod
    def forward(ctx, x, weight, forward_seconds, backward_seconds):
        time.sleep(forward_seconds)
        ctx.shape, ctx.seconds = weight.shape, backward_seconds
        return x + 1

    @staticmethod
    def backward(ctx, dy):
        time.sleep(ctx.seconds)
        return dy, torch.ones(ctx.shape), None, None


class Sleeper(nn.Module):
    def __init__(self, nbytes: int, forward_seconds: float, backward_seconds: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(nbytes // 4))
        self.seconds = forward_seconds, backward_seconds

    def forward(self, x):
        return Sleep.apply(x, self.weight, *self.seconds)


def sleepers(sizes: list[int], forward: float, backward: float) -> nn.Sequential:
    """Units in the order of forward; each has its part of forward and of backward."""
    return nn.Sequential(*(Sleeper(size, forward, backward) for size in sizes))


# --- the techniques -------------------------------------------------------------------------------


class Case(NamedTuple):
    """`wrap(net, group)` on a rank gives a model and an optimizer; `predict(times, backward)` the
    exposed seconds, from the fitted times of messages."""

    what: str
    sizes: tuple[int, ...]
    wrap: Callable
    predict: Callable
    regimes: tuple[str, ...] = tuple(REGIMES)


def replicas(net, group, cls, **options):
    model = cls(net, group=group, **options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def sharded(net, group, stage, **options):
    return shard(net, torch.optim.SGD, stage=stage, group=group, lr=0.1, **options)


def per_tensor(net, group):
    return replicas(net, group, PerTensor)


def bucketed(net, group):
    return replicas(net, group, Bucketed, bucket_bytes=UNIT_BYTES)


def overlapped(net, group):
    return replicas(net, group, DistributedDataParallel, bucket_bytes=UNIT_BYTES)


def first_stage(net, group):
    return sharded(net, group, 1, bucket_bytes=UNIT_BYTES)


def second_stage(net, group):
    return sharded(net, group, 2, bucket_bytes=UNIT_BYTES)


def third_stage(net, group):
    return sharded(net, group, 3)


def third_stage_ahead(net, group):
    return sharded(net, group, 3, collectives=Native(), prefetch=True)


def exposed(step, **given):
    """The closed form of a chapter, for messages whose times are known."""
    return evaluate([step], allow_unused=True, **given)[step]


def one_by_one(times, backward):
    return SMALL_TENSORS * times["small all-reduce"].latency_seconds + (
        SMALL_TENSORS * SMALL_BYTES / times["small all-reduce"].bytes_per_second
    )


def after_backward(times, backward):
    return UNITS * seconds(times["all-reduce"], UNIT_BYTES)


def during_backward(times, backward, table=0):
    return exposed(
        "exposed_seconds",
        rank_backward_seconds=UNITS * backward,
        head_backward_seconds=0,
        head_bucket_seconds=0,
        equal_buckets=UNITS,
        equal_bucket_seconds=seconds(times["all-reduce"], UNIT_BYTES),
        last_buckets_seconds=seconds(times["all-reduce"], table) if table else 0,
    )


def with_a_table(times, backward):
    """The last unit of backward is the table alone: its piece of backward comes after the layers'
    buckets are ready."""
    bucket = seconds(times["all-reduce"], UNIT_BYTES)
    layers_done = UNITS * backward + exposed(
        "exposed_seconds",
        rank_backward_seconds=UNITS * backward,
        head_backward_seconds=0,
        head_bucket_seconds=0,
        equal_buckets=UNITS,
        equal_bucket_seconds=bucket,
        last_buckets_seconds=0,
    )
    whole = (UNITS + 1) * backward
    return max(layers_done, whole) + seconds(times["all-reduce"], TABLE_BYTES) - whole


def zero(stage, ahead):
    """Stage 3 ahead takes the backend's collectives, which begin and are waited for later."""
    native = "native " * ahead

    def predict(times, backward):
        return exposed(
            "zero_exposed_seconds",
            zero_stage=stage,
            accumulation_steps=1,
            zero_flat_tensors=UNITS,
            unit_gather_seconds=seconds(times[native + "all-gather"], UNIT_BYTES),
            unit_reduce_seconds=seconds(times[native + "reduce-scatter"], UNIT_BYTES),
            unit_forward_seconds=FORWARD,
            unit_backward_seconds=backward,
            prefetch_units=ahead,
            reduce_early=ahead,
        )

    return predict


def seconds(link: Link, nbytes: int) -> float:
    return link.latency_seconds + nbytes / link.bytes_per_second


TABLE_BYTES = 2 * UNIT_BYTES
EQUAL, WITH_A_TABLE = (UNIT_BYTES,) * UNITS, (TABLE_BYTES, *(UNIT_BYTES,) * UNITS)
ONE = tuple(REGIMES)[:1]
CASES = (
    Case(
        "an all-reduce for each of 200 tensors of 4 kB",
        (SMALL_BYTES,) * SMALL_TENSORS,
        per_tensor,
        one_by_one,
        ONE,
    ),
    Case("buckets after backward", EQUAL, bucketed, after_backward, ONE),
    Case("buckets during backward", EQUAL, overlapped, during_backward),
    Case("buckets during backward, a large one last", WITH_A_TABLE, overlapped, with_a_table),
    Case("ZeRO stage 1", EQUAL, first_stage, zero(1, 0), ONE),
    Case("ZeRO stage 2", EQUAL, second_stage, zero(2, 0), ONE),
    Case("ZeRO stage 3", EQUAL, third_stage, zero(3, 0), ONE),
    Case("ZeRO stage 3, one unit ahead", EQUAL, third_stage_ahead, zero(3, 1)),
)


# --- on a rank ------------------------------------------------------------------------------------


def fitted(turns: int) -> dict[str, Link]:
    """Alpha and bandwidth of each collective, from messages that follow each other without a
    pause."""

    def all_reduce(x):
        dist.all_reduce(x)

    def reduce_scatter(x, by):
        by.reduce_scatter([x], None, 0.5)

    def all_gather(x, by):
        by.all_gather(x, None)

    def fit(call, sizes, row):
        found = []
        for size in sizes:
            x = torch.zeros(size // 4)
            works = {"row": lambda x=x: [call(x) for _ in range(row)]}
            found.append(median(turn_by_turn(works, turns)["row"]) / row)
        return fit_link(sizes, found)

    large = [UNIT_BYTES, 2 * UNIT_BYTES, 3 * UNIT_BYTES]
    passes = {"reduce-scatter": reduce_scatter, "all-gather": all_gather}
    each = {"": best_collectives(torch.device("cpu"), None), "native ": Native()}
    return {
        "small all-reduce": fit(all_reduce, [1000, 16_000, 128_000], 50),
        "all-reduce": fit(all_reduce, large, 1),
        **{
            which + name: fit(partial(call, by=by), large, 2)
            for which, by in each.items()
            for name, call in passes.items()
        },
    }


def turn_by_turn(works: dict[str, Callable], turns: int) -> dict[str, list[float]]:
    """Seconds of each work in turns; every work begins and ends on all ranks together. One turn
    warms up: a prefetch learns the order of units in it."""
    found = {name: [] for name in works}
    for _ in range(1 + turns):
        for name, work in works.items():
            dist.barrier()
            begin = time.perf_counter()
            work()
            dist.barrier()
            found[name].append(time.perf_counter() - begin)
    return {name: times[1:] for name, times in found.items()}


def train(model, optimizer):
    model(torch.ones(1, requires_grad=True)).backward()
    optimizer.step()
    optimizer.zero_grad()


def measured(case: Case, regime: str, turns: int) -> tuple[float, float]:
    """(exposed seconds, seconds of a whole step), medians over turns."""
    few = len(case.sizes) < SMALL_TENSORS
    backward = REGIMES[regime] if few else 0.0
    forward = FORWARD if few else 0.0
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    own = groups[dist.get_rank()]
    alone = case.wrap(sleepers(list(case.sizes), forward, backward), own)
    model, optimizer = case.wrap(sleepers(list(case.sizes), forward, backward), None)
    works = {"alone": lambda: train(*alone), "all": lambda: train(model, optimizer)}
    times = turn_by_turn(works, turns)
    waits = [whole - least for whole, least in zip(times["all"], times["alone"])]
    return median(waits), median(times["all"])


# --- make bench -----------------------------------------------------------------------------------


def measure_exposed(
    cases: Sequence[Case] = CASES, turns: int = 5, megabits_per_second: int = MEGABITS
) -> list[Result]:
    """Predicted exposed time over measured, for each technique."""
    try:
        return list(exposed_times(cases, turns, megabits_per_second))
    except LinksUnavailable as error:
        print(f"bench:  {error}")
        return []


def exposed_times(cases: Sequence[Case], turns: int, megabits_per_second: int) -> Iterator[Result]:
    """The fitted links, then each case. Raises LinksUnavailable."""
    with (
        two_hosts(megabits_per_second) as hosts,
        ranks(2, device="cpu", hosts=hosts, announce=False) as world,
    ):
        times = world.run(fitted, turns)[0]
        for name, link in times.items():
            latency = f"latency {1e3 * link.latency_seconds:.2f} ms"
            rate = round(link.bytes_per_second / 1e6, 2)
            yield Result("exposed", f"fitted link, {name}", rate, "MB/s", None, latency)
        for case in cases:
            for regime in case.regimes:
                found, whole = world.run(measured, case, regime, turns)[0]
                want = case.predict(times, REGIMES[regime])
                yield result(case, regime, want, found, whole, turns)


def result(case: Case, regime: str, want: float, found: float, whole: float, turns: int) -> Result:
    which = f", {regime}" if len(case.regimes) > 1 else ""
    ratio = want / found
    inside = "inside" if LOW <= ratio <= HIGH else "OUTSIDE"
    return Result(
        "exposed",
        f"{case.what}{which}: predicted / measured",
        round(ratio, 3),
        "x",
        None,
        f"{inside} {LOW} to {HIGH}; {1e3 * want:.0f} and {1e3 * found:.0f} ms of a step of"
        f" {1e3 * whole:.0f}, {turns} turns",
    )
