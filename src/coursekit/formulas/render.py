"""The second and third rendering: SymPy symbols in, LaTeX and JavaScript out. Imported only when
something is typeset.

The functions are called under `sympy.evaluate(False)` and printed with `order="none"`, so that the
equation and the code keep the order in which the formula was written. JavaScript gets one named
line per quantity; divisions that round and powers are printed by this module's methods (a ceiling
that SymPy prints as (1/91)*n is wrong at n = 273: 4, not 3)."""

import json
import math
import re
from functools import cache

import sympy
from sympy.printing.jscode import JavascriptCodePrinter
from sympy.printing.latex import LatexPrinter
from sympy.printing.precedence import PRECEDENCE

from .registry import BOOK, EXACT_LIMIT, Formula, Registry
from .subset import Values


class _Latex(LatexPrinter):
    def __init__(self, symbols, ruler=None):
        super().__init__({"order": "none", "symbol_names": symbols, "mul_symbol": r"\,"})
        self.ruler = ruler or self

    def _print_CeilDiv(self, expression, exp=None):
        over, under = map(self._print, expression.args)
        return rf"\left\lceil \frac{{{over}}}{{{under}}} \right\rceil"

    def _print_FloorDiv(self, expression, exp=None):
        over, under = map(self._print, expression.args)
        return rf"\left\lfloor \frac{{{over}}}{{{under}}} \right\rfloor"

    def _print_CeilLog2(self, expression, exp=None):
        (argument,) = expression.args
        printed = self._print(argument)
        if not argument.is_Symbol:
            printed = rf"\left({printed}\right)"
        return rf"\left\lceil \log_2 {printed} \right\rceil"

    def _print_SquareRoot(self, expression, exp=None):
        return rf"\sqrt{{{self._print(expression.args[0])}}}"

    def _print_PowerOfTwo(self, expression, exp=None):
        return f"2^{{{self._print(expression.args[0])}}}"

    def _print_Piecewise(self, expression):
        """One row for each condition: a `where` instead of `no` goes on below, where a reader
        expects it."""
        rows = []
        while isinstance(expression, sympy.Piecewise):
            (yes, condition), (expression, _) = expression.args
            rows.append(rf"{self._print(yes)} & \text{{if }} {self._print(condition)}")
        rows.append(rf"{self._print(expression)} & \text{{otherwise}}")
        return _cases(rows)

    def _print_Maximum(self, expression, exp=None):
        return self._extreme(r"\max", expression)

    def _print_Minimum(self, expression, exp=None):
        return self._extreme(r"\min", expression)

    def _print_ArgMax(self, expression, exp=None):
        return self._extreme(r"\text{arg}\max", expression)

    def _print_Choose(self, expression, exp=None):
        """One row for each value; numbers that choose the same stand in one row."""
        place, *values = map(self._print, expression.args)
        rows = {}
        for number, value in enumerate(values, 1):
            rows.setdefault(value, []).append(number)
        return _cases(
            rf"{value} & \text{{if }} {place} = {_listed(numbers)}"
            for value, numbers in rows.items()
        )

    def _extreme(self, name, expression):
        """Arguments that are long stand one under the other. How long is measured with the
        registered symbols, whatever is printed."""
        arguments = [self._print(argument) for argument in expression.args]
        if sum(width(self.ruler.doprint(argument)) for argument in expression.args) <= LONG:
            return rf"{name}\left({', '.join(arguments)}\right)"
        return f"{name} {_cases(arguments)}"


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


def _flatten(expression):
    """((a + b) + c) as a + b + c: Python adds two at a time, a reader does not want to see it. To
    be called under `sympy.evaluate(False)`, once: it empties SymPy's caches."""
    arguments = [_flatten(argument) for argument in expression.args]
    if isinstance(expression, sympy.Add) and isinstance(arguments[0], sympy.Add):
        arguments[:1] = arguments[0].args
    elif all(new is old for new, old in zip(arguments, expression.args)):
        return expression
    return expression.func(*arguments)


