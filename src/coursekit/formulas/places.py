"""Places of a computation at which bytes are counted, as data; totals, the largest, where it is and
what it is made of are one sum and one maximum for all.

    LAYER = Places("layer_work", r"_\\ell", "in one layer", source="...", measured_by="tests/...")

    @LAYER.place("norm", symbol=r"_\\text{norm}")
    def norm(q):
        \"\"\"in the norm\"\"\"
        return live(activations=q.norm_activation_bytes, temporaries=q.norm_backward_bytes)

    @LAYER.term("norm")
    def copies_of_autocast(q):
        \"\"\"the weight in 16 bits\"\"\"
        return live(temporaries=q.norm_copy_bytes)

    LAYER.largest()

A place is a function that returns `live(category=expression, ...)`; a term is one, too, which a
technique adds at the places that it names. What a place says beside categories, such as `unit=`,
terms may name: `q.unit` is then that of the place. A place has

    activations_at_norm_bytes       one formula for each category, unless it is one quantity's name
    live_at_norm_bytes              their sum

and `largest` registers them and, over all places,

    layer_work_bytes                the largest sum
    layer_work_place                which place has it, counted from 1
    activations_at_layer_work_bytes what each category has there
"""

import ast
import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
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

LETTERS = dict(parameters="P", optimizer="O", gradients="G", activations="A", gathered="H")
LETTERS |= dict(temporaries="U", workspaces="K")

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


_ZERO = ast.Constant(0)


@dataclass
class _Declared:
    """A place before its formulas are made: what it says of itself, and the terms that techniques
    add."""

    name: str
    symbol: str
    phase: str
    total: str
    when: str
    rival: bool
    words: str
    function: Callable
    origin: Mapping
    says: dict = field(default_factory=dict)
    terms: list = field(default_factory=list)

    def bytes_of(self, usual):
        """Category -> expression: what the place says, or what is usual, and the terms."""
        bytes_of = {category: _quantity(name) for category, name in usual.items()} | self.says
        facts = {name: bytes_of.pop(name) for name in self.says if name not in LETTERS}
        named = set().union(*map(quantities_in, chain(*(term.values() for term in self.terms))))
        if spare := set(facts) - named:
            raise TypeError(f"place {self.name}: {min(spare)} is no category or name in a term.")
        for category, expression in chain(*(term.items() for term in self.terms)):
            before = bytes_of.get(category, _ZERO)
            added = _summands(_Fill(facts).visit(deepcopy(expression)))
            summands = added if before is _ZERO else [before, *added]
            bytes_of[category] = reduce(lambda a, b: ast.BinOp(a, ast.Add(), b), summands)
        return bytes_of


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
    _declared: dict = field(default_factory=dict, init=False)

    def place(self, name, *, symbol, phase="", total="", when="", largest=True, **origin):
        """Declare the place below. `largest=False`: it is shown, but never has the most. `origin`
        is a source or a test that this place alone has."""

        def declare(function):
            words = " ".join(inspect.cleandoc(function.__doc__).split())
            facts = dict(name=name, symbol=symbol, phase=phase, total=total, when=when)
            self._declared[name] = _Declared(
                **facts, rival=largest, words=words, function=function, origin=origin
            )
            self._declared[name].says.update(_read(function))
            return function

        return declare

    def term(self, *names):
        """Add the bytes below at the places with these names: what a technique has there. A term
        may name what each of the places says of itself, as if it were a quantity."""

        def declare(function):
            for name in names:
                self._declared[name].terms.append(_read(function))
            return function

        return declare

    def _register(self, declared):
        """The formulas of a place: those of its categories, and their sum."""
        bytes_of = declared.bytes_of(self.usual)
        parts = {
            category: quantity
            for category in LETTERS
            if (quantity := self._part(declared, category, bytes_of.get(category, _ZERO)))
        }
        name, when = declared.name, declared.when
        alone = len(parts) == 1 and not declared.total and not when  # is its own sum
        total = [*parts.values()][0] if alone else declared.total or f"live_at_{name}_bytes"
        if not alone:
            together = _sum([*([when] if when else []), *parts.values()], bool(when))
            together.parts = parts  # explains which category is which quantity
            symbol, meaning = self.letter + declared.symbol, f"bytes {declared.words}"
            module = declared.function.__module__
            self._add(total, together, symbol, meaning, module, **declared.origin)
        return Place(name, declared.phase, total, MappingProxyType(parts), when)

    def _part(self, declared, category, expression):
        """The quantity of one category: the one that is named, or a formula of its own; "" where
        it is 0."""
        if expression is _ZERO:
            return ""
        if alone := quantity_in(expression):
            return alone
        if declared.when:
            expression = ast.BinOp(_quantity(declared.when), ast.Mult(), expression)
        quantity = f"{category}_at_{declared.name}_bytes"
        where, _, _ = declared.words.partition(":")
        self._add(
            quantity,
            _compiled(expression),
            f"{LETTERS[category]}{declared.symbol}",
            f"{SAID.get(category, category)} {where}",
            declared.function.__module__,
            **declared.origin,
        )
        return quantity

    def largest(self, total="", which=""):
        """Register the places, the largest of them, which one it is, and its parts."""
        for declared in self._declared.values():
            self.places.append(self._register(declared))
            if declared.rival:
                self.rivals.append(self.places[-1])
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
                name, meaning = f"{category}_at_{self.name}_bytes", SAID.get(category, category)
                chosen = _chosen(which, parts)
                self._add(name, chosen, letter + self.symbol, f"{meaning} {there}", module)

    def _add(self, name, function, symbol, meaning, module, unit="bytes", **facts):
        function.__name__, function.__module__ = name, module
        said = dict(source=self.source, measured_by=self.measured_by, least=0) | facts
        self.registry.add(name, function, symbol=symbol, unit=unit, meaning=meaning, **said)


def _quantity(name):
    return ast.Attribute(ast.Name("q", ast.Load()), name, ast.Load())


def _read(function):
    """Category -> expression of a function that returns live(category=expression, ...)."""
    call = returned(function)
    for keyword in call.keywords:
        check_expression(keyword.value, function)
    zero = lambda node: isinstance(node, ast.Constant) and node.value == 0
    return {one.arg: _ZERO if zero(one.value) else one.value for one in call.keywords}


def _summands(expression):
    """The expressions that are added up, left to right."""
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        return [*_summands(expression.left), *_summands(expression.right)]
    return [expression]


class _Fill(ast.NodeTransformer):
    """Puts what a place says of itself where a term names it."""

    def __init__(self, facts):
        self.facts = facts

    def visit_Attribute(self, node):
        return self.facts.get(quantity_in(node), node)


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
