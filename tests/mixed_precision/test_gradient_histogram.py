"""Gradients counted by powers of two, what a format makes of them, the recording of the page."""

import re
from math import log2

import pytest
import torch
from pages import ROOT
from test_formats import IN_TORCH

from coursekit.recordings.recordings import Hardware, Recording, read_all
from coursekit.topics.mixed_precision import histogram, pictures
from coursekit.topics.mixed_precision.formats import CARD_FORMATS
from coursekit.topics.mixed_precision.gradients import count_binades, gradients, watched_gradients
from coursekit.topics.mixed_precision.histogram import Sizes, shares
from coursekit.topics.mixed_precision.trainings import build_model


def test_binades_count_every_element_once():
    """Must catch: a power of two counted below itself, signs counted apart, zeros among the
    others."""
    given = [1.0, -1.0, 1.99, 2.0, 0.5, 0.0, -0.0, 3 * 2.0**-149]
    found = count_binades([torch.tensor(given), torch.tensor([[0.75]])])
    counts = {found.first + place: count for place, count in enumerate(found.counts) if count}
    assert counts == {0: 3, 1: 1, -1: 2, -148: 1} and found.zeros == 2
    assert count_binades([torch.zeros(3)]).zeros == 3


@pytest.mark.parametrize("name", histogram.HISTOGRAM_FORMATS)
@pytest.mark.parametrize("exponent", [-30, -11, 0, 9])
def test_shares_are_those_of_pytorchs_cast(name, exponent):
    """Must catch: an underflow at the smallest number instead of at its half; subnormal numbers
    that count as kept; a scale that moves the counts the wrong way. (At the half itself both
    differ.)"""
    kind = CARD_FORMATS[name]
    torch.manual_seed(1)
    values = torch.exp2(20 * torch.randn(10_000, dtype=torch.float64))
    sizes = values * 2.0**exponent
    # nothing between the largest number and the power of two above it; fp32 has room for all
    inside = (sizes <= kind.largest_number) | (sizes >= 2.0 ** (kind.greatest_exponent + 1))
    values, sizes = values[inside], sizes[inside]
    binades = count_binades([values])
    found = histogram.shares(histogram.Sizes(binades.first, tuple(binades.counts)), kind, exponent)
    cast = sizes.clamp(max=kind.largest_number).to(torch.float64)
    rounded = torch.tensor([kind.nearest(value) for value in cast.tolist()])
    assert found.lost == (rounded == 0).sum().item() / len(values)
    assert found.overflow == (sizes > kind.largest_number).sum().item() / len(values)
    below = (sizes < 2.0**kind.least_exponent) & (rounded != 0)
    assert found.fewer_bits == below.sum().item() / len(values)
    within = cast[cast <= kind.largest_number].float()
    assert ((within.to(IN_TORCH[name]) == 0) == (rounded[cast <= kind.largest_number] == 0)).all()


def test_the_largest_scale_overflows_nothing_and_the_next_does():
    """Must catch: one place too much or too little; the microbatches left out."""
    sizes = histogram.Sizes(-40, (3, 0, 5, 1))
    for name in histogram.HISTOGRAM_FORMATS:
        kind = CARD_FORMATS[name]
        best = histogram.largest_scale(sizes, kind, 3)
        assert histogram.shares(sizes, kind, best - 3).overflow == 0
        assert histogram.shares(sizes, kind, best + 1 - 3).overflow == 1 / 9


