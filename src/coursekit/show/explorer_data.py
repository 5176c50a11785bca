"""Data for the script of an explorer: its specification as JSON, and its formulas as JavaScript."""

import json
import re
from itertools import product
from types import MappingProxyType

from coursekit.formulas.events import COMPUTE, LINK, Event, Repeat

from .palette import LINES
from .pictures import measurable
from .schedule_pictures import PLAYS, lists
from .spec import default_style


def functions_of(spec, smaller=str):
    """Calls of BOOK.define, one a line: the function behind the card, and for each picture of
    curves that of its lines. `smaller` makes code smaller."""
    from coursekit.formulas.render import javascript

    functions = {spec.name: javascript(spec.targets, spec.inputs)}
    for picture in spec.pictures:
        if picture.kind == "curves":
            functions[_model(spec, picture)] = javascript(
                list(dict.fromkeys(line.quantity for line in picture.lines)),
                spec.sweep(picture)[1],
            )
    return "\n".join(
        f"BOOK.define({json.dumps(name)}, function (given, exact, finite, invalid, ceilDiv,"
        f" floorDiv) {{ return {smaller(code)} }});"
        for name, code in functions.items()
    )


def data_of(spec, measured=MappingProxyType({})):
    """The specification as explorer.js reads it. Texts name quantities and styles; numbers are the
    presets', the stops' and what was `measured`, by the name of a quantity or a line."""

    def words(pieces):
        return [
            dict(
                text=_styled(piece.text),
                **{name: pairs for name in ("when", "unless") if (pairs := getattr(piece, name))},
            )
            for piece in pieces
        ]

    return dict(
        name=spec.name,
        inputs=spec.inputs,
        outputs=spec.outputs,
        asked=[spec.inputs.index(name) for name in spec.asked],
        controls=[
            dict(
                quantity=control.quantity,
                stops=_stops(control.stops),
                **({} if control.style == "exact" else {"style": control.style}),
            )
            for control in spec.controls
        ],
        menus=[
            dict(
                kind=menu.kind,
                **({"beside": list(next(iter(menu.beside.values())))} if menu.beside else {}),
                **_presets(spec, menu),
            )
            for menu in spec.menus
        ],
        links=[_link(found) for found in spec.links],
        followers=[(name, *words[:2]) for name, words in spec.followers.items()],
        values=spec.start(),
        chosen=spec.chosen_at_start(),
        pictures=[_picture(spec, drawn, measured) for drawn in spec.pictures],
        **({"card": [spec.card.capacity, spec.card.total]} if spec.card else {}),
        sentence=words(spec.sentence),
        detail=words(spec.detail),
    )


def _styled(text):
    """The text with a style for every number: {parameter_bytes} as {parameter_bytes:decimal
    bytes}."""
    return re.sub(r"\{(\w+)\}", lambda match: f"{{{match[1]}:{default_style(match[1])}}}", text)


def _presets(spec, menu):
    """A table: the quantities that a choice sets, and a row of values for each choice."""
    presets = {name: spec.preset(menu.kind, name) for name in menu.names}
    quantities = list(next(iter(presets.values())))
    assert all(list(preset) == quantities for preset in presets.values()), (
        f"{spec.name}: presets of {menu.kind} that set different quantities"
    )
    return dict(
        quantities=quantities,
        presets={name: list(preset.values()) for name, preset in presets.items()},
    )


def _model(spec, curves):
    """The name under which the page has the function that a picture's lines are drawn from."""
    return f"{spec.name}/{spec.pictures.index(curves)}"


