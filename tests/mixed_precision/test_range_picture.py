"""The picture of ranges: PyTorch's formats, and the recorded gradients on the same axis."""

import re
from math import log2

import pytest
import torch

from coursekit.topics.mixed_precision import pictures
from coursekit.topics.mixed_precision.formats import CARD_FORMATS
from coursekit.topics.mixed_precision.histogram import Sizes, shares

TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
}
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
    for name, kind in TYPES.items():
        least, normal, most, bits, _ = found[name]
        info = torch.finfo(kind)
        assert least == log2(info.smallest_normal * info.eps)
        assert (normal, most) == (log2(info.smallest_normal), log2(info.max))
        assert bits == 1 - log2(info.eps)
    assert found["tf32"][1] == found["fp32"][1] and found["tf32"][3] == found["fp16"][3]


def test_bars_lie_on_one_axis():
    """Must catch: a bar that begins at the smallest normal number; an axis of another scale."""
    svg = pictures.draw_ranges()
    normal, subnormal = boxes(svg, "accent shade1"), boxes(svg, "accent pale dashed")
    for found, whole, few in zip(pictures.ranges().values(), normal, subnormal, strict=True):
        assert few == pytest.approx(found[:2], abs=0.1)
        assert whole == pytest.approx(found[1:3], abs=0.1)
        assert f"{found[3]} significant bits, {found[4]:.0f} doublings" in svg


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
