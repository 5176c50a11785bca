"""A reader of an explorer, in Python: what static/explorer.js does with the specification. The page
is compared with it."""

import re

from coursekit.formulas import InvalidQuantity, evaluate
from coursekit.formulas.registry import show
from coursekit.show.format import format_as, format_to_type
from coursekit.show.spec import spelled

# In a refusal: a name, and a limit of a range.
NAMED = re.compile(r"\b(?:\w+(?= = )|[a-z]+(?:_[a-z]+)+)", re.ASCII)
LIMIT = re.compile(r"(at least |above |at most )([\d,]+)")


class Hand:
    """A reader's hand on an explorer: `values` and `chosen` as it left them. Moves of one control
    after another count as one, from the values before the first of them, so that the controls that
    followed come back with it."""

    def __init__(self, spec, values, chosen):
        self.spec, self.values, self.chosen = spec, dict(values), dict(chosen)
        self._on, self._before, self._moved = None, self.values, ()

    def move(self, quantity, value):
        """Move a control."""
        self._lay(quantity, (quantity,))
        self.values = self.spec.move(self._before, quantity, value, self.chosen)

    def choose(self, kind, name):
        """Choose from a menu."""
        self._lay(kind, self.spec.preset(kind, name))
        self.chosen[kind] = name
        self.values = self.spec.choose(self._before, kind, name, self.chosen)

    def _lay(self, on, moved):
        if on != self._on:
            self._on, self._before = on, self.values
        self._moved = moved

    @property
    def along(self):
        """The controls that followed, as the end of the sentence."""
        return say_along(self.spec, self._before, self.values, self._moved)


def say_along(spec, before, after, moved):
    """The end of the sentence, which says what followed those that `moved`."""
    said = ", ".join(
        f"{words} to {options.get(after[name]) or format_to_type(after[name], style)}"
        for name, (words, style, options) in spec.followers.items()
        if name not in moved and after[name] != before[name]
    )
    return said and f" Moved along: {said}."


def refusal(spec, refused, values):
    """The sentence of an InvalidQuantity in a reader's words: names are those of the controls,
    values stand as in the boxes."""
    text, styles = str(refused), {control.quantity: control.style for control in spec.controls}
    for name, style in styles.items():
        if isinstance(values[name], (int, float)):
            typed = format_to_type(values[name], style)
            said = rf"\b{name} = {re.escape(show(values[name]))}"
            text = re.sub(said, f"{name} = {typed}", text)
    style, must = styles.get(refused.quantity, "exact"), f"{refused.quantity} must be "
    if must in text:
        limit = lambda found: found[1] + format_as(int(found[2].replace(",", "")), style)
        text = LIMIT.sub(limit, text.replace(must, "it must be "))
    labels = {control.quantity: f"“{control.label}”" for control in spec.controls}
    return NAMED.sub(lambda name: labels.get(name[0]) or spelled(name[0]), text)


def marks(spec, quantity, changed=None):
    """The control to mark when `quantity` is refused: its own control, or the one that
    moved."""
    controls = [control.quantity for control in spec.controls]
    return next((name for name in (quantity, changed) if name in controls), controls[0])


def swept(spec, curves, computed):
    """The points of a picture's lines: value of the swept quantity -> line -> value, without
    refused ones."""
    corners = [computed[name] for name, _ in curves.marks] if curves.corners else []
    inside = [one for one in corners if curves.stops[0] < one < curves.stops[-1]]
    needed, found = {name: computed[name] for name in spec.sweep(curves)[1]}, {}
    for place in sorted([*curves.stops, *inside]):
        try:
            found[place] = {
                line.name: evaluate(
                    [line.quantity],
                    allow_unused=True,
                    **{**needed, **dict(line.given), curves.sweep: place},
                )[line.quantity]
                for line in curves.lines
            }
        except InvalidQuantity:
            continue
    return found
