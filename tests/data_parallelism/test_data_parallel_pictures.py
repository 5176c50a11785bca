"""The picture of a recorded step is the recording."""

import re

import pytest

from coursekit.topics.data_parallelism import pictures


def test_a_bar_is_as_long_as_its_message():
    """Must catch: bars to another scale than the step; a message that begins where it ends."""
    _, _, (forward, computed, whole), messages = pictures.recorded_step()
    svg = pictures.draw_two_streams()
    boxes = re.findall(r'<rect x="([\d.]+)"[^>]* width="([\d.]+)"[^>]*class="(\w+)', svg)
    found = {
        look: [(float(x), float(wide)) for x, wide, of in boxes if of == look]
        for _, _, look in boxes
    }
    [(left, first)], [(middle, second)] = found["forward"], found["backward"]
    unit = first / forward
    assert second == pytest.approx((computed - forward) * unit, abs=0.2)
    assert middle == pytest.approx(left + first, abs=0.2)
    for (x, wide), (begin, seconds) in zip(found["communication"], messages, strict=True):
        assert x == pytest.approx(left + begin * unit, abs=0.2)
        assert wide == pytest.approx(min(seconds, whole - begin) * unit, abs=0.2)


def test_the_last_bucket_leaves_when_backward_is_done():
    """The recorded step is as the caption says."""
    _, _, (forward, computed, whole), messages = pictures.recorded_step()
    assert forward < messages[0][0] < computed < whole
    assert abs(messages[-1][0] - computed) < 0.05 * whole
    assert max(begin + seconds for begin, seconds in messages) > computed
