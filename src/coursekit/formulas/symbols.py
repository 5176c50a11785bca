"""The functions of the subset as SymPy has them: they stay as written until render.py prints them.
Imported only when something is typeset."""

import sympy


class CeilDiv(sympy.Function):
    """ceil_div of symbols."""


class FloorDiv(sympy.Function):
    """floor_div of symbols."""


class CeilLog2(sympy.Function):
    """ceil_log2 of symbols."""


class SquareRoot(sympy.Function):
    """square_root of symbols."""


class PowerOfTwo(sympy.Function):
    """power_of_two of symbols."""


class Maximum(sympy.Function):
    """maximum of symbols, in the written order; sympy.Max sorts."""


class Minimum(sympy.Function):
    """minimum of symbols, in the written order."""


class ArgMax(sympy.Function):
    """arg_max of symbols."""


class Choose(sympy.Function):
    """choose of symbols."""


def where(condition, yes, no):
    return sympy.Piecewise((yes, condition), (no, True), evaluate=False)


def equal(a, b):
    return sympy.Eq(a, b, evaluate=False)
