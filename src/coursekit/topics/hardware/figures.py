"""plotly figure of a machine: measured operations under its roof, beside the roofs of known ones.
Lines are what a formula says, discs what was measured.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import plotly.graph_objects as go

from coursekit.formulas import evaluate
from coursekit.show.figures import INK, LINE, axis, new_figure, write_words
from coursekit.show.format import format_as, format_number


class Roof(NamedTuple):
    """A machine: its rate of arithmetic, in FLOP/s, and its memory's bandwidth, in bytes/s."""

    name: str
    flops_per_second: float
    bytes_per_second: float


class Point(NamedTuple):
    """An operation that was measured: FLOP for each byte, and FLOP/s."""

    name: str
    intensity: float
    flops_per_second: float


def roofline_figure(
    title: str, roofs: Iterable[Roof], points: Iterable[Point] = (), height: int = 440
) -> go.Figure:
    """Roofs on logarithmic axes, the first in colour, and what was measured, under it or not.
    Raises ValueError without a roof."""
    roofs, points = list(roofs), list(points)
    if not roofs:
        raise ValueError("roofs = []: a roofline needs the roof of at least one machine.")
    ridges = [
        evaluate(
            ["ridge_intensity"],
            flops_per_second=roof.flops_per_second,
            memory_bytes_per_second=roof.bytes_per_second,
        )["ridge_intensity"]
        for roof in roofs
    ]
    intensities = [*ridges, *(point.intensity for point in points)]
    least, most = _decades(min(intensities) / 4, max(intensities) * 4)
    figure = new_figure(title, height)
    rates = [point.flops_per_second for point in points]
    # the first is drawn last, above the others
    for number, (roof, ridge) in reversed(list(enumerate(zip(roofs, ridges)))):
        places = [least, min(max(ridge, least), most), most]
        heights = [
            evaluate(
                ["attainable_flops_per_second"],
                arithmetic_intensity=place,
                flops_per_second=roof.flops_per_second,
                memory_bytes_per_second=roof.bytes_per_second,
            )["attainable_flops_per_second"]
            for place in places
        ]
        rates += heights
        words = (
            f"{format_as(roof.flops_per_second, 'rate')},"
            f" {format_as(roof.bytes_per_second, 'bandwidth')}, ridge {format_number(ridge)}"
        )
        figure.add_trace(
            go.Scatter(
                x=places,
                y=heights,
                mode="lines",
                name=roof.name,
                hovertemplate=f"{roof.name}: {words}<extra></extra>",
                line=dict(color=LINE if number == 0 else INK, width=3 if number == 0 else 1.25),
            )
        )
        name = f"<b>{roof.name}</b>" if number == 0 else roof.name
        place = dict(x=math.log10(most), y=math.log10(heights[-1]), xanchor="right")
        write_words(figure, name, yshift=1, font=dict(size=12), **place)
    low, high = _decades(min(rates), max(rates) * 2)
    ends = ((math.log10(least), math.log10(most)), (math.log10(low), math.log10(high)))
    for point, place in zip(points, places_of_names(points, roofs, *ends)):
        figure.add_trace(
            go.Scatter(
                x=[point.intensity],
                y=[point.flops_per_second],
                mode="markers+text" if place else "markers",
                name=point.name,
                text=[point.name],
                textposition=place or None,
                textfont=dict(size=11),
                marker=dict(size=9, color=LINE),
                hovertemplate=(
                    f"{point.name}: {format_number(point.intensity)} FLOP/byte, "
                    f"{format_as(point.flops_per_second, 'rate')}<extra></extra>"
                ),
            )
        )
    name = dict(font=dict(size=13), standoff=8)
    figure.update_xaxes(
        _log_axis(least, most, format_number), title=dict(text="operations per byte", **name)
    )
    figure.update_yaxes(_log_axis(low, high, lambda rate: format_as(rate, "rate")))
    figure.update_layout(margin_b=56)
    return figure


# Of a name beside its point: where it may be, right and up, the first that is free.
_SIDES = {
    "bottom right": (1, -1),
    "top left": (-1, 1),
    "top right": (1, 1),
    "bottom left": (-1, -1),
}
_PHONE = (270, 300)  # pixels of the plot on a phone
_LETTER, _ROW, _AWAY = 5.8, 15, 6  # pixels of a letter, of a row, from the point
_NEAR = 11  # pixels from a point in which a name would seem to be that point's


def places_of_names(
    points: Iterable[Point],
    roofs: Iterable[Roof],
    width: tuple[float, float],
    height: tuple[float, float],
) -> list[str]:
    """Where each point's name is free of the other points and names and of the roofs on a phone, as
    plotly says it; "" where there is no such place. `width` and `height` are the ends of the axes,
    as powers of ten."""
    points, roofs = list(points), list(roofs)

    def across(intensity):
        return _PHONE[0] * (math.log10(intensity) - width[0]) / (width[1] - width[0])

    def upwards(rate):
        return _PHONE[1] * (math.log10(rate) - height[0]) / (height[1] - height[0])

    def level(roof, x):
        intensity = 10 ** (width[0] + (width[1] - width[0]) * x / _PHONE[0])
        return upwards(min(roof.flops_per_second, intensity * roof.bytes_per_second))

    marks = [(across(point.intensity), upwards(point.flops_per_second)) for point in points]
    taken, found = [], []
    for roof in roofs:  # its name ends above its right end
        y = upwards(roof.flops_per_second)
        taken.append((_PHONE[0] - 7 * len(roof.name), _PHONE[0], y, y + 20))
    for point, (x, y) in zip(points, marks):
        long = _LETTER * len(point.name)
        others = [  # but for those that are so near that no place is this point's alone
            (a - _NEAR, a + _NEAR, b - _NEAR, b + _NEAR)
            for a, b in marks
            if max(abs(a - x), abs(b - y)) > _NEAR
        ]
        for place, (right, up) in _SIDES.items():
            left = x + _AWAY if right > 0 else x - _AWAY - long
            low = y + _AWAY if up > 0 else y - _AWAY - _ROW
            box = (left, left + long, low, low + _ROW)
            lines = [(*box[:2], level(roof, box[0]), level(roof, box[1]) + 1) for roof in roofs]
            inside = left >= 0 and box[1] <= _PHONE[0]
            if inside and not any(_overlap(box, other) for other in (*taken, *others, *lines)):
                taken.append(box)
                found.append(place)
                break
        else:
            found.append("")
    return found


def _overlap(one, other):
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _decades(least, most):
    """The powers of ten around two values, at least one apart."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _log_axis(least, most, words):
    """A logarithmic axis with a named tick at each power of ten, or at every second or third where
    they are many."""
    low, high = round(math.log10(least)), round(math.log10(most))
    ticks = [10.0**power for power in range(low, high + 1, 1 + (high - low) // 9)]
    return axis(
        type="log",
        range=[low, high],
        tickvals=ticks,
        ticktext=[words(tick) for tick in ticks],
        showgrid=True,
        tickfont=dict(size=11),
    )
