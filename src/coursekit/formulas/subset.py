"""The functions of a formula, besides quantities, numbers, + - * /, ** with a whole exponent, and <
<= > >=.

A formula takes one argument, `q`, and names a quantity where it needs it: `q.layers`. What it
depends on is read from its body.

Each function takes numbers or arrays of NumPy (arrays.py), and render.py prints it. So one formula
serves more than once: called with integers it gives exact bytes, with arrays the bytes of thousands
of layouts, and its body is the equation on the page and the JavaScript behind the slider. `//` and
`%` are left out on purpose: JavaScript has no division that is exact up to 2^53. `check_subset`
refuses a formula that leaves the subset when it is defined, not when it is first printed.
"""

import ast
import inspect
import math
import re
import sys
import textwrap
from functools import cache, wraps

# up to here a JavaScript number, a float64, holds every whole number and no other rounds to it
EXACT_LIMIT = 2**53 - 1


class DividendTooLarge(OverflowError):
    """ceil_div or floor_div of a number above EXACT_LIMIT; the registry adds the formula's name."""


def _of_arrays(function):
    """The function below, for arrays of NumPy that of arrays.py, which is imported only then."""

    @wraps(function)
    def of_either(*values):
        for value in values:  # `any` takes thrice as long, and formulas call this most
            if hasattr(value, "dtype"):
                from .arrays import OF_ARRAYS

                return OF_ARRAYS[function.__name__](*values)
        return function(*values)

    return of_either


def _whole_division(name, a, b):
    for value in (a, b):
        if not isinstance(value, int):
            said = f"{value!r} is a {type(value).__name__}."
            raise TypeError(f"{name}({a}, {b}): both must be whole numbers, {said}")
    if a > EXACT_LIMIT:  # the page cannot divide it exactly, so Python does not either
        raise DividendTooLarge(a)