def test_gradients_come_from_every_linear_layer_norm_and_table():
    """Must catch: gradients of attention twice, a hook that stays, gradients left on the model."""
    model = build_model(11)
    tokens = torch.randint(11, (2, 33), generator=torch.Generator().manual_seed(0))
    found = watched_gradients(model, tokens[:, :-1], tokens[:, 1:])
    # each block: 2 norms, qkv, output, up, down; then the table, the last norm and the head
    assert len(found["activations"]) == 2 * 6 + 3 and len(found["qkv"]) == 2
    assert all(gradient.shape == (2, 32, 3 * 32) for gradient in found["qkv"])
    assert len(found["parameters"]) == len(list(model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_rows_are_a_recording():
    """Must catch: a case that JSON does not keep; counts that do not add up to the total."""
    rows = list(gradients(torch.device("cpu"), after=(0, 1), microbatches=1))
    versions = {"python": "3", "torch": "2", "shardlab": "0"}
    hardware = Hardware("a machine", "cpu", 1, 2**30)
    recording = Recording(hardware, versions, "2026-01-01", "a test", tuple(rows))
    found, where = histogram.recorded_sizes([recording])
    assert where is recording and set(found) == {
        (of, n) for of in histogram.WORDS_OF for n in (0, 1)
    }
    for row in rows:
        sizes = found[row.case["of"], row.case["steps"]]
        assert sum(sizes.counts) + row.case["zeros"] == row.value
        assert sizes.counts[0] and sizes.counts[-1]
    assert histogram.recorded_sizes([]) == ({}, None)


def test_the_repository_has_a_recording_for_the_page():
    """Must catch: the recording gone or renamed, so that the page silently has no card; a start
    that no recording has."""
    found, recording = histogram.recorded_sizes(read_all(ROOT / "measured"))
    assert recording is not None and (histogram.START["of"], histogram.START["steps"]) in found
    sizes, half = found["activations", 150], CARD_FORMATS["fp16"]
    assert (
        histogram.shares(sizes, half, 0).lost < 0.02 < 0.5 < histogram.shares(sizes, half, -11).lost
    )
    words = histogram.share_sentence(sizes, half, 11, 0)
    assert "divided by 2,048" in words and "none overflows" in words
    best = histogram.largest_scale(sizes, half, 11)
    assert f"2^{best}" in histogram.share_detail(sizes, half, 11)
    assert histogram.shares(sizes, half, best - 11).lost < 1e-3


UNIT = pictures.PICTURE_WIDTH / (pictures.MOST_DRAWN - pictures.LEAST_DRAWN)


def boxes(svg, look):
    """(left, right) of the boxes of a look, as powers of two."""
    found = re.findall(rf'<rect x="([\d.]+)"[^>]* width="([\d.]+)" height="14" class="{look}"', svg)
    exponent = lambda x: x / UNIT + pictures.LEAST_DRAWN
    return [(exponent(float(x)), exponent(float(x) + float(wide))) for x, wide in found]


def test_ranges_are_those_of_pytorch():
    """Must catch: tf32 with the digits of fp32, e4m3 with infinities, the bit that is not stored
    left out."""
    found = pictures.ranges()
    assert list(found) == ["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3"]
    for name, kind in IN_TORCH.items():
        least, normal, most, bits, _ = found[name]
        info = torch.finfo(kind)
        assert least == log2(info.smallest_normal * info.eps)
        assert (normal, most) == (log2(info.smallest_normal), log2(info.max))
        assert bits == 1 - log2(info.eps)
    assert found["tf32"][1] == found["fp32"][1] and found["tf32"][3] == found["fp16"][3]


def test_gradients_are_wider_than_fp16_and_lie_within_bf16():
    """The recorded counts are as the caption says.

    Must catch: a band that ends where the counts do not; counts of other gradients."""
    first, counts, _ = pictures.recorded_gradients()
    found, last = pictures.ranges(), first + len(counts)
    assert counts[0] and counts[-1] and len(counts) > found["fp16"][4]
    assert first < found["fp16"][0] and last < found["fp16"][2]
    assert found["bf16"][1] < first and last < found["bf16"][2]
    assert shares(Sizes(first, counts), CARD_FORMATS["fp16"], 0).fewer_bits > 0.5
    svg = pictures.draw_ranges()
    (band,) = re.findall(r'<rect x="([\d.]+)"[^>]* width="([\d.]+)"[^>]* class="quiet"', svg)
    assert float(band[0]) / UNIT + pictures.LEAST_DRAWN == pytest.approx(first, abs=0.1)
    assert float(band[1]) / UNIT == pytest.approx(len(counts), abs=0.1)
