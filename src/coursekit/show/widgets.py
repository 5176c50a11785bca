"""Explorers in a notebook: the same specifications as on the pages (explorers.py), as ipywidgets
7.7 or 8.

    explorer("does-it-fit")                                # as it starts in the book
    explorer("does-it-fit", model="GPT-2 1.5B", gpu="T4")  # from other presets

    # beside a fresh measurement explorer("does-it-fit", measured=weighed, **config.quantities())

    # points beside a line
    points = [(intensity, flops_per_second), ...]
    explorer("roofline", measured={"attainable_flops_per_second": points})

The pictures are SVG in an HTML widget, as in the stepper of the collectives: plotly in an Output
stays blank on Colab and can hang nbclient. A slider sends each place that the hand passes, as fast
as the kernel answers: a front end holds back what it has not sent until the kernel is idle.
"""

import math
from html import escape

import ipywidgets as widgets

from coursekit.formulas import InvalidQuantity

from .explorers import EXPLORERS
from .format import format_to_type, parse_number
from .links import AtLeast
from .spec import PRESETS, Choice, Hand
from .svg import drawings, measurable

OWN = "own values"  # shown by a menu when the values are not those of a preset
BOX_WIDTH = "9em"
NEVER_CUT = {"description_width": "initial"}
LONG_LABEL = 30  # characters; the box is under its slider, which would have no track else
# More pictures scroll within this height: a slider and each picture fit a window of 1280 x 800.
PICTURES_BESIDE, PICTURES_HEIGHT = 2, "40em"
ERROR_LINE = "border-left: 3px solid; padding-left: 0.5em; line-height: 1.4"
MOVED_BY_NAME = 2  # controls that the key of a measurement names
STALE = "opacity: 0.5; filter: grayscale(1)"  # a picture of the last valid values


def explorer(name_or_spec, measured=None, **start):
    """An explorer to display: of EXPLORERS by name, or an Explorer of your own.

    `start` has the first values: presets (model="GPT-2 1.5B", recipe=..., gpu=...) and quantities
    (layers=3), which win. `measured` has measured values, quantity -> number, for the parts of the
    picture: they are drawn filled, with the formula's value as an outline around them. For a line,
    quantity -> pairs (value of the swept quantity, measured value).

    Raises TypeError for an unknown name, InvalidQuantity for a start that breaks a rule.
    """
    if isinstance(name_or_spec, str):
        if name_or_spec not in EXPLORERS:
            raise TypeError(
                f"no explorer is named {name_or_spec!r}; there are {', '.join(sorted(EXPLORERS))}."
            )
        name_or_spec = EXPLORERS[name_or_spec]
    return ExplorerWidget(name_or_spec, measured or {}, start)


