"""Places of a computation at which bytes are counted, as data; totals, the largest, where it is and
what it is made of are one sum and one maximum for all.

    LAYER = Places("layer_work", r"_\\ell", "in one layer", source="...", measured_by="tests/...")

    @LAYER.place("norm", symbol=r"_\\text{norm}")
    def norm(q):
        \"\"\"in the norm\"\"\"
        return live(activations=q.norm_activation_bytes, temporaries=q.norm_backward_bytes)

    LAYER.largest()

A place is a function that returns `live(category=expression, ...)`. It registers

    activations_at_norm_bytes       one formula for each category, unless it is one quantity's name
    live_at_norm_bytes              their sum

and `largest` registers, over all places,

    layer_work_bytes                the largest sum
    layer_work_place                which place has it, counted from 1
    activations_at_layer_work_bytes what each category has there
"""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from types import MappingProxyType

from .registry import BOOK, Registry
from .subset import (
    SUBSET,
    arg_max,
    as_text,
    check_expression,
    choose,
    maximum,
    quantities_in,
    quantity_in,
    returned,
)

LETTERS = {
    "parameters": "P",
    "optimizer": "O",
    "gradients": "G",
    "activations": "A",
    "gathered": "H",
    "temporaries": "U",
    "workspaces": "K",
}

# How a meaning names a category, where its own name is not a noun.
SAID = {"optimizer": "optimizer states", "gathered": "gathered parameters"}


@dataclass(frozen=True)
class Place:
    """One place: its name, its phase, the quantity of all its bytes, and category -> quantity."""

    name: str
    phase: str
    total: str
    parts: Mapping
    when: str = ""  # a quantity that is 0 where there is no such place

    def categories(self):
        """Category -> quantity, in the order in which they are stacked."""
        return dict(self.parts)


@dataclass
class Places:
    """Places, one of which has the most bytes. `usual` names the quantities of categories that most
    places share; a place says what is otherwise there."""

    name: str
    symbol: str
    meaning: str
    source: str
    measured_by: str
    usual: Mapping = field(default_factory=dict)
    letter: str = "W"  # of a sum's symbol
    there: str = ""  # what is said of a category at the largest, where `meaning` does not fit
    registry: Registry = BOOK
    places: list[Place] = field(default_factory=list, init=False)
    rivals: list[Place] = field(default_factory=list, init=False)  # those that can be the largest

    def place(self, name, *, symbol, phase="", total="", when="", largest=True, **facts):
        """Register the place below. `largest=False`: it is shown, but never has the most. `facts`
        are a source or a test that this place alone has."""

        def register(function):
            expression = returned(function)
            if not isinstance(expression, ast.Call) or ast.unparse(expression.func) != "live":
                found = ast.unparse(expression)
                raise TypeError(f"place {name}: `{found}` is not live(category=expression, ...).")
            where = " ".join(inspect.cleandoc(function.__doc__).split())
            own = {
                keyword.arg: self._part(
                    keyword.arg, keyword.value, name, symbol, when, function, facts
                )
                for keyword in expression.keywords
            }
            parts = {
                category: quantity
                for category in LETTERS
                if (quantity := own.get(category, self.usual.get(category)))
            }
            alone = len(parts) == 1 and not total and not when  # is its own sum
            all_of_it = [*parts.values()][0] if alone else total or f"live_at_{name}_bytes"
            if not alone:
                together = _sum([*([when] if when else []), *parts.values()], bool(when))
                together.parts = parts  # explains which category is which quantity
                self._add(
                    all_of_it,
                    together,
                    f"{self.letter}{symbol}",
                    f"bytes {where}",
                    function.__module__,
                    **facts,
                )
            made = Place(name, phase, all_of_it, MappingProxyType(parts), when)
            self.places.append(made)
            if largest:
                self.rivals.append(made)
            return function

        return register

    def _part(self, category, expression, name, symbol, when, function, facts):
        """The quantity of one category: the one that is named, or a formula of its own; "" where
        it is 0."""
        check_expression(expression, function)
        if isinstance(expression, ast.Constant) and expression.value == 0:
            return ""
        if alone := quantity_in(expression):
            return alone
        if when:
            switch = ast.Attribute(ast.Name("q", ast.Load()), when, ast.Load())
            expression = ast.BinOp(switch, ast.Mult(), expression)
        quantity = f"{category}_at_{name}_bytes"
        where, _, _ = " ".join(inspect.cleandoc(function.__doc__).split()).partition(":")
        self._add(
            quantity,
            _compiled(expression),
            f"{LETTERS[category]}{symbol}",
            f"{SAID.get(category, category)} {where}",
            function.__module__,
            **facts,
        )
        return quantity

    def largest(self, total="", which=""):
        """Register the largest of the places, which one it is, and its parts."""
        module = inspect.currentframe().f_back.f_globals["__name__"]
        total, which = total or f"{self.name}_bytes", which or f"{self.name}_place"
        totals = [place.total for place in self.rivals]
        numbered = ", ".join(f"{n} {place.name}" for n, place in enumerate(self.rivals, 1))
        made = self.letter + self.symbol
        self._add(total, _over(maximum, totals), made, f"bytes {self.meaning}", module)
        number = ("i" + self.symbol, f"place of that maximum: {numbered}", module, "count")
        self._add(which, _over(arg_max, totals), *number)
        for category, letter in LETTERS.items():
            parts = [place.parts.get(category, "") for place in self.rivals]
            there = self.there or self.meaning.partition(":")[0]
            if len(set(parts)) > 1:
                self._add(
                    f"{category}_at_{self.name}_bytes",
                    _chosen(which, parts),
                    letter + self.symbol,
                    f"{SAID.get(category, category)} {there}",
                    module,
                )

    def _add(self, name, function, symbol, meaning, module, unit="bytes", **facts):
        function.__name__, function.__module__ = name, module
        said = dict(source=self.source, measured_by=self.measured_by, least=0) | facts
        self.registry.add(name, function, symbol=symbol, unit=unit, meaning=meaning, **said)


def _over(function, names, text=""):
    """`function` of the quantities with these names, as a formula; `text` is how it is written."""
    names = list(dict.fromkeys(names))

    def formula(q):
        return function(*(getattr(q, name) for name in names))

    formula.written = text or f"{function.__name__}({', '.join(names)})"
    formula.needs = names
    return formula


def _sum(names, switched):
    """The sum of the quantities; with `switched`, the first times the sum of the others."""

    def together(*values):
        return values[0] * reduce(add, values[1:]) if switched else reduce(add, values)

    terms = " + ".join(dict.fromkeys(names[switched:]))
    return _over(together, names, f"{names[0]} * ({terms})" if switched else terms)


def _chosen(which, parts):
    """The part with the number `which`, 0 where it is ""."""
    names = [name for name in dict.fromkeys(parts) if name]

    def formula(place, *values):
        value = dict(zip(names, values))
        return choose(place, *(value.get(part, 0) for part in parts))

    chosen = f"choose({which}, {', '.join(part or '0' for part in parts)})"
    return _over(formula, [which, *names], chosen)


def _compiled(expression):
    """A formula of the quantities that the expression names."""
    arguments = ast.arguments([], [ast.arg("q")], None, [], [], None, [])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, expression)))
    formula = eval(compile(tree, "<place>", "eval"), dict(SUBSET))
    formula.written, formula.needs = as_text(expression), quantities_in(expression)
    return formula


def live(**parts):
    """The bytes at a place: category -> expression. Read, never called."""
    raise TypeError("live(...) says what a place holds; ask evaluate() for its quantities.")
