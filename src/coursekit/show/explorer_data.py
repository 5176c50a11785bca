"""Data for the script of an explorer: its specification as JSON, and its formulas as JavaScript."""

import json
import re
from types import MappingProxyType

from .spec import default_style


def functions_of(spec, smaller=str):
    """Calls of BOOK.define, one a line: the function behind the card, and for each picture of
    curves that of its lines. `smaller` makes code smaller."""
    from coursekit.formulas.render import javascript

    functions = {spec.name: javascript(spec.targets, spec.inputs)}
    for picture in spec.pictures:
        if picture.kind == "curves":
            functions[picture.model(spec)] = javascript(
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

    words = lambda pieces: [{k: v for k, v in vars(piece).items() if v} for piece in pieces]
    said = dict(
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
        links=[  # the kind as explorer.js names it
            dict(kind=type(one).__name__.lower().removeprefix("at"), **vars(one))
            for one in spec.links
        ],
        followers=[(name, *words[:2]) for name, words in spec.followers.items()],
        values=spec.start(),
        chosen=spec.chosen_at_start(),
        pictures=[dict(kind=one.kind, **one.data(spec, measured)) for one in spec.pictures],
        **({"card": [spec.card.capacity, spec.card.total]} if spec.card else {}),
        sentence=words(spec.sentence),
        detail=words(spec.detail),
    )
    return _styled(said)


def _styled(data):
    """The data with a style for every number in a text: {parameter_bytes} as
    {parameter_bytes:decimal bytes}."""
    if isinstance(data, str):
        return re.sub(r"\{(\w+)\}", lambda match: f"{{{match[1]}:{default_style(match[1])}}}", data)
    if isinstance(data, dict):
        return {name: _styled(value) for name, value in data.items()}
    return list(map(_styled, data)) if isinstance(data, (list, tuple)) else data


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


def _stops(stops):
    return dict(range=[stops[0], stops[-1]]) if isinstance(stops, range) else stops
