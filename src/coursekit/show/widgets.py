"""Explorers in a notebook: the page's own, each a LiveOutput (embed.py).

explorer("does-it-fit")                                # as it starts in the book
explorer("does-it-fit", model="GPT-2 1.5B", gpu="T4")  # from other presets

# beside a fresh measurement
explorer("does-it-fit", measured=weighed, **config.quantities())

# points beside a line
points = [(intensity, flops_per_second), ...]
explorer("roofline", measured={"attainable_flops_per_second": points})
"""

import math
from dataclasses import replace
from itertools import chain

from .card import COPY, explorer_card, foot
from .embed import LiveOutput, embedded_explorer
from .explorers import EXPLORERS
from .format import format_to_type
from .spec import PRESETS, Choice


def explorer(name_or_spec, measured=None, **start):
    """An explorer to display: of EXPLORERS by name, or an Explorer of your own.

    `start` has the first values: presets (model="GPT-2 1.5B", recipe=..., gpu=...) and quantities
    (layers=3), which win. `measured` has measured values, quantity -> number, for the parts of the
    picture: they are drawn filled, with the formula's value as an outline around them. For a line,
    quantity -> pairs (value of the swept quantity, measured value).

    Raises TypeError for an unknown name, InvalidQuantity for a start that breaks a rule, ValueError
    for a measurement that is not finite or has no place on its axis.
    """
    if isinstance(name_or_spec, str):
        if name_or_spec not in EXPLORERS:
            raise TypeError(
                f"no explorer is named {name_or_spec!r}; there are {', '.join(sorted(EXPLORERS))}."
            )
        name_or_spec = EXPLORERS[name_or_spec]
    return ExplorerOutput(name_or_spec, measured or {}, start)


class ExplorerOutput(LiveOutput):
    """An explorer in a cell. `spec` begins with the values that were asked for, and `shown` is all
    that follows from them."""

    def __init__(self, spec, measured, start):
        super().__init__(spec.name, spec.title)
        known = [name for picture in spec.pictures for name in picture.measurable]
        _refuse_unknown("measured", measured, known)
        kinds = [menu.kind for menu in spec.menus]
        _refuse_unknown("the start", start, [*kinds, *spec.inputs])
        _refuse_without_a_place(spec, measured)
        chosen, values = spec.chosen_at_start(), spec.start()
        for kind in filter(start.__contains__, kinds):
            chosen[kind] = start.pop(kind)
            _refuse_unknown(kind, [chosen[kind]], PRESETS[kind])
            values = spec.choose(values, kind, chosen[kind], chosen)
        begin = values | start
        controls = tuple(_with_option(control, begin) for control in spec.controls)
        # parts are planners of a page
        self.spec = replace(spec, begin=begin | chosen, controls=controls, parts=())
        self.measured = measured
        self.shown = self.spec.compute(begin)

    @property
    def sentence(self):
        """The picture in words."""
        return self.spec.say(self.shown)

    def code(self):
        card = explorer_card(self.spec, foot(after=COPY), measured=self.measured)
        return embedded_explorer(self.spec, card)


def _with_option(control, begin):
    """The control; a choice also offers the value with which it begins."""
    value = begin[control.quantity]
    if not isinstance(control, Choice) or value in control.stops:
        return control
    own = value, format_to_type(value, control.style)
    return replace(control, options=tuple(sorted([*control.options, own])))


def _refuse_unknown(what, given, known):
    for name in given:
        if name not in known:
            raise TypeError(f"{what}: {name!r} is unknown here; there are {', '.join(known)}.")


def _refuse_without_a_place(spec, measured):
    for name, found in measured.items():
        for value in chain(*found) if hasattr(found, "__iter__") else [found]:
            if not math.isfinite(value):
                raise ValueError(f"measured[{name!r}] = {value}: a measurement is a finite number.")
    for curves in spec.pictures:
        for line in getattr(curves, "lines", ()):
            for x, y in measured.get(line.name, ()):
                if (x <= 0 and curves.x.log) or (y <= 0 and curves.y.log):
                    raise ValueError(
                        f"{line.name} was measured as {y} at {curves.sweep} = {x}: a logarithmic"
                        " axis has only places above 0."
                    )
