"""The second and third rendering: LaTeX and JavaScript, printed from the tree of a formula.

Both keep the order in which the formula was written. JavaScript gets one named line per quantity,
and calls of formulas.js for divisions that round."""

import ast
import json
import math
import re
from functools import cache, reduce
from inspect import signature
from itertools import chain, product
from string import ascii_letters

from .registry import BOOK, EXACT_LIMIT, Registry
from .subset import SUBSET, tree_of

_SUMS = (ast.Add, ast.Sub)
SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Lt: "<", ast.Gt: ">"}
SIGNS |= {ast.LtE: r"\leq", ast.GtE: r"\geq"}
_CHOICES = ("where", "choose")
_MADE_OF_OTHERS = ("shard_of", "next_rank", "ring_pass")


def _operator(node):
    """The class of the operator, of a sum, a product and the like; None for anything else."""
    return type(node.op) if isinstance(node, ast.BinOp) else None


def _called(node):
    """The name of the function that the node calls; "" for anything else."""
    return node.func.id if isinstance(node, ast.Call) else ""


class _Latex:
    """Prints a tree whose names are quantities. `symbol` gives a quantity's text, CALLS that of a
    function by those of its arguments; a function that looks at them is a method."""

    CALLS = dict(
        ceil_div=r"\left\lceil \frac{{{0}}}{{{1}}} \right\rceil",
        floor_div=r"\left\lfloor \frac{{{0}}}{{{1}}} \right\rfloor",
        square_root=r"\sqrt{{{0}}}",
        power_of_two="2^{{{0}}}",
        equal="{0} = {1}",
    )

    def __init__(self, symbol, ruler=None):
        self.symbol, self.ruler = symbol, ruler or self

    def text(self, node):
        match node:
            case ast.Constant():
                return self.number(node.value)
            case ast.Name():
                return self.symbol(node.id)
            case ast.Call() if template := self.CALLS.get(_called(node)):
                return template.format(*map(self.text, node.args))
            case ast.Call():
                return getattr(self, _called(node))(*node.args)
            case ast.Compare(left, [sign], [right]):
                return f"{self.text(left)} {SIGNS[type(sign)]} {self.text(right)}"
            case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right):
                return f"{self.text(left)} {SIGNS[type(sign)]} {self.term(right)}"
            case ast.BinOp(op=ast.Mult()):
                return self.product(node)
            case ast.BinOp(over, ast.Div(), under):
                return rf"\frac{{{self.text(over)}}}{{{self.text(under)}}}"
            case ast.BinOp(base, ast.Pow(), exponent):
                text = self.bracketed(base) if isinstance(base, ast.BinOp) else self.text(base)
                return f"{text}^{{{exponent.value}}}"
            case ast.UnaryOp(ast.USub(), operand):
                return f"- {self.factor(operand)}"

    def term(self, node):
        return self.bracketed(node) if _operator(node) in _SUMS else self.text(node)

    def bracketed(self, node):
        return rf"\left({self.text(node)}\right)"

    def number(self, value):
        if isinstance(value, int):
            return str(value)
        digits, exponent = f"{value:.14e}".split("e")
        if -5 < int(exponent) < 15:
            return str(float(f"{value:.15g}"))
        return rf"{float(digits)} \cdot 10^{{{int(exponent)}}}"

    def product(self, node):
        """Factors side by side; a dot between two numbers."""
        text = ""
        for factor in map(self.factor, _factors(node)):
            dot = re.search(r"\d[} ]*$", text) and re.match(r"\d|\\frac\{\d+\}\{\d+\}", factor)
            text += (r" \cdot " if dot else r"\,") * bool(text) + factor
        return text

    def factor(self, node):
        return self.bracketed(node) if _called(node) == "where" else self.term(node)

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


