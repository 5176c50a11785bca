"""A loader and four kinds of copies, in virtual time."""

import pytest
import torch
from solved import Given
from told import from_told, valued

from coursekit.formulas import evaluate
from ranklab.virtual import GPU, VirtualGPU, virtual_batches
from ranklab.virtual.clock import LATE_BATCH

# a kernel of 16,000,000 bytes takes 16 ms, a copy of as many pinned ones 32 ms, of others 64 ms
SIMPLE = GPU(
    {}, 1e9, launch_seconds=0, host_bytes_per_second=0.5e9, pageable_share=0.5, name="simple"
)
ELEMENTS = 2_000_000


def loop(workers, batch_seconds, step_ms, steps, ahead=2):
    """Steps of so many milliseconds, each of which takes a batch."""
    with VirtualGPU(SIMPLE) as gpu:
        x = torch.ones(step_ms * 125_000)
        with gpu.step() as step:
            for _ in virtual_batches(gpu, steps, batch_seconds, workers, ahead):
                x.add_(1)
                gpu.clock.synchronize()
    return step


@pytest.mark.parametrize("step_us, sample_us", [(20_000, 5_000), (20_000, 1_000), (4_000, 9_000)])
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4, 8])
def test_a_step_waits_for_its_loader(workers, step_us, sample_us):
    """Within a tenth. Must catch: a sum where workers load meanwhile; a worker that makes two
    batches at once; a buffer that makes a loader faster; a wait that is taken for one for
    launches."""
    given = dict(loader_batch=8, sample_microseconds=sample_us, fed_step_microseconds=step_us)
    names = ["loaded_step_seconds", "loader_wait_seconds", "workers_needed"]
    step_seconds, waits, needed = evaluate(names, loader_workers=workers, **given).values()
    steps = 200
    found = loop(workers, 8e-6 * sample_us, step_us // 1000, steps)
    first = 8e-6 * sample_us  # nothing is ready when the loop begins
    assert found.seconds / steps == pytest.approx(step_seconds, abs=first / steps, rel=1e-9)
    assert found.idle_seconds(LATE_BATCH) / steps == pytest.approx(waits, abs=1.01 * first / steps)
    assert found.idle_seconds() == pytest.approx(found.idle_seconds(LATE_BATCH))
    assert (waits < 1e-9) == (workers >= needed)
    assert ("waiting for data" in str(found)) == (found.idle_seconds(LATE_BATCH) > 0)


@pytest.mark.parametrize("late_ms", [0, 50, 100, 300])
@pytest.mark.parametrize("workers, ahead", [(1, 2), (2, 2), (4, 2), (2, 8)])
def test_what_a_late_batch_costs(workers, ahead, late_ms):
    """Must catch: a buffer of one worker alone; a delay that every later batch has, too; a buffer
    that makes the loader faster; a hiccup that is never longer than the buffer."""
    seconds = lambda number: 1e-6 + 1e-3 * late_ms * (number == 100)
    found = loop(workers, seconds, 20, 200, ahead)
    plain = loop(workers, 1e-6, 20, 200, ahead)
    given = dict(
        loader_batch=1,
        sample_microseconds=1,
        loader_workers=workers,
        fed_step_microseconds=20_000,
        buffered_batches_per_worker=ahead,
        hiccup_microseconds=1000 * late_ms,
    )
    formula = Given(**given)
    assert formula.full_buffer_batches == workers * ahead
    # the batch is begun when the reader takes an earlier one, and takes a microsecond itself
    lost = found.seconds - plain.seconds
    assert lost == pytest.approx(formula.hiccup_wait_seconds, abs=1.1e-6)


def copied(kind):
    """Three steps, each with a batch from the host. Every kind copies into two buffers in turns."""
    with VirtualGPU(SIMPLE) as gpu:
        x, to = torch.ones(2 * ELEMENTS), [torch.empty(2 * ELEMENTS) for _ in range(2)]
        if "pinned" in kind:
            host = torch.empty(2 * ELEMENTS, pin_memory=True)
        else:
            host = gpu.on_host(torch.empty(2 * ELEMENTS))
        computes, copies = torch.cpu.current_stream(), torch.cpu.Stream()
        with gpu.step() as step:
            for number in range(3):
                if "stream" in kind:
                    with torch.cpu.stream(copies):
                        to[number % 2].copy_(host, non_blocking=True)
                        end = copies.record_event()
                    computes.wait_event(end)
                else:
                    to[number % 2].copy_(host, non_blocking="non-blocking" in kind)
                x.add_(1)
    return step


@from_told("kind, ms, waits", valued)
def test_four_kinds_of_copies(kind, ms, waits):
    """Must catch: pageable memory that lets the host go on, because it was asked to; a copy at the
    speed of pinned memory; a copy in the stream that computes, beside a kernel."""
    step = copied(kind)
    assert step.host_waits == waits
    assert step.seconds == pytest.approx(1e-3 * ms)
