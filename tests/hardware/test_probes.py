"""Probes of links and of the machine: that they measure what they say. No test looks at how fast
anything is."""

import pytest
import torch

from coursekit.topics.collectives.runs import all_reduce_timings
from coursekit.topics.hardware import probes as roofline
from ranklab.measure import links
from ranklab.measure.communication import CommunicationLog

CPU = torch.device("cpu")


def ping_pong():
    with CommunicationLog() as log:
        seconds = links.time_message(1000, 2, 0, repeats=4)
    return seconds, [(m.operation, m.peer) for m in log.messages if m.nbytes == 1000]


def test_ping_pong(worlds):
    """Mutations: both halves in one direction; a rank between that takes part; the time of the rank
    that waits."""
    world = worlds(3)
    found = world.run(ping_pong)
    timings = world.run(all_reduce_timings, [4000, 40], repeats=2)
    with pytest.raises(RuntimeError, match="a link joins two ranks of the group's 3: not 1"):
        world.run(links.time_message, 4, 1, 1)
    times, messages = zip(*found)
    rounds = links.WARM_UP + 4
    assert times[0] > 0 and len(set(times)) == 1
    assert messages == (
        [("recv", 2), ("send", 2)] * rounds,
        [],
        [("send", 0), ("recv", 0)] * rounds,
    )
    assert len(set(map(tuple, timings))) == 1, "the slowest rank's time is everybody's"
    for timing, nbytes in zip(timings[0], (4000, 40)):
        assert timing.nbytes == nbytes
        assert timing.algorithm_bytes_per_second == nbytes / timing.seconds
        assert timing.bus_bytes_per_second == pytest.approx(4 / 3 * nbytes / timing.seconds)


def test_link(monkeypatch):
    """Mutation: the bandwidth of the small message, or the latency not taken off."""
    monkeypatch.setattr(roofline, "time_message", lambda nbytes, device: 1e-5 + nbytes / 2e9)
    link = roofline.measure_link()
    assert link.latency_seconds == pytest.approx(1e-5, rel=1e-3)
    assert link.bytes_per_second == pytest.approx(2e9, rel=1e-3)


def test_fit():
    """Mutations: errors in seconds instead of shares, so that the largest message hides what
    is wrong with the small ones; seconds a byte returned for bytes a second; a line through one
    point."""
    sizes = (4, 1_000, 100_000, 16_000_000)
    latency, bandwidth = links.fit_link(sizes, [5e-5 + nbytes / 2e9 for nbytes in sizes])
    assert latency == pytest.approx(5e-5, rel=1e-9) and bandwidth == pytest.approx(2e9, rel=1e-9)
    noisy = links.fit_link(
        sizes, [(5e-5 + nbytes / 2e9) * factor for nbytes, factor in zip(sizes, (1, 1, 1, 1.5))]
    )
    assert noisy.latency_seconds == pytest.approx(5e-5, rel=0.1)


def test_products_and_memory(monkeypatch):
    """Mutations: size^3 for 2 size^3; a matrix left out of the bytes; a copy's bytes counted once;
    a launch's time not divided by the calls; results that are not read."""

    def one_second(work, device, repeats, calls=1):
        work()
        return 1.0 / calls

    monkeypatch.setattr(roofline, "median_seconds", one_second)
    wide, narrow = roofline.products(CPU, (torch.float32, torch.bfloat16), (24,))
    assert wide == (24, "float32", 1.0, 2 * 24**3, 2 * 24**3 / (3 * 4 * 24**2))
    assert narrow.dtype == "bfloat16" and narrow.intensity == 2 * wide.intensity
    assert roofline.memory_bytes_per_second(CPU, 4096) == 4096
    assert roofline.launch_seconds(CPU, calls=8) == 1 / 8
    read = []
    monkeypatch.setattr(torch.Tensor, "item", lambda x: read.append(x))
    assert roofline.launch_seconds(CPU, calls=8, reads=True) == 1 / 8 and len(read) == 8
