"""The colours of the book, defined once: figures (plotly) and pages (CSS variables, written by
bookkit) read them here.

Fills of memory are from Okabe and Ito (2008), "Color Universal Design"; fills of time are other
colours, so that a colour means bytes or seconds, never both. Within a palette, fills can be told
apart with every kind of colour blindness. The line around a fill has a contrast of at least 3:1
against the light and against the dark page, so one figure works on either. A label always says the
same as the colour.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Swatch:
    """How one quantity is drawn.

    ``light`` and ``dark``: its fill on the light and on the dark page. ``line``: the outline, the
    same on both."""

    light: str
    dark: str
    line: str


@dataclass(frozen=True)
class Stroke:
    """How one of several lines is drawn: its colour, the same on both pages; its dashes in pixels
    (line, gap, ...; () is a solid line); and the mark at the value that is looked at, by plotly's
    name. Dashes and marks repeat the meaning of the colour."""

    colour: str
    dash: tuple
    mark: str


PAGE = Swatch(light="#fdfdfc", dark="#15181b", line="#757b84")

MEMORY = {
    "parameters": Swatch("#0072b2", "#0072b2", "#0072b2"),
    "gradients": Swatch("#d55e00", "#d55e00", "#c75800"),
    "optimizer": Swatch("#e69f00", "#e69f00", "#a97400"),
    "activations": Swatch("#009e73", "#009e73", "#008a64"),
    "gathered": Swatch("#56b4e9", "#56b4e9", "#2c86bd"),
    "temporaries": Swatch("#cc79a7", "#cc79a7", "#b45d8d"),
}

TIMELINE = {
    "forward": Swatch("#5145a8", "#6a5ec4", "#7a6fd0"),
    "backward": Swatch("#8f9a2c", "#8f9a2c", "#7f8a1c"),
    "weight_gradient": Swatch("#f3e55a", "#e3d634", "#8c8300"),
    "communication": Swatch("#ec4b72", "#ec4b72", "#d0447f"),
    "idle": Swatch("#fdfdfc", "#15181b", "#757b84"),
}

LINES = (
    Stroke("#0072b2", (), "circle"),
    Stroke("#c75800", (9, 4), "square"),
    Stroke("#008a64", (3, 4), "diamond"),
    Stroke("#b45d8d", (9, 4, 2, 4), "triangle-up"),
)


def palette_css():
    """The page, and two variables for each quantity: its fill and the line around it, in light and
    in dark."""

    def declarations(mode):
        yield f"  --page: {getattr(PAGE, mode)};\n  --line-strong: {PAGE.line};\n"
        for kind, palette in (("memory", MEMORY), ("timeline", TIMELINE)):
            for name, swatch in palette.items():
                variable = f"--{kind}-{name.replace('_', '-')}"
                yield f"  {variable}: {getattr(swatch, mode)};\n  {variable}-line: {swatch.line};\n"

    return (
        f":root {{\n{''.join(declarations('light'))}}}\n"
        f"html[data-theme=dark] {{\n{''.join(declarations('dark'))}}}\n"
    )
