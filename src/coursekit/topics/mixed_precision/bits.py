"""Numbers as bits and back, for any format of a sign, an exponent and a fraction: what the page
draws, and what the tests compare with every pattern that PyTorch has.

    fp16 = number_format("fp16")
    fp16.encode(0.1)                 # 11878, the bits 0 01011 1001100110
    fp16.decode(11878)               # 0.0999755859375, exactly
    fp16.nearest(70_000.0)           # inf

Values are Python's floats, which hold every number of these formats exactly.
"""

import math
from dataclasses import dataclass

from coursekit.formulas import PRESETS, evaluate


@dataclass(frozen=True)
class NumberFormat:
    """A format by its bits: sign, exponent, fraction, from the highest."""

    name: str
    exponent_bits: int
    fraction_bits: int
    least_exponent: int  # of normal numbers
    largest_number: float
    infinities: int  # 1: the top exponent is kept for infinities and NaN

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.fraction_bits

    def fields(self, pattern: int) -> tuple[int, int, int]:
        """(sign, stored exponent, stored fraction)"""
        fraction = pattern & ((1 << self.fraction_bits) - 1)
        exponent = (pattern >> self.fraction_bits) & ((1 << self.exponent_bits) - 1)
        return pattern >> (self.exponent_bits + self.fraction_bits), exponent, fraction

    def decode(self, pattern: int) -> float:
        """The value of a pattern, from 0 below 2^bits."""
        if not 0 <= pattern < 1 << self.bits:
            raise ValueError(f"pattern = {pattern}: {self.name} has patterns of {self.bits} bits.")
        sign, exponent, fraction = self.fields(pattern)
        if exponent:  # normal: there is a 1 before the fraction, which is not stored
            fraction += 1 << self.fraction_bits
        power = self.least_exponent + max(exponent - 1, 0) - self.fraction_bits
        value = math.ldexp(fraction, power)
        if value > self.largest_number:
            whole = fraction == 1 << self.fraction_bits
            value = math.inf if self.infinities and whole else math.nan
        return -value if sign else value

    def encode(self, value: float) -> int:
        """The pattern nearest to the value, of two equally near ones the even one. Beyond the
        largest number it is infinity, and NaN where the format has no infinities. NaN has no
        sign."""
        if math.isnan(value):
            return self.not_a_number
        sign = int(math.copysign(1, value) < 0) << (self.bits - 1)
        if math.isinf(value):
            return sign | self.beyond
        _, power = math.frexp(value)  # value = m * 2^power, 0.5 <= m < 1
        exponent = max(power - 1, self.least_exponent) if value else self.least_exponent
        spacings = round(math.ldexp(abs(value), self.fraction_bits - exponent))
        # one more spacing than the fraction holds carries into the exponent, as it should
        pattern = ((exponent - self.least_exponent) << self.fraction_bits) + spacings
        return sign | min(pattern, self.beyond)

    def nearest(self, value: float) -> float:
        """The value that the format makes of this one."""
        return self.decode(self.encode(value))

    @property
    def beyond(self) -> int:
        """The pattern after the largest number."""
        top = (1 << (self.exponent_bits + self.fraction_bits)) - 1
        return top ^ ((1 << self.fraction_bits) - 1) if self.infinities else top

    @property
    def not_a_number(self) -> int:
        """The quiet NaN that PyTorch writes: the first fraction bit, or all bits of e4m3."""
        return self.beyond | (1 << (self.fraction_bits - 1))


def number_format(name: str) -> NumberFormat:
    """fp32, tf32, fp16, bf16, fp8 e4m3, fp8 e5m2"""
    given = PRESETS["number_format"][name].quantities
    found = evaluate(["least_exponent", "largest_number"], number_format=name)
    return NumberFormat(name, **given, **{**found, "least_exponent": int(found["least_exponent"])})
