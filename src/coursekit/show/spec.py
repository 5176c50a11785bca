"""The parts of an explorer, as data: the quantities that can be moved, the quantities that follow,
the pictures, the sentences. The explorers of the book are in explorers.py.

    values = explorer.start()                                # every input, from the presets it
    # starts with
    values = explorer.move(values, "gpus_per_copy", 2)       # with what follows from it
    explorer.say(explorer.compute(values))                   # "Each of the 2 GPUs holds 53.9 GB
    # (50.2 GiB) of model states; ..."
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from coursekit.formulas import BOOK, PRESETS, InvalidQuantity, evaluate
from coursekit.formulas.events import holds

from .format import STYLE_OF_UNIT, format_as
from .links import Divides, settle
from .pictures import MemoryBar, Picture

# --- what an explorer is made of ------------------------------------------------------------------


def spelled(name):
    """A quantity's name where no label stands for it."""
    return name.replace("_", " ")


@dataclass(frozen=True)
class Control:
    """A slider over `stops`, with a box beside it that takes any value. `style` is one of
    format.STYLES."""

    quantity: str
    label: str
    stops: Sequence  # ascending
    style: str = "exact"


@dataclass(frozen=True)
class Choice:
    """A few values to pick one from, as pairs (value, words), ascending: a switch where there are
    two."""

    quantity: str
    label: str
    options: tuple
    style: str = "exact"

    @property
    def stops(self):
        return tuple(value for value, _ in self.options)


@dataclass(frozen=True)
class ControlGroup:
    """Controls, by quantity, under a title that folds them away; `folded` says how it starts."""

    title: str
    quantities: tuple
    folded: bool = False


@dataclass(frozen=True)
class Menu:
    """Presets of one kind (a key of PRESETS: "model", "gpu" ...) to choose from; one choice sets
    several quantities."""

    kind: str
    label: str
    without: tuple = ()  # presets that set one of these quantities are not offered
    but: tuple = ()  # nor these, by name: an explorer's own stops would refuse them
    # Settings beside a choice's preset: name -> quantity -> value, the same quantities for all.
    beside: Mapping = field(default_factory=dict)

    @property
    def names(self):
        return tuple(
            name
            for name, preset in PRESETS[self.kind].items()
            if not set(self.without) & set(preset.quantities) and name not in self.but
        )

    @cached_property
    def family(self):
        """Every quantity that some preset of the kind sets, in the order of the presets."""
        return tuple(dict.fromkeys(n for p in PRESETS[self.kind].values() for n in p.quantities))


@dataclass(frozen=True)
class Say:
    """A piece of the sentence, with {quantity:style}. It is said when all of `when` holds and none
    of `unless`, which are pairs (quantity, value)."""

    text: str
    when: tuple = ()
    unless: tuple = ()

    @property
    def quantities(self):
        return (*PLACE.findall(self.text), *(name for name, _ in (*self.when, *self.unless)))

    def said(self, values):
        return fill_in(self.text, values) if holds(self, values) else ""


def fill_in(text, values):
    """The text with a number in each place of {quantity} or {quantity:style}."""
    return PLACEHOLDER.sub(
        lambda match: format_as(values[match[1]], match[2] or default_style(match[1])), text
    )


PLACEHOLDER = re.compile(r"\{(\w+)(?::([^}]+))?\}")
PLACE = re.compile(r"\{(\w+)")


@dataclass(frozen=True)
class ExplorerTable:
    """The table that replaces the picture in print and without JavaScript: one row for each preset
    of a kind, the other inputs as at the start. Columns are (head, quantity, style), and a fourth
    thing where some inputs have other values: pairs (quantity, value)."""

    caption: str
    kind: str
    columns: tuple


def default_style(name):
    """The default style of a quantity. Bytes are GB here, since they are compared with a card's
    GB."""
    if name in Picture.styles:
        return Picture.styles[name]
    return {**STYLE_OF_UNIT, "bytes": "decimal bytes", "bytes, any number": "decimal bytes"}.get(
        BOOK.find(name).unit, "count"
    )


def _without_unit(text, head):
    """The number alone if the head of the column names the unit."""
    number, _, unit = text.rpartition(" ")
    return number if number and head.endswith(f", {unit}") else text


