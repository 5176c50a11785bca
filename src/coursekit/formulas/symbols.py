"""The functions of the subset as SymPy has them: they stay as written until render.py prints them.
Imported only when something is typeset."""

import sympy

# Maximum and Minimum keep the written order of their values; sympy.Max sorts
_NAMES = "CeilDiv FloorDiv CeilLog2 SquareRoot PowerOfTwo Maximum Minimum ArgMax Choose"

# Name in subset.py -> the same of symbols
OF_SYMBOLS = {name: type(name, (sympy.Function,), {}) for name in _NAMES.split()} | dict(
    where=lambda condition, yes, no: sympy.Piecewise((yes, condition), (no, True), evaluate=False),
    equal=lambda a, b: sympy.Eq(a, b, evaluate=False),
)
