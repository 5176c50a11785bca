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
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType

from .registry import BOOK, Registry
from .subset import (
    SUBSET,
    as_text,
    check_expression,
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
        """Category -> what the place says, or what is usual, and the terms."""
        bytes_of = dict(usual) | self.says
        facts = {name: bytes_of.pop(name) for name in self.says if name not in LETTERS}
        added = list(chain(*(term.items() for term in self.terms)))
        named = set(chain(*(re.findall(r"\w+", text) for _, text in added)))
        if spare := set(facts) - named:
            raise TypeError(f"place {self.name}: {min(spare)} is no category or name in a term.")
        for category, text in added:
            for name, said in facts.items():
                text = said if text == name else re.sub(rf"\b{name}\b", f"({said})", text)
            before = bytes_of.get(category, "0")
            bytes_of[category] = text if before == "0" else f"{before} + {text}"
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
            if (quantity := self._part(declared, category, bytes_of.get(category, "0")))
        }
        name, when = declared.name, declared.when
        alone = len(parts) == 1 and not declared.total and not when  # is its own sum
        total = [*parts.values()][0] if alone else declared.total or f"live_at_{name}_bytes"
        if not alone:
            terms = " + ".join(dict.fromkeys(parts.values()))
            together = _formula(f"{when} * ({terms})" if when else terms)
            together.parts = parts  # explains which category is which quantity
            symbol, meaning = self.letter + declared.symbol, f"bytes {declared.words}"
            module = declared.function.__module__
            self._add(total, together, symbol, meaning, module, **declared.origin)
        return Place(name, declared.phase, total, MappingProxyType(parts), when)

    def _part(self, declared, category, text):
        """The quantity of one category: the one that is named, or a formula of its own; "" where
        it is 0."""
        if text == "0" or text.isidentifier():
            return text.removeprefix("0")
        if declared.when:
            text = f"{declared.when} * ({text})"
        quantity = f"{category}_at_{declared.name}_bytes"
        where, _, _ = declared.words.partition(":")
        self._add(
            quantity,
            _formula(ast.unparse(ast.parse(text))),
            f"{LETTERS[category]}{declared.symbol}",
            f"{SAID.get(category, category)} {where}",
            declared.function.__module__,
            **declared.origin,
        )
        return quantity

    def largest(self, which=""):
        """Register the places, the largest of them, which one it is, and its parts."""
        for declared in self._declared.values():
            self.places.append(self._register(declared))
            if declared.rival:
                self.rivals.append(self.places[-1])
        module = inspect.currentframe().f_back.f_globals["__name__"]
        total, which = f"{self.name}_bytes", which or f"{self.name}_place"
        totals = ", ".join(dict.fromkeys(place.total for place in self.rivals))
        numbered = ", ".join(f"{n} {place.name}" for n, place in enumerate(self.rivals, 1))
        made = self.letter + self.symbol
        self._add(total, _formula(f"maximum({totals})"), made, f"bytes {self.meaning}", module)
        number = ("i" + self.symbol, f"place of that maximum: {numbered}", module, "count")
        self._add(which, _formula(f"arg_max({totals})"), *number)
        for category, letter in LETTERS.items():
            parts = [place.parts.get(category, "0") for place in self.rivals]
            there = self.there or self.meaning.partition(":")[0]
            if len(set(parts)) > 1:
                name, meaning = f"{category}_at_{self.name}_bytes", SAID.get(category, category)
                chosen = _formula(f"choose({which}, {', '.join(parts)})")
                self._add(name, chosen, letter + self.symbol, f"{meaning} {there}", module)

    def _add(self, name, function, symbol, meaning, module, unit="bytes", **facts):
        function.__name__, function.__module__ = name, module
        said = dict(source=self.source, measured_by=self.measured_by, least=0) | facts
        self.registry.add(name, function, symbol=symbol, unit=unit, meaning=meaning, **said)


def _read(function):
    """Category -> expression, as text, of a function that returns live(category=expression)."""
    call = returned(function)
    for keyword in call.keywords:
        check_expression(keyword.value, function)
    return {one.arg: as_text(one.value) for one in call.keywords}


def _formula(text):
    """A formula as it is written, but for `q.`."""
    names = [name for name in re.findall(r"\b[a-z_]\w*", text) if name not in SUBSET]
    of_q = lambda name: name[0] if name[0] in SUBSET else f"q.{name[0]}"
    code = re.sub(r"\b[a-z_]\w*", of_q, text)
    formula = eval(f"lambda q: {code}", dict(SUBSET))
    formula.written, formula.needs = text, list(dict.fromkeys(names))
    return formula


def live(**parts):
    """The bytes at a place: category -> expression. Read, never called."""
