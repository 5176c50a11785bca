"""The formats of a card beside PyTorch's casts, and the words of the card. Every pattern is in
test_mixed_precision_formulas.py."""

import math

import pytest
import torch
from told import from_told

from coursekit.topics.mixed_precision import explorer
from coursekit.topics.mixed_precision.formats import CARD_FORMATS

IN_TORCH = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def numbers():
    """Numbers of every size, those half-way between two neighbours and those beside them."""
    torch.manual_seed(0)
    random = torch.randn(4000, dtype=torch.float64) * 2.0 ** torch.randint(-150, 130, (4000,))
    special = [0.0, -0.0, 65519.0, 65520.0, 61439.9, 61440.0, 2.0**-25, 2.0**-24, 3e38, 1e-46]
    between = []
    for kind in CARD_FORMATS.values():
        for pattern in range(1, kind.largest_pattern, max(1, kind.largest_pattern // 300)):
            middle = (kind.decode(pattern) + kind.decode(pattern + 1)) / 2
            if math.isfinite(middle):
                between += [middle, -middle, math.nextafter(middle, 0), middle * (1 + 2**-40)]
    return [*random.tolist(), *special, *between]


@pytest.mark.parametrize("name", IN_TORCH)
def test_every_cast_is_pytorchs(name):
    """Through fp32, as PyTorch's own casts from float64 round twice; not beyond e4m3's largest, on
    which its versions differ. Must catch: halves rounded up, subnormal numbers cut off, overflow
    from the largest number on."""
    kind, dtype = CARD_FORMATS[name], IN_TORCH[name]
    given = torch.tensor(numbers()).float().tolist()
    if not kind.infinities:
        given = [value for value in given if abs(value) <= kind.largest_number]
    theirs = torch.tensor(given).to(dtype).double().tolist()
    assert [kind.nearest(value) for value in given] == theirs


def test_tf32_is_fp32_without_thirteen_bits():
    """Must catch: tf32 with the fraction of bf16, or cut off instead of rounded."""
    given = torch.tensor(numbers()).float()
    given = given[given.abs() < 2.0**127]
    patterns = given.view(torch.int32).long()
    even = (patterns >> 13) & 1
    rounded = ((patterns + 0xFFF + even) & ~0x1FFF).to(torch.int32).view(torch.float32)
    kind = CARD_FORMATS["tf32"]
    assert [kind.nearest(value) for value in given.tolist()] == rounded.double().tolist()


@pytest.mark.parametrize("name", CARD_FORMATS)
def test_neighbours_are_a_step_away(name):
    """Must catch: half a step for a step, the smallest normal number for the smallest number."""
    kind = CARD_FORMATS[name]
    below, above = kind.neighbours(kind.encode(1.0))
    assert above - 1 == 2.0**-kind.fraction_bits and 1 - below == 2.0**-kind.fraction_bits / 2
    assert kind.neighbours(0) == (-(2.0**kind.smallest_exponent), 2.0**kind.smallest_exponent)
    assert kind.neighbours(kind.largest_pattern)[1] == math.inf


@from_told("value, text")
def test_numbers_as_the_card_writes_them(value, text):
    """Must catch: zeros cut off a whole number, a carry that leaves ten digits."""
    assert explorer.written(value) == text


def test_the_card_in_words():
    """Must catch: a lost step called a move; a step that underflows called too small a step."""
    shown = explorer.words_of_all(1.0, -0.001)
    assert [name for name, words in shown.items() if words.moves] == ["fp32", "tf32", "fp16"]
    assert shown["bf16"].sum == "plus -0.001 it stays: less than half a spacing"
    assert (
        explorer.words_of_all(2e-8, 1e-8)["fp16"].sum
        == "plus 1e-8 it stays: 1e-8 is 0 in this format"
    )
    assert explorer.words_of_all(2e-8, 1e-8)["fp16"].error == "lost: it becomes 0"
    assert explorer.words_of_all(40_000.0, 40_000.0)["fp16"].sum == "plus 40000 it becomes infinity"
    assert explorer.words_of_all(0.1, 0.0)["fp32"].bits == "0 01111011 10011001100110011001101"
    assert "too large" in explorer.words_of_all(70_000.0, 1.0)["fp16"].error
    assert explorer.sentence(1.0, -0.001).endswith("Add -0.001: only fp32, tf32 and fp16 notice.")
    assert explorer.bits_data()["formats"][4] == ["e4m3", 4, 3, 0]
    assert len(explorer.bits_data()["examples"]) == len(explorer.EXAMPLES)