@_of_arrays
def ceil_div(a, b):
    """a / b rounded up, exact for whole numbers: the rows of the fullest shard when a rows are
    dealt to b ranks."""
    _whole_division("ceil_div", a, b)
    return -(-a // b)


@_of_arrays
def floor_div(a, b):
    """a / b rounded down, exact for whole numbers."""
    _whole_division("floor_div", a, b)
    return a // b


@_of_arrays
def ceil_log2(a):
    """How often 1 must be doubled to reach a; a is a whole number from 1 to 2^32: its quantities
    have to promise that."""
    if not isinstance(a, int) or not 1 <= a <= 2**32:
        raise TypeError(f"ceil_log2({a}): it must be a whole number from 1 to 2^32.")
    return (a - 1).bit_length()


@_of_arrays
def square_root(a):
    """The number whose square is a: rounded correctly by Python and by the page, so that both have
    the same."""
    return math.sqrt(a)


@_of_arrays
def power_of_two(a):
    """2 to the power of a, which may be negative: exact for whole numbers down to -1074, in Python
    and on the page."""
    return 2**a if isinstance(a, int) else 2.0**a


@_of_arrays
def maximum(*values):
    """The largest of the values: the peak over the points of a step."""
    return max(values)


@_of_arrays
def minimum(*values):
    """The smallest of the values."""
    return min(values)


@_of_arrays
def arg_max(*values):
    """Which of the values is the largest, counted from 1; of equal ones the first."""
    return values.index(max(values)) + 1


@_of_arrays
def choose(place, *values):
    """The value with that number, counted from 1, as arg_max counts."""
    return values[place - 1]


@_of_arrays
def where(condition, yes, no):
    """`yes` where the condition holds, else `no`. The condition is one comparison: `zero_stage >=
    2`."""
    return yes if condition else no


@_of_arrays
def equal(a, b):
    """True where the two are equal."""
    return a == b


# --- made of these, for what many formulas share --------------------------------------------------


def shard_of(whole, ranks, rank):
    """Elements of the rank's shard of a whole: where the ranks do not divide it, the first shards
    have one element more."""
    return floor_div(ranks - 1 - rank + whole, ranks)


def next_rank(ranks, rank):
    """The rank's neighbour, to which it sends around a ring: after the last comes rank 0."""
    return where(rank + 1 < ranks, rank + 1, 0)


def ring_pass(ranks, latency, seconds):
    """Time of a reduce-scatter or an all-gather around a ring, of a message that a link carries in
    `seconds`: a latency for each step, and the bytes of every chunk but one."""
    return (ranks - 1) * latency + (ranks - 1) / ranks * seconds


_FUNCTIONS = (ceil_div, floor_div, ceil_log2, square_root, power_of_two, maximum, minimum, arg_max)
_FUNCTIONS += (choose, where, equal, shard_of, next_rank, ring_pass)
SUBSET = {function.__name__: function for function in _FUNCTIONS}


class Values:
    """`q` of a formula: `q.layers` is the value, or the symbol, of the quantity layers."""

    def __init__(self, values):
        self.__dict__ = values


@cache
def functions_in(text):
    """(first line, name) -> tree of each function in a module's text, which has hundreds."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    first = lambda node: min(part.lineno for part in (node, *node.decorator_list))
    return {(first(node), node.name): node for node in functions}


def returned(function):
    """The expression that a formula returns, as a tree. TypeError, naming the line, where the body
    is more than one `return`."""
    try:
        place = function.__code__.co_firstlineno, function.__name__
        tree = functions_in(inspect.getsource(sys.modules[function.__module__]))[place]
    except (OSError, TypeError, SyntaxError, KeyError):  # in a cell, or under another name
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    text = lambda node: isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    body = [node for node in tree.body if not text(node)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        last = ast.unparse(tree.body[-1])
        raise TypeError(
            f"formula {function.__name__}: `{last}` is not the only statement: a formula is one"
            " docstring and one return."
        )
    return body[0].value


def as_text(expression):
    """The expression as a reader sees it: `layers` for `q.layers`."""
    return re.sub(r"\bq\.", "", ast.unparse(expression))


@cache  # an explanation of a step reads hundreds
def expression_of(function):
    """The expression of a formula, as it is written in Python but for `q.`; places say how their
    expression is made."""
    text = getattr(function, "written", "")
    return text or as_text(returned(function))


@cache
def needs_of(function):
    """The names of the quantities on which a formula depends, each once, in the order in which they
    stand."""
    names = dict.fromkeys(re.findall(r"\b[A-Za-z_]\w*", expression_of(function)))
    return tuple(name for name in names if name not in SUBSET)


def tree_of(function):
    """The expression as a tree, whose names are quantities."""
    return ast.parse(expression_of(function), mode="eval").body


def formula_of(text):
    """A formula as it is written, but for `q.`."""
    of_q = lambda name: name[0] if name[0] in SUBSET else f"q.{name[0]}"
    code = re.sub(r"\b[a-z_]\w*", of_q, text)
    formula = eval(f"lambda q: {code}", dict(SUBSET))
    formula.written = text
    return formula


def check_subset(function):
    """Raise TypeError, naming the line, when a formula's body is more than one `return` of an
    expression in the subset."""
    check_expression(returned(function), function)


def check_expression(expression, function):
    """Raise TypeError where the expression leaves the subset."""
    arguments = list(inspect.signature(function).parameters)
    if arguments != ["q"]:
        raise TypeError(f"formula {function.__name__} takes q alone, not {', '.join(arguments)}.")

    if outside := _outside(expression):
        said = f"`{ast.unparse(outside)}` is outside the subset that subset.py begins with."
        raise TypeError(f"formula {function.__name__}: {said}")


def _outside(node):
    """The first part of an expression that is not in the subset; None where all are."""
    match node:
        case ast.Attribute(ast.Name("q")):
            parts = ()
        case ast.Constant(number) if type(number) in (int, float):
            parts = ()
        case ast.BinOp(base, ast.Pow(), ast.Constant(int(exponent))) if exponent >= 1:
            parts = (base,)
        case ast.BinOp(left, ast.Add() | ast.Mult() | ast.Div(), right):
            parts = left, right
        # a difference of an expression would hide its size: it has a name, which is checked
        case ast.BinOp(ast.Attribute() | ast.Constant() as left, ast.Sub(), right):
            parts = left, right
        case ast.UnaryOp(ast.USub(), operand):
            parts = (operand,)
        case ast.Compare(left, [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], [right]):
            parts = left, right
        case ast.Call(ast.Name(name), parts, []) if name in SUBSET:
            pass
        case _:
            return node
    return next(filter(None, map(_outside, parts)), None)