class _JavaScript(ast.NodeTransformer):
    """Python's own printer, with JavaScript where Python has another word for it. `name` goes into
    the calls that may refuse, `letters` are the names of variables."""

    CALLS = dict(
        ceil_div='ceilDiv("{name}", {all})',
        floor_div='floorDiv("{name}", {all})',
        ceil_log2="(32 - Math.clz32({0} - 1))",
        square_root="Math.sqrt({0})",
        power_of_two="Math.pow(2, {0})",
        maximum="Math.max({all})",
        minimum="Math.min({all})",
        arg_max="([{all}].indexOf(Math.max({all})) + 1)",
        choose="[{others}][{0} - 1]",
        where="({0} ? {1} : {2})",
        equal="{0} == {1}",
    )

    def __init__(self, name, letters):
        self.name, self.letters = name, letters

    def text(self, node):
        alone = ast.parse(ast.unparse(node), mode="eval")  # a tree may have a part in two places
        return ast.unparse(self.visit(alone))

    def visit_Name(self, node):
        return ast.Name(self.letters[node.id])

    def visit_Call(self, node):
        texts = [ast.unparse(self.visit(part)) for part in node.args]
        said = dict(name=self.name, all=", ".join(texts), others=", ".join(texts[1:]))
        return ast.Name(self.CALLS[_called(node)].format(*texts, **said))

    def visit_BinOp(self, node):
        """A power is a product."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Pow):
            factors = [node.left] * node.right.value
            return reduce(lambda one, other: ast.BinOp(one, ast.Mult(), other), factors)
        return node


class _WrittenOut(ast.NodeTransformer):
    """The tree with others for the names in `known`, with the bodies of ring_pass and the like
    instead of their calls, and with numbers where everything is one."""

    def __init__(self, known):
        self.known = known

    def visit_Name(self, node):
        return self.known.get(node.id, node)

    def visit_Call(self, node):
        function, node.args = SUBSET[_called(node)], list(map(self.visit, node.args))
        if _called(node) in _MADE_OF_OTHERS:
            given = dict(zip(signature(function).parameters, node.args))
            return _WrittenOut(given).visit(tree_of(function))
        if _called(node) in _CHOICES and isinstance(node.args[0], ast.Constant):
            return function(node.args[0].value, *node.args[1:])
        return self.computed(node, node.args)

    def generic_visit(self, node):
        super().generic_visit(node)
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        return self.computed(node, parts)

    def computed(self, node, parts):
        if parts and all(isinstance(part, ast.Constant) for part in parts):
            return ast.Constant(eval(ast.unparse(node), dict(SUBSET)))
        return node


@cache  # a formula is on its page, on a formula sheet, and in the JavaScript of explorers
def _tree(function):
    return _WrittenOut({}).visit(tree_of(function))


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
    return _WrittenOut(known).visit(tree_of(formula.function))


def latex(name, registry: Registry = BOOK, symbol=None):
    """The typeset equation: the formula's symbol = its right-hand side. `symbol(name)` as in
    right_hand_side."""
    left = symbol(name) if symbol else registry.formulas[name].symbol
    return f"{left} = {right_hand_side(name, registry, symbol)}"


_TAKEN = {"q", "r", "do", "if", "in", "of"}  # two are javascript()'s own, the others JavaScript's


def _letters(names):
    """name -> a short one of its own: a, b ... Z, aa, ab ... A page has few bytes, and its source
    is the Python."""
    short = map("".join, chain(ascii_letters, product(ascii_letters, repeat=2)))
    return dict(zip(names, (word for word in short if word not in _TAKEN), strict=False))


def javascript(targets, inputs=(), registry: Registry = BOOK):
    """A JavaScript function of one object that returns every input and every quantity the targets
    need, one line a quantity.

    `inputs` are names given instead of computed. The function throws the same sentence that Python
    raises; it uses `given`, `exact`, `finite`, `invalid`, `ceilDiv` and `floorDiv` of formulas.js
    and nothing else; the first three note the value in `r`, under the quantity's name. Variables
    have short names.
    """
    formulas, needed = registry.resolve(targets, inputs)
    # checked in the order in which they are given, as in Python
    needed = list(dict.fromkeys([*inputs, *needed]))
    letters = _letters([*needed, *formulas])
    lines = ["function (q) {", "  var r = {};"]

    def define(name, text):
        lines.append(f"  var {letters[name]} = {text};")

    for name in needed:
        found = registry.find(name)
        most = "null" if found.most in (EXACT_LIMIT, math.inf) else found.most
        bounds = f"{found.least}, {most}, {int(found.above)}, {int(found.whole)}"
        define(name, f"given(r, q, {json.dumps(name)}, {bounds})")
    known, done = set(needed), set()

    def rules():
        for rule in registry.applicable_rules(known):
            if rule.message not in done:
                done.add(rule.message)
                there = {name: str(value) for name, value in rule.assumed} | letters
                condition = _JavaScript(rule.marks, there).text(_tree(rule.function))
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
