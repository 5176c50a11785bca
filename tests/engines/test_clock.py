"""The clock of the labs, on a clock that the test moves. Nothing here measures time."""

import pytest
import torch

from shardlab.measure import clock

CPU = torch.device("cpu")


def run(monkeypatch, durations, **how):
    """median_seconds of calls that take the durations, one after the other; (result, calls)."""
    now, calls = [0.0], []
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def work():
        now[0] += durations[len(calls)]
        calls.append(None)

    return clock.median_seconds(work, CPU, **how), len(calls)


def test_warm_up_is_not_counted_and_the_middle_is_taken(monkeypatch):
    """Mutations: warm-up calls among the timed ones (median 5), the mean (37.3), the minimum
    (1)."""
    assert run(monkeypatch, [100, 100, 5, 1, 106], warm_up=2, repeats=3) == (5, 5)
    assert run(monkeypatch, [100, 9, 1, 3], warm_up=1, repeats=3) == (3, 4)


def test_every_call_is_timed_alone(monkeypatch):
    """Mutation: the start read once before the loop, so that later calls carry the earlier ones
    (median 4)."""
    assert run(monkeypatch, [2, 2, 2], warm_up=0, repeats=3) == (2, 3)


@pytest.mark.parametrize("how", [dict(repeats=0), dict(warm_up=-1)])
def test_nothing_to_time_is_refused(monkeypatch, how):
    """Mutation: the check left out; statistics.median then raises about 'no median for empty
    data'."""
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        run(monkeypatch, [1] * 20, **how)


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


def test_times_that_differ_say_that_the_machine_is_busy(monkeypatch, capsys):
    """Must catch: a busy machine not noticed, a quiet one accused; one slow call of many taken
    for a busy machine; a spread that gets lost on the way."""
    quiet, _ = run(monkeypatch, [1.0, 1.02, 1.01, 1.0, 9.0], warm_up=0, repeats=5)
    busy, _ = run(monkeypatch, [1.0, 2.0, 1.5, 3.0, 1.0], warm_up=0, repeats=5)
    assert quiet.spread < 0.05 and busy.spread > 0.5
    clock.say_if_busy(quiet, 3.0)
    assert capsys.readouterr().out == ""
    clock.say_if_busy(quiet, busy)
    assert capsys.readouterr().out.startswith("this machine is busy (times differ by 67%)")