def _picture(spec, drawn, measured):
    if drawn.kind == "curves":
        return dict(
            kind="curves",
            model=_model(spec, drawn),
            sweep=drawn.sweep,
            inputs=_moving(spec, drawn),
            stops=drawn.stops,
            corners=drawn.corners,
            point=drawn.point,
            words=_styled(drawn.words),
            above=drawn.above,
            marks=[[name, _styled(words)] for name, words in drawn.marks],
            note=drawn.note and [drawn.note[0], _styled(drawn.note[1])] or None,
            **{
                name: dict(
                    words=axis.words,
                    style=axis.style,
                    unit=axis.unit,
                    log=axis.scale == "log",
                    ticks=axis.ticks,
                )
                for name, axis in (("x", drawn.x), ("y", drawn.y))
            },
            lines=[
                dict(
                    quantity=line.quantity,
                    **({"given": dict(line.given)} if line.given else {}),
                    label=_styled(line.label),
                    when=line.when,
                    unless=line.unless,
                    colour=stroke.colour,
                    dash=" ".join(map(str, stroke.dash)) or "none",
                    mark=stroke.mark,
                    **({"measured": measured[line.name]} if line.name in measured else {}),
                )
                for line, stroke in zip(drawn.lines, LINES)
            ],
        )
    own = {name: value for name, value in vars(drawn).items() if name not in ("title", "kind")}
    if drawn.kind == "streams":
        own["step"] = _entries(drawn.step)
    if drawn.kind == "memory":
        own["parts"] = [_part(part) for part in drawn.parts]
    if drawn.kind == "schedule":
        return dict(
            kind="schedule",
            sizes=drawn.sizes,
            seconds=drawn.seconds,
            ideal=drawn.ideal,
            idle=drawn.idle,
            plays=PLAYS,
            lists={
                sizes: " ".join(map(packed_lists, ranks))
                for sizes, ranks in lists(drawn, _sizes(spec, drawn)).items()
            },
        )
    if drawn.kind == "timeline":
        parts = [part for column in drawn.columns for part in column.parts]
        kinds = list(dict.fromkeys((part.label, part.colour) for part in parts))
        return dict(
            kind="timeline",
            capacity=drawn.capacity,
            kinds=kinds,
            columns=[
                dict(
                    name=column.name,
                    phase=column.phase,
                    total=column.total,
                    when=column.when,
                    parts=[
                        [part.quantity, kinds.index((part.label, part.colour))]
                        for part in column.parts
                    ],
                )
                for column in drawn.columns
            ],
        )
    if beside := {name: measured[name] for name in measurable(drawn) if name in measured}:
        own["measured"] = beside
    return dict(kind=drawn.kind, **own)


def _sizes(spec, drawn):
    """Every choice of the sizes of a schedule that the card's menus and buttons offer."""
    schedules = {
        (preset[drawn.schedule], preset[drawn.stages_per_rank])
        for menu in spec.menus
        for preset in (spec.preset(menu.kind, name) for name in menu.names)
        if drawn.schedule in preset
    }
    start = spec.start()
    schedules.add((start[drawn.schedule], start[drawn.stages_per_rank]))
    stops = {control.quantity: control.stops for control in spec.controls}
    for (schedule, stages), ranks, microbatches in product(
        sorted(schedules), stops[drawn.ranks], stops[drawn.microbatches]
    ):
        yield schedule, ranks, microbatches, stages


def packed_lists(text):
    """Runs of a text as what is repeated and how often: "AAAAAbAbAbbb" is "A5bA2b3"."""
    runs = re.finditer(r"(\w{1,4}?)\1+|\w", text)
    return "".join(f"{run[1] or run[0]}{len(run[0]) // len(run[1] or run[0])}" for run in runs)


def _moving(spec, curves):
    """The inputs that move the lines of a picture: not the swept one, nor one that each line is
    given."""
    always = set.intersection(*(set(dict(line.given)) for line in curves.lines))
    return [name for name in spec.sweep(curves)[1] if name not in {curves.sweep, *always}]


def _entries(step):
    """Events as streams.js reads them: lists that begin with what they are and end with their
    conditions."""

    def entry(one):
        conditions = [one.when, one.unless]
        if isinstance(one, Event):
            stream = [COMPUTE, LINK].index(one.stream)
            return ["event", one.name, stream, one.seconds, one.after, *conditions]
        if isinstance(one, Repeat):
            return ["repeat", one.count, one.less, _entries(one.events), *conditions]
        return ["phase", one.name, _entries(one.events), *conditions]

    return [entry(one) for one in step]


def _part(part):
    return [part.quantity, part.label, part.colour]


def _link(found):
    """The link's kind, as explorer.js names it, and its fields."""
    return dict(kind=type(found).__name__.lower().removeprefix("at"), **vars(found))


def _stops(stops):
    return dict(range=[stops[0], stops[-1]]) if isinstance(stops, range) else stops