class _JavaScript(JavascriptCodePrinter):
    """Prints one formula; `name` goes into the calls that may refuse, `letters` are the names of
    variables."""

    def __init__(self, name, letters):
        super().__init__({"order": "none"})
        self.name, self.letters = name, letters

    def _print_Symbol(self, symbol):
        return self.letters[symbol.name]

    def _print_CeilDiv(self, expression):
        return self._call("ceilDiv", expression)

    def _print_FloorDiv(self, expression):
        return self._call("floorDiv", expression)

    def _call(self, function, expression):
        over, under = map(self._print, expression.args)
        return f"{function}({json.dumps(self.name)}, {over}, {under})"

    def _print_CeilLog2(self, expression):
        argument = self.parenthesize(expression.args[0], PRECEDENCE["Add"])
        return f"(32 - Math.clz32({argument} - 1))"

    def _print_SquareRoot(self, expression):
        return f"Math.sqrt({self._print(expression.args[0])})"

    def _print_PowerOfTwo(self, expression):
        return f"Math.pow(2, {self._print(expression.args[0])})"

    def _print_Maximum(self, expression):
        return f"Math.max({', '.join(map(self._print, expression.args))})"

    def _print_Minimum(self, expression):
        return f"Math.min({', '.join(map(self._print, expression.args))})"

    def _print_ArgMax(self, expression):
        values = ", ".join(map(self._print, expression.args))
        return f"([{values}].indexOf(Math.max({values})) + 1)"

    def _print_Choose(self, expression):
        place, *values = expression.args
        chosen = self.parenthesize(place, PRECEDENCE["Add"])
        return f"[{', '.join(map(self._print, values))}][{chosen} - 1]"

    def _print_Piecewise(self, expression):
        (yes, condition), (no, _) = expression.args
        return f"({self._print(condition)} ? {self._print(yes)} : {self._print(no)})"

    def _print_Pow(self, expression):
        base, exponent = expression.base, expression.exp
        if exponent.is_Integer:
            base, exponent = expression.as_base_exp()
        if exponent == -1:
            return "1/" + self.parenthesize(base, PRECEDENCE["Pow"])
        return "(" + "*".join([self.parenthesize(base, PRECEDENCE["Mul"])] * int(exponent)) + ")"


@cache  # a formula is on its page, on a formula sheet, and in the JavaScript of explorers
def _symbolic(function, needs):
    with sympy.evaluate(False):
        symbols = {need: sympy.Symbol(need, nonnegative=True) for need in needs}
        return sympy.sympify(function(Values(symbols)))


def right_hand_side(name, registry: Registry = BOOK, symbol=None, given=None):
    """LaTeX of the formula's right-hand side. `symbol(name)` gives each quantity's LaTeX; by
    default its registered symbol. `given` are numbers for some quantities: what follows from them
    is written out, and of each `where` only the side that holds."""
    made = _with(name, registry, given) if given else None
    if made is None:
        formula = registry.formulas[name]
        made = _symbolic(formula.function, formula.needs)
    symbols = {made: registry.find(made.name).symbol for made in made.free_symbols}
    printer = _Latex(symbols)
    if symbol:
        printer = _Latex({made: symbol(made.name) for made in symbols}, ruler=printer)
    with sympy.evaluate(False):
        flat = _flatten(made)
    return printer.doprint(flat)


def _with(name, registry, given):
    """The formula with numbers for what is given and an expression for what depends on it."""
    formula = registry.formulas[name]
    known = {
        need: given[need]
        if need in given
        else _with(need, registry, given)
        if need in registry.formulas and set(given) & set(registry.resolve([need])[1])
        else sympy.Symbol(need, nonnegative=True)
        for need in formula.needs
    }
    with sympy.evaluate(False):
        return sympy.sympify(formula.function(Values(known)))


def latex(name, registry: Registry = BOOK, symbol=None):
    """The typeset equation: the formula's symbol = its right-hand side. `symbol(name)` as in
    right_hand_side."""
    left = symbol(name) if symbol else registry.formulas[name].symbol
    return f"{left} = {right_hand_side(name, registry, symbol)}"


def _javascript_expression(function_name, function, needs, letters):
    made = _symbolic(function, needs)
    text = " ".join(_JavaScript(function_name, letters).doprint(made).split())
    if "Not supported" in text:
        raise ValueError(f"formula {function_name} does not print as JavaScript: {text}")
    return text


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
                condition = _javascript_expression(rule.name, rule.function, rule.needs, there)
                shown = "{" + ", ".join(f"{need}: {there[need]}" for need in rule.needs) + "}"
                lines.append(
                    f"  if (!({condition})) invalid({json.dumps(rule.marks)},"
                    f" {json.dumps(rule.message)}, {shown});"
                )

    rules()
    for name in formulas:
        formula = registry.formulas[name]
        text = _javascript_expression(name, formula.function, formula.needs, letters)
        define(name, f"{'exact' if formula.whole else 'finite'}(r, {json.dumps(name)}, {text})")
        known.add(name)
        rules()
    return "\n".join([*lines, "  return r;", "}"])
