"""The clock of the labs, on a clock that the test moves. Nothing here measures time."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from told import told

from coursekit.machine import capabilities
from coursekit.topics.pipelines.sleeping import say_if_longer
from ranklab.measure import clock, timing

CPU = torch.device("cpu")


def run(durations, cpu_share=1.0, cpu_tick=1e-9, **how):
    """median_seconds of calls that take the durations, one after the other, and so much of the
    CPU's time; (result, calls)."""
    now, cpu, calls = [0.0], [0.0], []

    def work():
        now[0] += durations[len(calls)]
        cpu[0] += cpu_share * durations[len(calls)]
        calls.append(None)

    with pytest.MonkeyPatch.context() as moved:
        moved.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        moved.setattr(clock, "time", SimpleNamespace(process_time=lambda: cpu[0]))
        moved.setattr(clock, "CPU_TICK", cpu_tick)
        return clock.median_seconds(work, CPU, **how), len(calls)


def of(*seconds, **how):
    """The median of calls that took these seconds."""
    return run(seconds, warm_up=0, repeats=len(seconds), **how)[0]


CALM, WILD = clock.MedianSeconds([1, 1, 1]), clock.MedianSeconds([1, 2, 3])


@pytest.mark.parametrize(
    "say, said",
    told(
        "test_clock::test_a_busy_machine_is_named",
        dict(vars(clock), say_if_longer=say_if_longer, of=of, CALM=CALM, WILD=WILD),
    ),
)
def test_a_busy_machine_is_named(say, said, capsys):
    """Must catch: a busy machine not noticed, a quiet one accused; one slow call of many, or one of
    many measurements, taken for a busy machine; CPU time not looked at, where times are long and
    all alike; a clock of CPU time too coarse to tell; no measurement at all; a line for what ends
    in time; stages that slept far too long without a word."""
    say()
    shown = capsys.readouterr().out
    assert shown.startswith(said) and bool(shown) == bool(said)


def test_a_median_keeps_its_spread_and_its_share():
    """Must catch: a spread or a share that gets lost on the way, between processes, or in the
    division by many small calls."""
    quiet, busy = of(1.0, 1.02, 1.01, 1.0, 9.0), of(1.0, 2.0, 1.5, 3.0, 1.0)
    assert quiet.spread < 0.05 and busy.spread > 0.5
    assert of(10.0, 20.0, 30.0, calls=10).spread == 1.0
    half = of(*[1.0] * 5, cpu_share=0.5)
    assert half.spread == 0 and half.cpu_share == pytest.approx(0.5)
    elsewhere = pickle.loads(pickle.dumps(of(1.0, 2.0, 3.0, cpu_share=0.5)))
    assert elsewhere == 2.0 and elsewhere.cpu_share == pytest.approx(0.5) and elsewhere.spread == 1


def test_a_gpu_reads_its_own_clock(monkeypatch):
    """Mutations: the CPU's clock around a call that only hands the work over (0 seconds); elapsed
    time asked before the work is done, which CUDA refuses; its milliseconds taken for seconds."""
    now, done = [0.0], [0.0]  # milliseconds on the GPU: handed over up to now, finished up to done

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def synchronize(self):
            done[0] = now[0]

        def elapsed_time(self, end):
            assert done[0] >= end.at, "the work is not done"
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)

    def work():
        now[0] += 250.0

    assert clock.median_seconds(work, torch.device("cuda", 0), repeats=3) == 0.25


@pytest.mark.parametrize(
    ("cores", "threads", "chosen", "left"),
    [(8, 8, "", 7), (8, 4, "", 4), (1, 1, "", 1), (8, 8, "8", 8), (2, 2, "", 1)],
)
def test_a_core_is_left_free(monkeypatch, cores, threads, chosen, left):
    """Must catch: all cores taken; more threads than PyTorch wanted; no thread on one core; the
    reader's own choice overruled."""
    now = [threads]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.__setitem__(0, count))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    monkeypatch.setattr(capabilities, "cores", lambda: cores)
    assert capabilities.leave_a_core_free() == left


def test_works_take_turns():
    """Must catch: all turns of one work before those of the next; the same order in every turn;
    warm-up turns among the counted ones; the ratio of two medians."""
    order = []
    seconds = iter([100, 100, 2, 1, 9, 3, 8, 5])  # turn by turn, as they are called
    works = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}

    def moved(work):
        work()
        return next(seconds)

    times = timing.seconds_in_turns(works, moved, turns=3, warm_up=1)
    assert order == list("abbaabba")
    assert times == {"a": [1, 9, 5], "b": [2, 3, 8]}
    assert timing.median_ratio(times, "a", "b") == 5 / 8
