"""The seconds that a lab with ranks waits for: four ranks from a cell to the end of their first
all-reduce, cold, warm and after a fault; their memory; what the board and the communication log
cost."""

import os
import subprocess
import sys
from contextlib import suppress
from statistics import median
from time import perf_counter

from coursekit.recordings.races import Result, identical, in_turns
from ranklab.measure.timing import median_ratio

RANKS = 4
COLD_SECONDS, WARM_SECONDS, RESTART_SECONDS, RANK_MIB, LOG_PERCENT = 1.5, 0.15, 0.2, 60, 10
COLD_RUNS, WARM_RUNS = 5, 31

COLD = """
from time import perf_counter
from ranklab.ranks import ranks
from bench.ranks import first_all_reduce
begin = perf_counter()
world = ranks(4, device="cpu", announce=False)
world.run(first_all_reduce)
print(perf_counter() - begin)
world.close()
"""


def first_all_reduce():
    import torch
    import torch.distributed as dist

    x = torch.ones(4)
    dist.all_reduce(x)
    return x.sum().item()


def measure_ranks() -> list[Result]:
    from ranklab.ranks import ranks

    def start(fault=None):
        """Seconds from asking for ranks, or from the next run after a fault, to the first
        all-reduce done."""
        begin = perf_counter()
        with ranks(RANKS, device="cpu", announce=False) as world:
            world.run(first_all_reduce)
            if fault is None:
                return perf_counter() - begin
            with suppress(RuntimeError):
                world.run(fault)
            begin = perf_counter()
            world.run(first_all_reduce)
            return perf_counter() - begin

    def line(what, times, most=None):
        spread = f"{min(times):.3f} to {max(times):.3f}, {len(times)} runs"
        return Result("ranks", what, round(median(times), 3), "s", most, spread)

    imports = [
        fresh(
            "from time import perf_counter; t = perf_counter(); import torch.distributed;"
            " print(perf_counter() - t)"
        )
        for _ in range(COLD_RUNS)
    ]
    results = [
        line(
            f"{RANKS} ranks to the first all-reduce, cold",
            [fresh(COLD) for _ in range(COLD_RUNS)],
            COLD_SECONDS,
        ),
        line("of it, import torch.distributed alone, measured beside it", imports),
    ]
    start()
    results += [
        line("the same, the fork server warm", [start() for _ in range(WARM_RUNS)], WARM_SECONDS),
        line(
            "the same, after a rank was killed",
            [start(kill_one) for _ in range(WARM_RUNS)],
            RESTART_SECONDS,
        ),
        line(
            "the same, after a rank raised",
            [start(raise_on_one) for _ in range(WARM_RUNS)],
            RESTART_SECONDS,
        ),
    ]
    memory = round(memory_of_one_more())
    results.append(
        Result("ranks", "memory of one rank more (proportional set size)", memory, "MiB", RANK_MIB)
    )
    with ranks(2, device="cpu", announce=False) as world:
        times, board_seconds = world.run(cost_of_the_log)[0]
    low, high = identical(times)
    results += [
        Result(
            "ranks",
            "communication log: a data-parallel step takes longer by",
            round(100 * (median_ratio(times, "logged", "bare") - 1), 1),
            "%",
            LOG_PERCENT,
            f"{len(times['bare'])} interleaved turns; A/A {low:.2f} to {high:.2f}",
        ),
        Result(
            "ranks",
            "the board: one collective takes longer by",
            round(1e6 * board_seconds, 1),
            "µs",
        ),
    ]
    return results


def fresh(script: str) -> float:
    return float(
        subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True, text=True
        ).stdout
    )


def kill_one():
    import signal

    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def raise_on_one():
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError
    dist.barrier()


def memory_of_one_more() -> float:
    """MiB: this process and all below it with four ranks, less the same with one, for each of the
    three."""
    import psutil

    from ranklab.ranks import ranks

    def all_processes(count):
        with ranks(count, device="cpu", announce=False) as world:
            world.run(first_all_reduce)
            me = psutil.Process()
            return sum(
                process.memory_full_info().pss for process in (me, *me.children(recursive=True))
            )

    return (all_processes(RANKS) - all_processes(1)) / (RANKS - 1) / 2**20


def cost_of_the_log():
    """Seconds of a step of a small data-parallel GPT without the log and with it, in turns; seconds
    of one post."""
    import torch
    import torch.distributed as dist

    from ranklab.measure.communication import CommunicationLog
    from ranklab.ranks import calls
    from shardlab.gpt import GPT, GPTConfig, next_token_loss

    model = GPT(GPTConfig(layers=4, hidden=128, heads=4, vocabulary=1000, max_sequence=64))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    tokens = torch.zeros(4, 64, dtype=torch.long)

    def step():
        next_token_loss(model(tokens), tokens).backward()

    def logged_step():
        with CommunicationLog():
            step()

    times = in_turns({"bare": step, "logged": logged_step})
    checks = calls._listeners[0]
    call = calls.CollectiveCall(
        "all_reduce", dist.group.WORLD, (torch.ones(4),), False, True, None, 0, "sum", False
    )
    dist.barrier()
    begin = perf_counter()
    for _ in range(1000):
        checks(call)
    taken = perf_counter() - begin
    dist.barrier()
    return times, taken / 1000