@dataclass(frozen=True)
class Explorer:
    """One explorer. `begin` holds the presets (by kind) and the values (by quantity) it starts
    with; `outputs` are the quantities that "copy as Python" asks for."""

    name: str
    title: str
    menus: tuple
    controls: tuple
    begin: Mapping
    pictures: tuple
    sentence: tuple
    detail: tuple
    table: ExplorerTable
    outputs: tuple
    links: tuple = ()
    groups: tuple = ()  # without any, the controls stand under one another
    why: tuple = ()  # the formulas that "Why?" prints; without any, all
    # The sum at the beginning of "Why?", as pairs (quantity, words): first the total, then its
    # terms; without any, the bar that is the first picture.
    adds: tuple = ()
    # Parts of a rank of any layout: "nearest", buttons with the nearest layouts that fit, and
    # "ranks", the groups that share a tensor. Pages alone have them.
    parts: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "begin", MappingProxyType(self.begin))

    @cached_property
    def targets(self):
        """Every quantity that is shown somewhere, once."""
        parts = (*self.pictures, *self.sentence, *self.detail)
        shown = [name for part in parts for name in part.quantities]
        shown += [column[1] for column in self.table.columns] + [name for name, _ in self.adds]
        return [
            name for name in dict.fromkeys([*self.outputs, *shown]) if name not in Picture.styles
        ]

    @cached_property
    def card(self):
        """The first picture that has a card's capacity; None where none has."""
        bars = (picture for picture in self.pictures if isinstance(picture, MemoryBar))
        return next((bar for bar in bars if bar.capacity), None)

    @cached_property
    def inputs(self):
        """The quantities that have to be given, those with a control first."""
        moved = [control.quantity for control in self.controls]
        chosen = [  # a default that a preset of a menu replaces
            name
            for name in BOOK.resolve(self.targets, moved)[0]
            if BOOK.formulas[name].choice and any(name in menu.family for menu in self.menus)
        ]
        return list(dict.fromkeys([*moved, *BOOK.resolve(self.targets, [*moved, *chosen])[1]]))

    @cached_property
    def asked(self):
        """The inputs on which the outputs depend."""
        needed = BOOK.resolve(self.outputs, self.inputs)[1]
        return [name for name in self.inputs if name in needed]

    @cached_property
    def formulas(self):
        """Every formula behind the targets, in the order in which one needs the other."""
        return BOOK.resolve(self.targets, self.inputs)[0]

    @cached_property
    def explained(self):
        """The formulas that "Why?" prints, in that order; the others are on the formula sheets."""
        begins = [name for name, _ in self.sum]
        return [name for name in self.formulas if name in (*self.why, *begins) or not self.why]

    @cached_property
    def sum(self):
        """The sentence as a sum: pairs (quantity, words), first the total, then its terms."""
        bar = self.pictures[0]
        if self.adds:
            return self.adds
        return ((bar.total, "together"), *((part.quantity, part.label) for part in bar.parts))

    def preset(self, kind, name):
        """The quantities that a choice in a menu sets: the preset's quantities that are inputs, and
        inputs that follow from the preset alone (a model sets `parameters` if that is an input);
        and what the menu sets beside them."""
        menu = next(menu for menu in self.menus if menu.kind == kind)
        usual = BOOK.assumed(menu.family, ())
        given = {**usual, **PRESETS[menu.kind][name].quantities}
        follows = [
            own
            for own in self.inputs
            if own in BOOK.formulas
            and own not in given
            and set(BOOK.resolve([own])[1]) <= set(given)
        ]
        return {
            **{own: given[own] for own in self.inputs if own in given},
            **(evaluate(follows, **given) if follows else {}),
            **menu.beside.get(name, {}),
        }

    def chosen_at_start(self):
        """The preset of each menu: kind -> name."""
        return {menu.kind: self.begin[menu.kind] for menu in self.menus}

    def start(self):
        """Every input, as the explorer begins."""
        values = self.presets({})
        values.update({name: value for name, value in self.begin.items() if name not in PRESETS})
        values = {**BOOK.assumed(self.inputs, values), **values}
        return {name: values[name] for name in self.inputs}

    def choose(self, values, kind, name, chosen=None):
        """The inputs after a choice in a menu, with what follows. `chosen` has the last choice of
        each other menu."""
        preset = self.preset(kind, name)
        known = {**self.presets({**(chosen or {}), kind: name}), **preset}
        own = {quantity: of for quantity, of in preset.items() if quantity in self.inputs}
        return settle(self.links, {**values, **own}, own, known)

    def presets(self, chosen):
        """The quantities that the choices of all menus set."""
        chosen = {**self.chosen_at_start(), **chosen}.items()
        return {name: of for kind, one in chosen for name, of in self.preset(kind, one).items()}

    def move(self, values, quantity, value, chosen=None):
        """The inputs after one of them moved, with what follows. `chosen` has the last choice of
        each menu."""
        known = self.presets(chosen or {})
        return settle(self.links, {**values, quantity: value}, [quantity], known)

    def compute(self, values):
        """Every input and every quantity computed from them; raises InvalidQuantity with the
        sentence to show."""
        given = {name: values[name] for name in self.inputs}
        computed = evaluate([*self.inputs, *self.formulas], **given)
        return {**computed, **(self.card.of_card(computed) if self.card else {})}

    def sweep(self, curves):
        """(formulas, inputs) that the lines of a picture need, its swept quantity among the
        inputs."""
        return BOOK.resolve([line.quantity for line in curves.lines], [curves.sweep, *self.inputs])

    def say(self, computed):
        """The sentence for a result of compute(): the picture in words."""
        computed = self.with_derived(computed)
        return "".join(piece.said(computed) for piece in self.sentence)

    def say_detail(self, computed):
        """The rest of the picture in words."""
        computed = self.with_derived(computed)
        return "".join(piece.said(computed) for piece in self.detail)

    def with_derived(self, computed):
        """A result of compute(), and what a picture finds by playing."""
        found = dict(computed)
        for picture in self.pictures:
            found |= picture.derived(computed)
        return found

    @cached_property
    def followers(self):
        """Quantities that may follow another, with what says so: quantity -> (words, style, words
        of options). What has no control is named where it follows because it must divide."""
        found = {}
        for link in self.links:
            if isinstance(link, Divides):
                found |= {name: (spelled(name), "exact", {}) for name in link.quantities}
            if getattr(link, "words", ""):
                found[link.follower] = link.words, "exact", {}
        for control in self.controls:
            options = dict(getattr(control, "options", ()))
            found[control.quantity] = control.label, control.style, options
        links = dict.fromkeys(name for link in self.links for name in link.quantities)
        return {name: found[name] for name in links if name in found}

    def rows(self):
        """The table's rows: (preset's name, texts of the columns). A preset that is refused shows
        the reason in one cell."""
        start = self.start()
        menu = next(menu for menu in self.menus if menu.kind == self.table.kind)
        for name in menu.names:
            chosen, texts = self.choose(start, self.table.kind, name), []
            try:
                for head, quantity, style, *given in self.table.columns:
                    computed = self.compute({**chosen, **dict(*given)})
                    texts.append(_without_unit(format_as(computed[quantity], style), head))
                yield name, texts
            except InvalidQuantity as refused:
                yield name, [str(refused)]
