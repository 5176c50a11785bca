"""The six formats that the chapter draws, under short names, with what a card needs beside their
bits: neighbours, and what becomes of a number that is too large for e4m3.

    half = CARD_FORMATS["fp16"]
    half.encode(0.1)               # 11878: the bits 0 01011 1001100110 as a whole number
    half.neighbours(11878)         # (0.09991455078125, 0.10003662109375)
"""

import math
from dataclasses import dataclass, fields
from types import MappingProxyType

from coursekit.topics.mixed_precision.bits import NumberFormat, number_format


@dataclass(frozen=True)
class ShownFormat(NumberFormat):
    """A format on a card."""

    @property
    def sign(self) -> int:
        """The pattern of minus zero."""
        return 1 << (self.bits - 1)

    @property
    def largest_pattern(self) -> int:
        return self.beyond - 1

    @property
    def greatest_exponent(self) -> int:
        """The exponent of the largest number."""
        return math.frexp(self.largest_number)[1] - 1

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest number above zero, which is subnormal."""
        return self.least_exponent - self.fraction_bits

    def encode(self, value: float) -> int:
        """The pattern, as NumberFormat has it; but without infinities a value that is too large
        becomes the largest number, as PyTorch 2.13 casts to e4m3 (older versions make it NaN)."""
        pattern = super().encode(value)
        too_large = pattern % self.sign > self.largest_pattern and not math.isnan(value)
        return pattern - 1 if too_large and not self.infinities else pattern

    def neighbours(self, pattern: int) -> tuple[float, float]:
        """The next numbers below and above; NaN for a NaN, infinity beyond the largest number."""
        if math.isnan(self.decode(pattern)):
            return math.nan, math.nan
        size = pattern % self.sign
        outward = math.inf if size >= self.largest_pattern else self.decode(size + 1)
        inward = -self.decode(1) if size == 0 else self.decode(size - 1)
        return (-outward, -inward) if pattern >= self.sign else (inward, outward)


def shown(name: str) -> ShownFormat:
    """fp8 e4m3 as e4m3, and so on."""
    given = number_format(name)
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    return ShownFormat(**{**values, "name": name.removeprefix("fp8 ")})


CARD_FORMATS = MappingProxyType(
    {
        found.name: found
        for found in map(shown, ("fp32", "tf32", "fp16", "bf16", "fp8 e4m3", "fp8 e5m2"))
    }
)
