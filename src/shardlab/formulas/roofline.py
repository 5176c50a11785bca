"""Roofline: the rate that an operation can reach, bound by arithmetic or by memory."""

from .registry import BOOK
from .subset import minimum

_ROOFLINE = "Williams, Waterman and Patterson 2009"
_MEASURED = "tests/test_collective_formulas.py::test_roofline"


@BOOK.formula(symbol=r"I", unit="FLOP/byte", source=_ROOFLINE, measured_by=_MEASURED)
def arithmetic_intensity(operation_flops, operation_bytes):
    """operations done for each byte that moves between memory and chip"""
    return operation_flops / operation_bytes


@BOOK.formula(symbol=r"I_\text{ridge}", unit="FLOP/byte", source=_ROOFLINE, measured_by=_MEASURED)
def ridge_intensity(flops_per_second, memory_bytes_per_second):
    """arithmetic intensity from which on arithmetic is the bound, and below which memory is"""
    return flops_per_second / memory_bytes_per_second


@BOOK.formula(symbol=r"F_\text{roof}", unit="FLOP/s", source=_ROOFLINE, measured_by=_MEASURED)
def attainable_flops_per_second(flops_per_second, arithmetic_intensity, memory_bytes_per_second):
    """rate that an operation of this intensity can reach at most"""
    return minimum(flops_per_second, arithmetic_intensity * memory_bytes_per_second)


@BOOK.formula(symbol=r"\tau_\text{op}", unit="seconds", source=_ROOFLINE, measured_by=_MEASURED)
def operation_seconds(operation_flops, attainable_flops_per_second):
    """time that an operation takes at least"""
    return operation_flops / attainable_flops_per_second
