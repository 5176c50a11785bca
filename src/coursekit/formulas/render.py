"""The second and third rendering: LaTeX and JavaScript, printed from the tree of a formula.

Both keep the order in which the formula was written. JavaScript gets one named line per quantity,
and calls of formulas.js for divisions that round."""

import ast
import json
import math
import re
from functools import cache, partial
from inspect import signature

from .registry import BOOK, EXACT_LIMIT, Formula, Registry
from .subset import SUBSET, returned, tree_of

_SUMS = (ast.Add, ast.Sub)
SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_CHOICES = ("where", "choose")
_MADE_OF_OTHERS = ("shard_of", "next_rank", "ring_pass")


def _operator(node):
    """The class of the operator, of a sum, a product and the like; None for anything else."""
    return type(node.op) if isinstance(node, ast.BinOp) else None


def _called(node):
    """The name of the function that the node calls; "" for anything else."""
    return node.func.id if isinstance(node, ast.Call) else ""


class _Printer:
    """Prints a tree whose names are quantities. `symbol` gives a quantity's text, CALLS that of a
    function by those of its arguments; a function that looks at them is a method."""

    def text(self, node):
        match node:
            case ast.Constant():
                return self.number(node.value)
            case ast.Name():
                return self.symbol(node.id)
            case ast.Call() if template := self.CALLS.get(_called(node)):
                texts = list(map(self.text, node.args))
                return template.format(*texts, all=", ".join(texts), name=self.name)
            case ast.Call():
                return getattr(self, _called(node))(*node.args)
            case ast.Compare(left, [sign], [right]):
                return f"{self.text(left)} {self.SIGNS[type(sign)]} {self.text(right)}"
            case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
                return f"{self.first_term(left)} {SIGNS[type(sign)]} {self.term(right)}"
            case ast.BinOp(op=ast.Mult()):
                return self.product(node)
            case ast.BinOp(over, ast.Div(), under):
                return self.ratio(over, under)
            case ast.BinOp(base, ast.Pow(), exponent):
                return self.power(base, exponent.value)
            case ast.UnaryOp(ast.USub(), operand):
                return self.MINUS + self.factor(operand)

    def term(self, node):
        return self.bracketed(node) if _operator(node) in _SUMS else self.text(node)

    def bracketed(self, node):
        return self.BRACKETS.format(self.text(node))


class _Latex(_Printer):
    CALLS = dict(
        ceil_div=r"\left\lceil \frac{{{0}}}{{{1}}} \right\rceil",
        floor_div=r"\left\lfloor \frac{{{0}}}{{{1}}} \right\rfloor",
        square_root=r"\sqrt{{{0}}}",
        power_of_two="2^{{{0}}}",
        equal="{0} = {1}",
    )
    BRACKETS, MINUS = r"\left({}\right)", "- "
    SIGNS = {**SIGNS, ast.LtE: r"\leq", ast.GtE: r"\geq"}

    def __init__(self, symbol, ruler=None):
        self.symbol, self.name, self.ruler = symbol, "", ruler or self

    def number(self, value):
        if isinstance(value, int):
            return str(value)
        digits, exponent = f"{value:.14e}".split("e")
        if -5 < int(exponent) < 15:
            return str(float(f"{value:.15g}"))
        return rf"{float(digits)} \cdot 10^{{{int(exponent)}}}"

    def first_term(self, node):
        return self.text(node)

    def product(self, node):
        """Factors side by side; a dot between two numbers."""
        text = ""
        for factor in map(self.factor, _factors(node)):
            dot = re.search(r"\d[} ]*$", text) and re.match(r"\d|\\frac\{\d+\}\{\d+\}", factor)
            text += (r" \cdot " if dot else r"\,") * bool(text) + factor
        return text

    def factor(self, node):
        return self.bracketed(node) if _called(node) == "where" else self.term(node)

    def ratio(self, over, under):
        return rf"\frac{{{self.text(over)}}}{{{self.text(under)}}}"

    def power(self, base, exponent):
        text = self.bracketed(base) if isinstance(base, ast.BinOp) else self.text(base)
        return f"{text}^{{{exponent}}}"

    def ceil_log2(self, a):
        printed = self.text(a) if isinstance(a, ast.Name) else self.bracketed(a)
        return rf"\left\lceil \log_2 {printed} \right\rceil"

    def where(self, condition, yes, no):
        """One row for each condition: a `where` instead of `no` goes on below, where a reader
        expects it."""
        rows = [rf"{self.text(yes)} & \text{{if }} {self.text(condition)}"]
        while _called(no) == "where":
            condition, yes, no = no.args
            rows.append(rf"{self.text(yes)} & \text{{if }} {self.text(condition)}")
        return _cases([*rows, rf"{self.text(no)} & \text{{otherwise}}"])

    def choose(self, place, *values):
        """One row for each value; numbers that choose the same stand in one row."""
        rows = {}
        for number, value in enumerate(map(self.text, values), 1):
            rows.setdefault(value, []).append(number)
        return _cases(
            rf"{value} & \text{{if }} {self.text(place)} = {_listed(numbers)}"
            for value, numbers in rows.items()
        )

    def maximum(self, *values):
        return self.extreme(r"\max", values)

    def minimum(self, *values):
        return self.extreme(r"\min", values)

    def arg_max(self, *values):
        return self.extreme(r"\text{arg}\max", values)

    def extreme(self, name, values):
        """Values that are long stand one under the other. How long is measured with the registered
        symbols, whatever is printed."""
        texts = list(map(self.text, values))
        if sum(width(self.ruler.text(value)) for value in values) <= LONG:
            return rf"{name}\left({', '.join(texts)}\right)"
        return f"{name} {_cases(texts)}"


