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
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from .registry import BOOK, Registry
from .subset import as_text, check_expression, formula_of, returned

LETTERS = dict(parameters="P", optimizer="O", gradients="G", activations="A", gathered="H")
LETTERS |= dict(temporaries="U", workspaces="K")

# How a meaning names a category, where its own name is not a noun.
SAID = {"optimizer": "optimizer states", "gathered": "gathered parameters"}


@dataclass(eq=False)
class Place:
    """One place: its name, its phase, the quantity of all its bytes, and category -> quantity, by
    what the place says of itself and the terms that techniques add."""

    name: str
    symbol: str
    phase: str
    total: str
    when: str  # a quantity that is 0 where there is no such place
    rival: bool  # whether it can be the largest
    words: str
    module: str
    origin: Mapping
    says: Mapping
    terms: list = field(default_factory=list)
    parts: Mapping = field(default_factory=dict)  # in the order in which they are stacked

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

    def place(self, name, *, symbol, phase="", total="", when="", largest=True, **origin):
        """Declare the place below. `largest=False`: it is shown, but never has the most. `origin`
        is a source or a test that this place alone has."""

        def declare(function):
            words = " ".join(inspect.cleandoc(function.__doc__).split())
            said = words, function.__module__, origin, _read(function)
            self.places.append(Place(name, symbol, phase, total, when, largest, *said))
            return function

        return declare

    def term(self, *names):
        """Add the bytes below at the places with these names: what a technique has there. A term
        may name what each of the places says of itself, as if it were a quantity."""

        def declare(function):
            there = {place.name: place for place in self.places}
            for name in names:
                there[name].terms.append(_read(function))
            return function

        return declare

    def _register(self, place):
        """The formulas of a place: those of its categories, and their sum."""
        bytes_of = place.bytes_of(self.usual)
        place.parts = parts = {
            category: quantity
            for category in LETTERS
            if (quantity := self._part(place, category, bytes_of.get(category, "0")))
        }
        if len(parts) == 1 and not place.total and not place.when:  # is its own sum
            (place.total,) = parts.values()
            return
        terms = " + ".join(dict.fromkeys(parts.values()))
        together = formula_of(f"{place.when} * ({terms})" if place.when else terms)
        together.parts = parts  # explains which category is which quantity
        place.total = place.total or f"live_at_{place.name}_bytes"
        symbol, meaning = self.letter + place.symbol, f"bytes {place.words}"
        self._add(place.total, together, symbol, meaning, place.module, **place.origin)

    def _part(self, place, category, text):
        """The quantity of one category: the one that is named, or a formula of its own; "" where
        it is 0."""
        if text == "0" or text.isidentifier():
            return text.removeprefix("0")
        if place.when:
            text = f"{place.when} * ({text})"
        quantity = f"{category}_at_{place.name}_bytes"
        where, _, _ = place.words.partition(":")
        self._add(
            quantity,
            formula_of(ast.unparse(ast.parse(text))),
            f"{LETTERS[category]}{place.symbol}",
            f"{SAID.get(category, category)} {where}",
            place.module,
            **place.origin,
        )
        return quantity

    def largest(self, which=""):
        """Register the places, the largest of them, which one it is, and its parts."""
        for place in self.places:
            self._register(place)
        rivals = [place for place in self.places if place.rival]
        module = inspect.currentframe().f_back.f_globals["__name__"]
        total, which = f"{self.name}_bytes", which or f"{self.name}_place"
        totals = ", ".join(dict.fromkeys(place.total for place in rivals))
        numbered = ", ".join(f"{n} {place.name}" for n, place in enumerate(rivals, 1))
        made = self.letter + self.symbol
        self._add(total, formula_of(f"maximum({totals})"), made, f"bytes {self.meaning}", module)
        number = ("i" + self.symbol, f"place of that maximum: {numbered}", module, "count")
        self._add(which, formula_of(f"arg_max({totals})"), *number)
        for category, letter in LETTERS.items():
            parts = [place.parts.get(category, "0") for place in rivals]
            there = self.there or self.meaning.partition(":")[0]
            if len(set(parts)) > 1:
                name, meaning = f"{category}_at_{self.name}_bytes", SAID.get(category, category)
                chosen = formula_of(f"choose({which}, {', '.join(parts)})")
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


def live(**parts):
    """The bytes at a place: category -> expression. Read, never called."""
