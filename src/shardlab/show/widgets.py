"""Explorers in a notebook: the same specifications as on the pages (explorers.py), as ipywidgets
7.7 or 8.

    explorer("does-it-fit")                                # as it starts in the book
    explorer("does-it-fit", model="GPT-2 1.5B", gpu="T4")  # from other presets

    # beside a fresh measurement explorer("does-it-fit", measured=weighed, **config.quantities())

    # points beside a line
    points = [(intensity, flops_per_second), ...]
    explorer("roofline", measured={"attainable_flops_per_second": points})

The figure is a plain plotly figure drawn again in an Output: FigureWidget is unreliable on Colab.
"""

import math
from html import escape

import ipywidgets as widgets
from IPython.display import clear_output, display

from shardlab.formulas import InvalidQuantity

from .explorer_figures import explorer_figures, measurable
from .explorers import EXPLORERS
from .format import format_to_type, parse_number
from .spec import PRESETS, Choice

OWN = "own values"  # shown by a menu when the values are not those of a preset
LABEL_WIDTH, BOX_WIDTH, ERROR_LINE = (
    "17em",
    "10em",
    "border-left: 3px solid; padding-left: 0.5em; line-height: 1.4",
)


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
        _refuse_unknown(
            "measured",
            self.measured,
            [name for picture in spec.pictures for name in measurable(picture)],
        )
        kinds = [menu.kind for menu in spec.menus]
        _refuse_unknown("the start", start, [*kinds, *spec.inputs])
        self.chosen = {
            **spec.chosen_at_start(),
            **{kind: start[kind] for kind in kinds if kind in start},
        }
        values = spec.start()
        for kind in kinds:
            if kind in start:
                _refuse_unknown(kind, [start[kind]], PRESETS[kind])
                values = spec.choose(values, kind, start[kind])
        self.values = {
            **values,
            **{name: value for name, value in start.items() if name not in kinds},
        }
        self.shown = spec.compute(self.values)
        self._begin = (dict(self.values), dict(self.chosen))
        self._silent = False  # True while this class, not the reader, sets a control
        super().__init__(self._build())
        self._refresh()

    # --- what is on the screen --------------------------------------------------------------------

    def _build(self):
        self.menus, self.sliders, self.boxes, self.errors = {}, {}, {}, {}
        self.choices, rows = {}, {}
        for menu in self.spec.menus:
            chooser = widgets.Dropdown(
                options=[OWN, *menu.names],
                description=menu.label,
                layout=widgets.Layout(width="auto"),
            )
            chooser.observe(
                lambda change, kind=menu.kind: self._choose(kind, change["new"]), "value"
            )
            self.menus[menu.kind] = chooser
        for control in self.spec.controls:
            rows[control.quantity] = (
                self._build_choice(control)
                if isinstance(control, Choice)
                else self._build_control(control)
            )
        groups = [self._build_group(group, rows) for group in self.spec.groups]
        rows = [widget for row in rows.values() for widget in row] + groups
        self.drawing, self.words, self.status, self.python = (
            widgets.Output(),
            widgets.HTML(),
            widgets.HTML(),
            widgets.HTML(),
        )
        reset, code = (
            widgets.Button(description="Reset"),
            widgets.Button(description="Show as Python"),
        )
        reset.on_click(lambda _: self.reset())
        code.on_click(lambda _: self._toggle_python())
        wrapped = widgets.Layout(flex_flow="row wrap")
        return [
            widgets.HTML(f"<b>{escape(self.spec.title)}</b>"),
            widgets.HBox(list(self.menus.values()), layout=wrapped),
            *rows,
            self.drawing,
            self.words,
            self.status,
            widgets.HBox([reset, code], layout=wrapped),
            self.python,
        ]

    def _build_control(self, control):
        name = control.quantity
        slider = widgets.SelectionSlider(
            options=_options(control, self.values[name]),
            description=control.label,
            continuous_update=False,
            style={"description_width": LABEL_WIDTH},
            layout=widgets.Layout(flex="1 1 30em", width="auto", min_width="20em"),
        )
        box = widgets.Text(continuous_update=False, layout=widgets.Layout(width=BOX_WIDTH))
        error = widgets.HTML()
        slider.observe(lambda change: self._reader_moves(name, change["new"]), "value")
        box.observe(
            lambda change: self._reader_moves(name, parse_number(change["new"], control.style)),
            "value",
        )
        self.sliders[name], self.boxes[name], self.errors[name] = slider, box, error
        return (
            widgets.HBox(
                [slider, box], layout=widgets.Layout(flex_flow="row wrap", max_width="56em")
            ),
            error,
        )

    def _build_choice(self, control):
        name = control.quantity
        buttons = widgets.ToggleButtons(
            options=_options(control, self.values[name]),
            description=control.label,
            style={"description_width": LABEL_WIDTH, "button_width": "auto"},
            layout=widgets.Layout(width="auto"),
        )
        error = widgets.HTML()
        buttons.observe(lambda change: self._reader_moves(name, change["new"]), "value")
        self.choices[name], self.errors[name] = buttons, error
        return buttons, error

    def _build_group(self, group, rows):
        """The group's rows, taken out of all rows, under a title that folds them away."""
        inside = [widget for name in group.quantities for widget in rows.pop(name)]
        folding = widgets.Accordion(
            children=[widgets.VBox(inside)], selected_index=None if group.folded else 0
        )
        folding.set_title(0, group.title)
        return folding

    @property
    def sentence(self):
        """The picture in words, for the last valid values."""
        return self.spec.say(self.shown)

    @property
    def figures(self):
        """The plotly figures, for the last valid values."""
        return explorer_figures(self.spec, self.shown, self.measured)

    def call(self):
        """Python that computes the same."""
        return self.spec.call(self.values, self.chosen)

    def __repr__(self):
        return f"{self.spec.title} {self.sentence}"

    # --- what the reader does ---------------------------------------------------------------------

    def _reader_moves(self, name, value):
        if not self._silent and value != self.values[name]:
            self.values = self.spec.move(self.values, name, value, self.chosen)
            self._refresh(name)

    def _choose(self, kind, name):
        if not self._silent:
            if name != OWN:
                self.chosen[kind] = name
                self.values = self.spec.choose(self.values, kind, name)
            self._refresh()

    def reset(self):
        """Back to the start."""
        self.values, self.chosen = map(dict, self._begin)
        self._refresh()

    def _toggle_python(self):
        self.python.value = "" if self.python.value else f"<pre>{escape(self.call())}</pre>"

    # --- what follows -----------------------------------------------------------------------------

    def _refresh(self, changed=None):
        """Compute and show; if a rule is broken, say so beside the control and keep the last valid
        picture."""
        refused = None
        try:
            self.shown = self.spec.compute(self.values)
        except InvalidQuantity as error:
            refused = error
        self._silent = True
        try:
            self._show_controls(
                refused and self.spec.marks(refused.quantity, changed), str(refused)
            )
        finally:
            self._silent = False
        self.status.value = "<i>The picture shows the last valid values.</i>" if refused else ""
        if self.python.value:
            self.python.value = f"<pre>{escape(self.call())}</pre>"
        if not refused:
            self.words.value = (
                f"<p style='line-height: 1.4'><b>{escape(self.sentence)}</b><br>"
                f"{escape(self.spec.say_detail(self.shown))}</p>"
            )
            with self.drawing:
                clear_output(wait=True)
                display(*self.figures)

    def _show_controls(self, marked, message):
        for control in self.spec.controls:
            name, value = control.quantity, self.values[control.quantity]
            self.errors[name].value = (
                f"<p role='alert' style='{ERROR_LINE}'>{escape(message)}</p>"
                if name == marked
                else ""
            )
            # other text stays as it was typed
            if isinstance(value, (int, float)) and math.isfinite(value):
                slider, options = (
                    self.choices.get(name) or self.sliders[name],
                    _options(control, value),
                )
                if name in self.boxes:
                    self.boxes[name].value = format_to_type(value, control.style)
                if slider.options != options:
                    slider.options = options
                slider.value = value
        for kind, menu in self.menus.items():
            names = [self.chosen[kind], *PRESETS[kind]]
            menu.value = next(
                (name for name in names if self._holds(self.spec.preset(kind, name))), OWN
            )
            if menu.value != OWN:
                self.chosen[kind] = menu.value

    def _holds(self, preset):
        return all(self.values[name] == value for name, value in preset.items())


def _options(control, value):
    """The stops of a slider or the options of a choice, and among them the value that is shown,
    whatever it is."""
    words = (
        {option: text for option, text in control.options} if isinstance(control, Choice) else {}
    )
    return tuple(
        (words.get(stop) or format_to_type(stop, control.style), stop)
        for stop in sorted({*control.stops, value})
    )


def _refuse_unknown(what, given, known):
    for name in given:
        if name not in known:
            raise TypeError(f"{what}: {name!r} is unknown here; there are {', '.join(known)}.")