def _factors(node):
    """The factors of products within products, as they are written."""
    if _operator(node) is ast.Mult:
        return [*_factors(node.left), *_factors(node.right)]
    return [node]


def _listed(numbers):
    """1, 3, \\ldots, 22 for ascending numbers: of four or more in a row, the first and the last."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        ", ".join(map(str, run if len(run) < 4 else [run[0], r"\ldots", run[-1]])) for run in runs
    )


def _cases(rows):
    lines = r" \\ ".join(rows)
    return rf"\begin{{cases}} {lines} \end{{cases}}"


LONG = 40  # characters: what stands in one line of a maximum
_INNERMOST = re.compile(r"\\begin\{cases\}((?:(?!\\begin\{|\\end\{).)*)\\end\{cases\}", re.DOTALL)


def width(text):
    """About how many characters wide a formula is when it is typeset; of the rows of an environment
    the longest counts."""
    while match := _INNERMOST.search(text):
        longest = max(width(row) for row in match[1].split(r"\\"))
        text = text[: match.start()] + (longest + 2) * "x" + text[match.end() :]
    names = re.sub(r"\\(left|right|text|quad|,)", "", text)
    return len(re.sub(r"[{}_\\^&\s]", "", re.sub(r"\\[a-zA-Z]+", "x", names)))


class _JavaScript(_Printer):
    """Prints one formula; `name` goes into the calls that may refuse, `letters` are the names of
    variables."""

    CALLS = dict(
        ceil_div='ceilDiv("{name}", {all})',
        floor_div='floorDiv("{name}", {all})',
        square_root="Math.sqrt({0})",
        power_of_two="Math.pow(2, {0})",
        maximum="Math.max({all})",
        minimum="Math.min({all})",
        arg_max="([{all}].indexOf(Math.max({all})) + 1)",
        where="({0} ? {1} : {2})",
        equal="{0} == {1}",
    )
    BRACKETS, MINUS = "({})", "-"
    SIGNS = SIGNS
    number = staticmethod(repr)

    def __init__(self, name, letters):
        self.name, self.symbol = name, letters.__getitem__

    def first_term(self, node):
        return self.term(node)

    def product(self, node):
        return f"{self.factor(node.left)}*{self.factor(node.right)}"

    def factor(self, node):
        alone = _operator(node) in (None, ast.Pow)
        return self.text(node) if alone else self.bracketed(node)

    def ratio(self, over, under):
        return f"{self.factor(over)}/{self.factor(under)}"

    def power(self, base, exponent):
        return f"({'*'.join([self.factor(base)] * exponent)})"

    def ceil_log2(self, a):
        return f"(32 - Math.clz32({self.term(a)} - 1))"

    def choose(self, place, *values):
        return f"[{', '.join(map(self.text, values))}][{self.term(place)} - 1]"


def _written_out(node, known):
    """The tree with others for the names in `known`, with the bodies of ring_pass and the like
    instead of their calls, and with numbers where everything is one."""
    again = partial(_written_out, known=known)
    match node:
        case ast.Constant():
            return node
        case ast.Name():
            return known.get(node.id, node)
        case ast.BinOp():
            parts = [again(node.left), again(node.right)]
            made = ast.BinOp(parts[0], node.op, parts[1])
        case ast.UnaryOp():
            parts = [again(node.operand)]
            made = ast.UnaryOp(node.op, *parts)
        case ast.Compare():
            parts = [again(node.left), again(node.comparators[0])]
            made = ast.Compare(parts[0], node.ops, parts[1:])
        case ast.Call():
            parts, function = list(map(again, node.args)), SUBSET[_called(node)]
            if _called(node) in _MADE_OF_OTHERS:
                return _written_out(
                    returned(function), dict(zip(signature(function).parameters, parts))
                )
            if _called(node) in _CHOICES and isinstance(parts[0], ast.Constant):
                return function(parts[0].value, *parts[1:])
            made = ast.Call(node.func, parts, [])
    if all(isinstance(part, ast.Constant) for part in parts):
        return ast.Constant(eval(ast.unparse(made), dict(SUBSET)))
    return made


@cache  # a formula is on its page, on a formula sheet, and in the JavaScript of explorers
def _tree(function):
    return _written_out(tree_of(function), {})


def right_hand_side(name, registry: Registry = BOOK, symbol=None, given=None):
    """LaTeX of the formula's right-hand side. `symbol(name)` gives each quantity's LaTeX; by
    default its registered symbol. `given` are numbers for some quantities: what follows from them
    is written out, and of each `where` only the side that holds."""
    made = _with(name, registry, given) if given else _tree(registry.formulas[name].function)
    names = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)} - SUBSET.keys()
    printer = _Latex({name: registry.find(name).symbol for name in names}.get)
    if symbol:
        printer = _Latex({name: symbol(name) for name in names}.get, ruler=printer)
    return printer.text(made)


def _with(name, registry, given):
    """The formula with numbers for what is given and an expression for what depends on it."""
    formula, known = registry.formulas[name], {}
    for need in formula.needs:
        if need in given:
            known[need] = ast.Constant(given[need])
        elif need in registry.formulas and set(given) & set(registry.resolve([need])[1]):
            known[need] = _with(need, registry, given)
    return _written_out(tree_of(formula.function), known)


def latex(name, registry: Registry = BOOK, symbol=None):
    """The typeset equation: the formula's symbol = its right-hand side. `symbol(name)` as in
    right_hand_side."""
    left = symbol(name) if symbol else registry.formulas[name].symbol
    return f"{left} = {right_hand_side(name, registry, symbol)}"


_TAKEN = {"q", "r", "do", "if", "in", "of"}  # two are javascript()'s own, the others JavaScript's
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _letters(names):
    """name -> a short one of its own: a, b ... Z, aa, ab ... A page has few bytes, and its source
    is the Python."""
    short = (
        word
        for word in (*_ALPHABET, *(first + second for first in _ALPHABET for second in _ALPHABET))
        if word not in _TAKEN
    )
    return dict(zip(names, short, strict=False))


def javascript(targets, inputs=(), registry: Registry = BOOK):
    """A JavaScript function of one object that returns every input and every quantity the targets
    need, one line a quantity.

    `inputs` are names given instead of computed. The function throws the same sentence that Python
    raises; it uses `given`, `exact`, `finite`, `invalid`, `ceilDiv` and `floorDiv` of formulas.js
    and nothing else; the first three note the value in `r`, under the quantity's name. Variables
    have short names, and as many lines as can share one `var`.
    """
    formulas, needed = registry.resolve(targets, inputs)
    # checked in the order in which they are given, as in Python
    needed = list(dict.fromkeys([*inputs, *needed]))
    letters = _letters([*needed, *formulas])
    lines = ["function (q) {", "  var r = {};"]

    def define(name, text):
        if lines[-1].lstrip().startswith(("var", ",")):
            lines[-1] = lines[-1].removesuffix(";")
            lines.append(f"  , {letters[name]} = {text};")
        else:
            lines.append(f"  var {letters[name]} = {text};")

    for name in needed:
        found = registry.find(name)
        limits = found.as_quantity if isinstance(found, Formula) else found
        most = "null" if limits.most in (EXACT_LIMIT, math.inf) else limits.most
        bounds = f"{limits.least}, {most}, {int(limits.above)}, {int(limits.whole)}"
        define(name, f"given(r, q, {json.dumps(name)}, {bounds})")
    known, done = set(needed), set()

    def rules():
        for rule in registry.applicable_rules(known):
            if rule.name not in done:
                done.add(rule.name)
                there = {name: str(value) for name, value in rule.assumed} | letters
                condition = _JavaScript(rule.name, there).text(_tree(rule.function))
                shown = "{" + ", ".join(f"{need}: {there[need]}" for need in rule.needs) + "}"
                lines.append(
                    f"  if (!({condition})) invalid({json.dumps(rule.marks)},"
                    f" {json.dumps(rule.message)}, {shown});"
                )

    rules()
    for name in formulas:
        formula = registry.formulas[name]
        text = _JavaScript(name, letters).text(_tree(formula.function))
        define(name, f"{'exact' if formula.whole else 'finite'}(r, {json.dumps(name)}, {text})")
        known.add(name)
        rules()
    return "\n".join([*lines, "  return r;", "}"])
