"""Published training runs beside the model of time: FSDP whose messages are hidden, and data
parallelism that is as fast."""

from statistics import median

import pytest
from pages import ROOT
from solved import Given

from coursekit.formulas import quantities

# From llm-foundry@8c8dd48 scripts/train/benchmarking/README.md.
# name: (parameters, layers, tokens of a microbatch, dense FLOP/s, bandwidth of the rings, MFU of
# the small run, rows of (ranks, MFU)). Rings have 0.9 of all cards of a node: 1,600 Gbit/s for
# A100, as the source says; eight of 400 Gbit/s are assumed for H100.
RUNS = {
    "MPT-13b, H100, from 8 GPUs": (12_853_954_560, 40, 4096, 989e12, 360e9, 39.79)
    + (((16, 39.58), (64, 39.86)),),
    "MPT-7b, H100, from 8 GPUs": (6_658_859_008, 32, 12_288, 989e12, 360e9, 46.44)
    + (((256, 44.15),),),
    "MPT-7b, A100, from 16 GPUs": (6_658_859_008, 32, 36_864, 312e12, 180e9, 50.44)
    + (((64, 50.73), (128, 50.14)),),
    "MPT-1b, A100, from 16 GPUs": (1_315_950_592, 24, 20_480, 312e12, 180e9, 55.69)
    + (((64, 55.44), (128, 54.41)),),
    "MPT-13b, A100, from 16 GPUs": (12_853_954_560, 40, 32_768, 312e12, 180e9, 52.50)
    + (((64, 52.04),),),
}
# Between 16 and 64 GPUs, at 55.69 and 55.44, the source has 45.39 for 32: an outlier of its own.
ODD = ("MPT-1b, A100, from 16 GPUs", 32, 45.39)


def mfu(run, ranks, card=None):
    """Utilisation with `ranks`, of the small run's computing and the exposed time of FSDP."""
    parameters, layers, tokens, rate, ring, small, _ = run
    given = quantities(
        parameters=parameters,
        zero_flat_tensors=layers,
        zero_stage=3,
        accumulation_steps=1,
        data_parallel=ranks,
        microbatch_tokens=tokens,
        flops_per_second=rate,
        utilisation=small / 100,
        latency_seconds=0,
        link_bytes_per_second=card or ring,
        parameter_element_bytes=2,
        gradient_element_bytes=2,
    )
    found = Given(**given)
    return small * found.zero_compute_seconds / found.zero_step_seconds


@pytest.mark.parametrize("name", RUNS)
def test_fully_sharded_runs(name):
    """From the small run's utilisation, within 5%; with one card for a ring the 13b run on 64 H100
    would be at 21%, not at 40%. Must catch: one card for a node's rings; gathering that nothing
    hides."""
    run = RUNS[name]
    for ranks, published in run[-1]:
        predicted = mfu(run, ranks)
        assert predicted / published == pytest.approx(1, abs=0.06), ranks
    if name == ODD[0]:
        assert mfu(run, ODD[1]) / ODD[2] < 1.5
    if "13b, H100" in name:
        assert mfu(run, 64, card=50e9) / 39.86 < 0.8


def test_the_page_prints_their_median():
    """Must catch: a page that keeps an old ratio."""
    ratios = [mfu(run, ranks) / published for run in RUNS.values() for ranks, published in run[-1]]
    chapter = ROOT / "chapters" / "zero-in-time.md"
    text = " ".join(chapter.read_text(encoding="utf-8").split())
    assert len(ratios) == 8 and "over eight of nine runs the median ratio" in text
    assert f"utilisation is {median(ratios):.2f}, and the worst is {max(ratios):.2f}." in text
    assert min(ratios) > 0.95
    odd = mfu(RUNS[ODD[0]], ODD[1]) / ODD[2]
    assert f"MPT-1b on 32 A100s, the ratio is {odd:.2f}." in text
