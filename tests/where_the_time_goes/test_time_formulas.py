"""Formulas of chapter 11 beside the virtual device, to the nanosecond, and by hand."""

import re

import pytest
import torch
from pages import ROOT, chapter
from solved import Given
from told import cells, from_told

from coursekit.formulas import evaluate
from coursekit.planner.runs_published import PUBLISHED_RUNS
from coursekit.recordings.recordings import nearby
from coursekit.topics.where_the_time_goes.pictures import waterfall
from ranklab.virtual import GPU, VirtualGPU

LAUNCH = 5_000  # nanoseconds
DEVICE = GPU({}, memory_bytes_per_second=8e9, launch_seconds=LAUNCH * 1e-9)  # 1 ns a float


def virtual_nanoseconds(kernels, wait_after=(), reads=True):
    """The step of kernels that take so many nanoseconds, with a wait after some of them."""
    with VirtualGPU(DEVICE) as gpu:
        tensors = {length: torch.ones(length) for length in set(kernels)}
        with gpu.step() as step:
            for number, length in enumerate(kernels, 1):
                tensors[length].add_(1)
                if number in wait_after:
                    tensors[length][0].item() if reads else torch.cpu.synchronize()
    return step.end


@pytest.mark.one_in(3)
@pytest.mark.parametrize("reads", [True, False], ids=[".item()", "synchronize()"])
@pytest.mark.parametrize("length", [2_000, 5_000, 20_000])
@pytest.mark.parametrize("every", [1, 7, 100])
def test_waits_on_the_virtual_device(every, length, reads):
    """Must catch: the sum of launch and kernel instead of the larger; a wait that is counted once;
    the kernels after the last wait left out; the launch that a read is."""
    waits = range(every, 101, every)
    found = virtual_nanoseconds([length] * 100, waits, reads)
    given = dict(queued_kernels=100, launch_seconds=LAUNCH, kernel_seconds=length)
    wanted = Given(**given, kernels_per_wait=every, reads_value=int(reads))
    assert found == wanted.synced_seconds
    assert len(waits) == wanted.waits_of_a_step
    assert virtual_nanoseconds([length] * 100) == wanted.unsynced_seconds


@pytest.mark.parametrize("long, short", [(40, 90), (40, 10), (3, 90)])
def test_a_read_throws_the_lead_away(long, short):
    """Must catch: short kernels that keep the pace of the GPU after a read; a lead that lasts
    without end."""
    kernels = [30_000] * long + [2_000] * short
    wanted = Given(
        launch_seconds=LAUNCH,
        long_kernels=long,
        long_kernel_seconds=30_000,
        short_kernels=short,
        short_kernel_seconds=2_000,
    )
    assert virtual_nanoseconds(kernels) == wanted.unread_step_seconds
    assert virtual_nanoseconds(kernels, [long]) == wanted.read_step_seconds
    launched = long * LAUNCH  # when the host is through, and the GPU still has the lead to run
    assert wanted.host_lead_seconds == virtual_nanoseconds([30_000] * long) - launched


def test_a_budget_adds_up():
    """Must catch: recomputation that counts in MFU, or not in HFU; a part that the budget leaves
    out; idle time that counts as busy."""
    given = dict(
        model_flops=600e12,
        repeated_flops=200e12,
        flops_per_second=1000e12,
        kernel_share=0.5,
        moving_seconds=0.3,
        launch_wait_seconds=0.03,
        data_wait_seconds=0.01,
        message_wait_seconds=0.05,
        rank_wait_seconds=0.01,
    )
    names = ["product_seconds", "repeated_seconds", "budget_seconds"]
    shares = ["budget_utilisation", "hardware_flops_utilisation"]
    found = evaluate([*names, *shares], **given)
    assert [found[name] for name in names] == pytest.approx([1.2, 0.4, 2.0])
    assert [found[name] for name in shares] == pytest.approx([0.3, 0.4])


PAGE = chapter("where-the-time-goes")


def recorded(name: str, rung: str) -> float:
    rows = (row for each in nearby(ROOT) for row in each.find(name, rung=rung))
    return next(rows).value


@from_told("words, rung", cells)
def test_busy_is_not_fast(words, rung):
    """Must catch: a number that a newer recording no longer has; busy and MFU exchanged."""
    busy, mfu = (recorded(f"one_gpu.{name}", rung.split(", ")[-1]) for name in ("gpu_busy", "mfu"))
    assert f"| {words} | {busy:.1%} | {mfu:.1%} |" in PAGE


def test_fp32_was_fast():
    """Must catch: a share of the bf16 rate taken for one of fp32."""
    rates = [row for each in nearby(ROOT) for row in each.find("roofline.matmul", dtype="float32")]
    best = max(row.value for row in rates)
    share = recorded("one_gpu.mfu", "fp32") * 989e12 / best
    assert f"is {share:.0%} of the rate of the fastest fp32 product" in PAGE


@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_the_largest_loss_is_unexplained(name):
    """Must catch: one bar for both, which blames the products; bars that do not add up."""
    run = PUBLISHED_RUNS[name]
    least, rows = waterfall(run)
    lost = {words: seconds for words, _, seconds in rows}
    assert max(lost, key=lost.get) == "unexplained"
    assert 0 < lost["products, as measured"] < 0.13 * run.predicted_seconds
    assert least + sum(lost.values()) == pytest.approx(run.predicted_seconds, rel=0.01)
    assert "runs the largest loss is unexplained" in PAGE


def test_the_profilers_cost():
    """Must catch: a prediction on the page that the formula does not make; one that is further
    from its measurement than the page says."""
    box = re.search(r"probes the cost of an event: (.*?)```", PAGE, re.DOTALL)[1]
    bare = float(re.search(r"from ([\d.]+)", box)[1])
    runs = ((0.35, 3308, *re.search(r"predicted \*\*([\d.]+).*?measured ([\d.]+)", box).groups()),)
    runs += ((0.44, 5398, *re.search(r"predicted ([\d.]+), measured ([\d.]+)", box).groups()),)
    for each, events, predicted, measured in runs:
        assert f"{each} µs" in box and f"{events:,}" in box
        found = Given(
            unwatched_seconds=bare / 1e3, profiled_events=events, event_seconds=each / 1e6
        ).profiled_seconds
        assert f"{1e3 * found:.1f}" == predicted
        assert abs(float(predicted) / float(measured) - 1) <= 0.1