class ExplorerWidget(widgets.VBox):
    """Menus, one slider and one box for each control, buttons for a choice, the figures, the
    sentence. `values` are the inputs as the reader set them, valid or not; `shown` is everything
    computed from the last valid ones."""

    def __init__(self, spec, measured, start):
        self.spec, self.measured = spec, dict(measured)
        for name, value in self.measured.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"measured[{name!r}] = {value}: a measurement is a finite number.")
        known = [name for picture in spec.pictures for name in measurable(picture)]
        _refuse_unknown("measured", self.measured, known)
        kinds = [menu.kind for menu in spec.menus]
        _refuse_unknown("the start", start, [*kinds, *spec.inputs])
        presets = {kind: start.pop(kind) for kind in kinds if kind in start}
        chosen, values = spec.chosen_at_start() | presets, spec.start()
        for kind, name in presets.items():
            _refuse_unknown(kind, [name], PRESETS[kind])
            values = spec.choose(values, kind, name)
        values.update(start)
        self._begin = values, chosen
        self.hand, self.along = Hand(spec, *self._begin), ""
        self.shown = spec.compute(self.values)
        self._silent = False  # True while this class, not the reader, sets a control
        super().__init__(self._build())
        self._refresh()

    # --- what is on the screen --------------------------------------------------------------------

    def _build(self):
        self.menus, self.sliders, self.boxes, self.errors = {}, {}, {}, {}
        self.choices, rows = {}, {}
        for menu in self.spec.menus:
            layout = widgets.Layout(width="auto", max_width="100%")
            chooser = widgets.Dropdown(
                options=[OWN, *menu.names], description=menu.label, style=NEVER_CUT, layout=layout
            )
            choose = lambda change, kind=menu.kind: self._choose(kind, change["new"])
            chooser.observe(choose, "value")
            self.menus[menu.kind] = chooser
        for control in self.spec.controls:
            build = self._build_choice if isinstance(control, Choice) else self._build_control
            rows[control.quantity] = build(control)
        groups = [self._build_group(group, rows) for group in self.spec.groups]
        rows = [widget for row in rows.values() for widget in row] + groups
        self.drawing, self.words = widgets.HTML(), widgets.HTML()
        if len(self.spec.pictures) > PICTURES_BESIDE:
            self.drawing.layout = widgets.Layout(
                max_height=PICTURES_HEIGHT,
                overflow="hidden auto",
                border="1px solid #808080",  # where pictures are cut off, there are more of them
                padding="0 0.5em",
            )
        self.status, self.python = widgets.HTML(), widgets.HTML()
        says = "Reset", "Show as Python"
        reset, code = (widgets.Button(description=words) for words in says)
        reset.on_click(lambda _: self.reset())
        code.on_click(lambda _: self._toggle_python())
        beside = dict(flex="2 1 34em", min_width="0", padding="0 0 0 1em")
        left = widgets.VBox(rows, layout=widgets.Layout(flex="1 1 26em", min_width="0"))
        right = [self.drawing, self.words, self.status]
        right = widgets.VBox(right, layout=widgets.Layout(**beside))
        return [
            widgets.HTML(f"<b>{escape(self.spec.title)}</b>"),
            _row(*self.menus.values()),
            _row(left, right, align_items="flex-start"),
            _row(reset, code),
            self.python,
        ]

    def _build_control(self, control):
        name = control.quantity
        flex = "1 1 100%" if len(control.label) > LONG_LABEL else "1 1 16em"
        slider = widgets.SelectionSlider(
            options=_options(control, self.values[name]),
            description=control.label,
            continuous_update=True,
            readout=False,  # the box says it
            style=NEVER_CUT,
            layout=widgets.Layout(flex=flex, width="auto", min_width="16em"),
        )
        box = widgets.Text(continuous_update=False, layout=widgets.Layout(width=BOX_WIDTH))
        error = widgets.HTML()
        read = lambda change: parse_number(change["new"], control.style, change["old"])
        slider.observe(lambda change: self._reader_moves(name, change["new"]), "value")
        box.observe(lambda change: self._reader_moves(name, read(change)), "value")
        self.sliders[name], self.boxes[name], self.errors[name] = slider, box, error
        return _row(slider, box), error

    def _build_choice(self, control):
        name = control.quantity
        buttons = widgets.ToggleButtons(
            options=_options(control, self.values[name]),
            description=control.label,
            style={**NEVER_CUT, "button_width": "auto"},
            layout=widgets.Layout(width="auto"),
        )
        error = widgets.HTML()
        buttons.observe(lambda change: self._reader_moves(name, change["new"]), "value")
        self.choices[name], self.errors[name] = buttons, error
        return buttons, error

    def _build_group(self, group, rows):
        """The group's rows, taken out of all rows, under a title that folds them away."""
        inside = widgets.VBox([widget for name in group.quantities for widget in rows.pop(name)])
        folding = widgets.Accordion(children=[inside], selected_index=None if group.folded else 0)
        folding.set_title(0, group.title)
        return folding

    @property
    def values(self):
        return self.hand.values

    @property
    def chosen(self):
        return self.hand.chosen

    @property
    def sentence(self):
        """The picture in words, for the last valid values, and what followed the reader's hand."""
        return self.spec.say(self.shown) + self.along

    @property
    def pictures(self):
        """The pictures as SVG, for the last valid values."""
        words = f"{self.sentence} {self.spec.say_detail(self.shown)}"
        made = drawings(self.spec, self.shown, self.measured, self.measured_at)
        return [drawn.svg(words) for drawn in made]

    @property
    def measured_at(self):
        """At which values the measurement was made, where a hand has moved them since: a measured
        point stays where it is. Points along a curve have their own value of what is swept."""
        begin, _ = self._begin
        swept = {getattr(picture, "sweep", None) for picture in self.spec.pictures}
        moved = [
            f"{control.label} {format_to_type(begin[control.quantity], control.style)}"
            for control in self.spec.controls
            if not isinstance(control, Choice)
            and control.quantity not in swept
            and self.values[control.quantity] != begin[control.quantity]
        ]
        if len(moved) > MOVED_BY_NAME:
            return " where the explorer began"
        return f" with {' and '.join(moved)}" if moved else ""

    def call(self):
        """Python that computes the same."""
        return self.spec.call(self.values, self.chosen)

    def __repr__(self):
        return f"{self.spec.title} {self.sentence}"

    # --- what the reader does ---------------------------------------------------------------------

    def _reader_moves(self, name, value):
        if not self._silent and value != self.values[name]:
            self.hand.move(name, value)
            self._refresh(name)

    def _choose(self, kind, name):
        if not self._silent:
            if name != OWN:
                self.hand.choose(kind, name)
            self._refresh()

    def reset(self):
        """Back to the start."""
        self.hand = Hand(self.spec, *self._begin)
        self._refresh()

    def _toggle_python(self):
        self.python.value = "" if self.python.value else f"<pre>{escape(self.call())}</pre>"

    # --- what follows -----------------------------------------------------------------------------

    def _refresh(self, changed=None):
        """Compute and show; if a rule is broken, say so beside the control and keep the last valid
        picture."""
        refused = None
        try:
            self.shown, self.along = self.spec.compute(self.values), self.hand.along
        except InvalidQuantity as error:
            refused = error
        self._silent = True
        try:
            marked = refused and self.spec.marks(refused.quantity, changed)
            message = refused and self.spec.refusal(refused, self.values)
            self._show_controls(marked, message, changed)
        finally:
            self._silent = False
        self._stale(bool(refused))
        if self.python.value:
            self.python.value = f"<pre>{escape(self.call())}</pre>"
        if not refused:
            self.words.value = (
                f"<p style='line-height: 1.4'><b>{escape(self.sentence)}</b><br>"
                f"{escape(self.spec.say_detail(self.shown))}</p>"
            )
            self.drawing.value = "".join(
                "<figure style='margin: 0 0 1em'><figcaption style='line-height: 1.6'>"
                f"{escape(picture.title)}</figcaption>{drawn}</figure>"
                for picture, drawn in zip(self.spec.pictures, self.pictures)
            )

    def _stale(self, refused):
        """Grey out a picture of values that are no longer in the boxes, or no longer."""
        self.status.value = "<i>The picture shows the last valid values.</i>" if refused else ""
        grey, drawn = f"<div style='{STALE}'>", self.drawing.value
        if refused and not drawn.startswith(grey):
            self.drawing.value = f"{grey}{drawn}</div>"

    def _show_controls(self, marked, message, changed):
        for control in self.spec.controls:
            name, value = control.quantity, self.values[control.quantity]
            said = f"<p role='alert' style='{ERROR_LINE}'>{escape(message or '')}</p>"
            self.errors[name].value = said if name == marked else ""
            # other text stays as it was typed
            if isinstance(value, (int, float)) and math.isfinite(value):
                slider = self.choices.get(name) or self.sliders[name]
                options = _options(control, value)
                if name in self.boxes:
                    self.boxes[name].value = format_to_type(value, control.style)
                # While a hand moves it, a slider keeps its stops: else they slip from under it.
                moved = name == changed and name in self.sliders
                if slider.options != options and not (
                    moved and value in [stop for _, stop in slider.options]
                ):
                    slider.options = options
                slider.value = value
        for menu in self.spec.menus:
            kind, shown = menu.kind, self.menus[menu.kind]
            names = [self.chosen[kind], *menu.names]
            held = (name for name in names if self._holds(menu, name))
            shown.value = next(held, OWN)
            if shown.value != OWN:
                self.chosen[kind] = shown.value

    def _holds(self, menu, chosen):
        """A table of positions that grew with the sequence leaves its preset in force."""
        links = [link for link in self.spec.links if isinstance(link, AtLeast)]
        grown = {link.follower: link.leader for link in links}
        return all(
            self.values[name] == value
            or (name in grown and self.values[name] == self.values[grown[name]] > value)
            for name, value in self.spec.in_preset(menu, chosen).items()
            if name not in menu.beside.get(chosen, {})
        )


def _options(control, value):
    """The stops of a slider or the options of a choice, and among them the value that is shown,
    whatever it is."""
    words = dict(getattr(control, "options", ()))
    return tuple(
        (words.get(stop) or format_to_type(stop, control.style), stop)
        for stop in sorted({*control.stops, value})
    )


def _row(*inside, **layout):
    """Widgets beside one another, below where there is no room."""
    return widgets.HBox(list(inside), layout=widgets.Layout(flex_flow="row wrap", **layout))


def _refuse_unknown(what, given, known):
    for name in given:
        if name not in known:
            raise TypeError(f"{what}: {name!r} is unknown here; there are {', '.join(known)}.")
