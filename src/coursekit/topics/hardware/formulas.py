"""Roofline: the operations and the bytes of an operation, and the rate that arithmetic or memory
allows. Each matrix moves once here; a matrix of which a chip holds only a part moves more often, so
these bytes are lower bounds and these rates upper bounds.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import maximum, minimum, where

BOOK.given_beside(__file__)

_ROOFLINE = "Williams, Waterman and Patterson 2009"
_DEFINITION = "definition"
_COUNTED = "tests/hardware/test_roofline_formulas.py::test_what_a_product_does_and_moves"
_ELEMENTWISE = (
    "tests/hardware/test_roofline_formulas.py::test_what_an_elementwise_operation_does_and_moves"
)
_BOUND = "tests/hardware/test_roofline_formulas.py::test_which_bound"
_SHEET = "tests/hardware/test_roofline_formulas.py::test_a_datasheets_rate"


class WhatAnOperationDoesAndMoves(BOOK.section(source=_DEFINITION, measured_by=_COUNTED)):
    def product_flops(q):
        r"""C_\text{mm} | FLOP | operations of a matrix product: a multiplication and an addition
        for each row, column and inner index"""
        return 2 * q.operation_rows * q.operation_columns * q.operation_depth

    def product_bytes(q):
        r"""S_\text{mm} | bytes | bytes of a matrix product: both factors are read once, the result
        is written once"""
        return q.operation_element_bytes * (
            q.operation_rows * q.operation_depth
            + q.operation_depth * q.operation_columns
            + q.operation_rows * q.operation_columns
        )

    @BOOK.own(measured_by=_ELEMENTWISE)
    def elementwise_flops(q):
        r"""C_\text{elem} | FLOP | operations of an elementwise operation, or of several that one
        kernel does in one go"""
        return q.operation_rows * q.operation_columns * q.operation_depth

    @BOOK.own(measured_by=_ELEMENTWISE)
    def elementwise_bytes(q):
        r"""S_\text{elem} | bytes | bytes of an elementwise operation: each element is read once and
        written once, whatever happens in between"""
        return 2 * q.operation_element_bytes * q.operation_rows * q.operation_columns

    def operation_flops(q):
        r"""C_\text{op} | FLOP | floating-point operations of the operation"""
        return where(q.matrix_product > 0, q.product_flops, q.elementwise_flops)

    @BOOK.own(least=1)
    def operation_bytes(q):
        r"""S_\text{op} | bytes | bytes that the operation reads from memory and writes to it"""
        return where(q.matrix_product > 0, q.product_bytes, q.elementwise_bytes)


class TheRoof(BOOK.section(source=_ROOFLINE, measured_by=_BOUND)):
    def arithmetic_intensity(q):
        """I | FLOP/byte | operations done for each byte that moves between memory and chip"""
        return q.operation_flops / q.operation_bytes

    @BOOK.own(source="NVIDIA 2020", measured_by=_SHEET)
    def chip_flops_per_second(q):
        r"""F_\text{chip} | FLOP/s | rate of a chip as a datasheet computes it: multiprocessors,
        times operations of each in a cycle, times cycles in a second"""
        return q.multiprocessors * q.multiprocessor_flops_per_cycle * q.cycles_per_second

    def ridge_intensity(q):
        r"""I_\text{ridge} | FLOP/byte | intensity of the ridge: above the ridge arithmetic is the
        limit, below it memory"""
        return q.flops_per_second / q.memory_bytes_per_second

    def attainable_flops_per_second(q):
        r"""F_\text{roof} | FLOP/s | highest rate that an operation of this intensity can reach"""
        return minimum(q.flops_per_second, q.arithmetic_intensity * q.memory_bytes_per_second)

    def operation_seconds(q):
        r"""\tau_\text{op} | seconds | shortest time that an operation can take"""
        return q.operation_flops / q.attainable_flops_per_second

    @BOOK.own(measured_by=_BOUND)
    def bound_by_memory(q):
        r"""1_\text{mem} | count | 1 if memory bounds the operation, 0 if arithmetic does"""
        return where(q.arithmetic_intensity < q.ridge_intensity, 1, 0)

    @BOOK.own(measured_by=_BOUND)
    def attainable_share(q):
        r"""\eta_\text{roof} | fraction | largest share of the arithmetic rate that the operation
        can use; the rest waits for memory"""
        return q.attainable_flops_per_second / q.flops_per_second

    @BOOK.own(source=_DEFINITION, measured_by=_SHEET)
    def measured_share(q):
        r"""\eta_\text{meas} | fraction | measured rate as a share of the datasheet's figure"""
        return q.measured_flops_per_second / q.flops_per_second

    # --- before the roof --------------------------------------------------------------------------
    @BOOK.own(source=_DEFINITION, measured_by="tests/hardware/test_roofline_formulas.py::test_pace")
    def queued_operation_seconds(q):
        r"""\tau_\text{queue} | seconds | time for each of many operations in a row: the CPU
        launches the next while the GPU works, and the slower of the two sets the pace"""
        return maximum(q.launch_seconds, q.operation_seconds)
