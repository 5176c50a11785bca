"""The plotly figures: what is drawn is what was measured, and the words say it too."""

import json
import math
import re
from dataclasses import replace

import pytest

from shardlab.show.curve_figures import curves_figure
from shardlab.show.explorer_figures import explorer_figures
from shardlab.show.explorers import EXPLORERS
from shardlab.show.figures import (
    Bytes,
    columns_figure,
    duration_figure,
    loss_figure,
    memory_figure,
    round_up,
    states_figure,
)
from shardlab.show.palette import MEMORY

STATES = dict(
    parameter_bytes=2_448_896,
    gradient_bytes=2_448_896,
    optimizer_bytes=4_897_792,
    step_counter_bytes=160,
)
CLEAR = "rgba(0,0,0,0)"
TICKS = (("hour", 3600), ("day", 86_400), ("year", 31_536_000))


def bars(figure, name):
    """(start, end) of each bar of that name, in the axis' unit."""
    return [(bar.base[0], bar.base[0] + bar.x[0]) for bar in figure.data if bar.name == name]


def words(figure):
    """All text of a figure."""
    layout = figure.layout
    ticks = [text for axis in (layout.xaxis, layout.yaxis) for text in axis.ticktext or ()]
    return " | ".join(
        [
            layout.title.text,
            *ticks,
            *(note.text for note in layout.annotations),
            *(text for trace in figure.data for text in getattr(trace, "text", None) or ()),
        ]
    )


# ---------------------------------------------------------------- bytes


def test_every_bar_starts_where_the_one_above_ended():
    """Mutations: all bars from zero; the sum drawn from where the last part ended; bytes divided by
    10^6 under "MiB"."""
    figure = states_figure(STATES, STATES)
    ends = [0.0]
    for name in ("parameters", "gradients", "optimizer states", "step counters"):
        (predicted,), (measured,) = (
            bars(figure, f"{name}, predicted"),
            bars(figure, f"{name}, measured"),
        )
        assert predicted == measured and predicted[0] == pytest.approx(ends[-1])
        ends.append(predicted[1])
    assert bars(figure, "together, measured") == [(0, pytest.approx(ends[-1]))]
    assert (
        ends[-1] == pytest.approx(sum(STATES.values()) / 2**20)
        and figure.layout.xaxis.ticksuffix == " MiB"
    )


def test_bytes_start_at_zero():
    """Mutation: the range left to plotly, which starts at the smallest bar."""
    assert states_figure(STATES, STATES).layout.xaxis.range[0] == 0


def test_predicted_is_an_outline_and_measured_a_fill():
    """Mutations: the two exchanged; the measured bar as wide as the predicted one, which hides the
    outline."""
    figure = states_figure(STATES, STATES)
    (outline,) = [bar for bar in figure.data if bar.name == "gradients, predicted"]
    (fill,) = [bar for bar in figure.data if bar.name == "gradients, measured"]
    assert outline.marker.color == CLEAR and outline.marker.line.color == MEMORY["gradients"].line
    assert fill.marker.color == MEMORY["gradients"].light and fill.width[0] < outline.width[0]
    assert "outline: predicted, fill: measured" in words(figure)


def test_a_difference_is_drawn_and_said():
    """Mutations: the measured bar drawn with the predicted size; the words taken from the
    prediction alone."""
    figure = states_figure(STATES, {**STATES, "gradient_bytes": 3_000_000})
    assert bars(figure, "gradients, measured")[0][1] > bars(figure, "gradients, predicted")[0][1]
    assert "gradients<br>2.86 MiB, predicted 2.34 MiB" in words(figure)
    assert "parameters<br>2.34 MiB |" in words(figure)


@pytest.mark.parametrize(
    ("predicted", "measured", "sentence"),
    [
        (
            {**STATES, "activation_bytes": 1},
            STATES,
            "'activation_bytes' is no part of the model states; there are parameter_",
        ),
        (
            {"parameter_bytes": 1},
            STATES,
            "predicted has parameter_bytes, measured has parameter_bytes, gradient_bytes",
        ),
    ],
)
def test_unequal_parts_are_refused(predicted, measured, sentence):
    """Mutation: parts without a partner dropped, so that forgotten bytes look like agreement."""
    with pytest.raises(TypeError, match=re.escape(sentence)):
        states_figure(predicted, measured)


def test_beyond_the_capacity_a_bar_is_hatched():
    """Mutations: the bar not split at the capacity; the hatch on the wrong piece; "free" said of
    what is too much."""
    rows = [
        Bytes("parameters", "parameters", 60 * 10**9),
        Bytes("gradients", "gradients", 40 * 10**9),
    ]
    figure = memory_figure("States", rows, 80 * 10**9)
    assert bars(figure, "gradients, predicted") == [(60, 80), (80, 100)]
    hatched = [
        bool(bar.marker.pattern.shape) for bar in figure.data if bar.name == "gradients, predicted"
    ]
    assert hatched == [False, True]
    assert bars(figure, "parameters, predicted") == [(0, 60)]
    assert "80 GB card, 20 GB too much" in words(figure)
    assert figure.layout.shapes[0].x0 == 80 and len(figure.layout.shapes) == 1


def test_what_is_free_is_framed():
    """Mutation: the frame drawn from zero, as if all of the card were free."""
    figure = memory_figure("States", [Bytes("parameters", "parameters", 60 * 10**9)], 80 * 10**9)
    assert (figure.layout.shapes[1].x0, figure.layout.shapes[1].x1) == (60, 80)
    assert "80 GB card, 20 GB free" in words(figure)


def test_a_far_capacity_does_not_flatten_the_bars():
    """Mutation: the axis always up to the capacity; ten megabytes on 80 GB are less than a
    pixel."""
    figure = memory_figure("States", [Bytes("parameters", "parameters", 10**7)], 80 * 10**9)
    assert figure.layout.xaxis.range[1] == 12 and figure.layout.xaxis.ticksuffix == " MB"
    assert "80 GB card, 80.0 GB free →" in words(figure) and not figure.layout.shapes


def test_no_bytes_at_all_can_be_drawn():
    """Mutation: the logarithm of zero in the axis' range."""
    assert memory_figure("States", [Bytes("parameters", "parameters", 0)]).layout.xaxis.range[1] > 0


def test_round_up():
    """Mutation: the steps searched in falling order, or a step missing at the upper end (11.5
    raises StopIteration)."""
    assert [round_up(value) for value in (0.013, 1, 9.8, 10.3, 11.5, 64, 107)] == [
        0.015,
        1,
        10,
        12,
        12,
        80,
        120,
    ]


def test_columns_are_stacked_from_zero_and_hatched_beyond_the_card():
    """Mutations: parts of a column beside one another; the piece beyond the card not hatched; the
    last column named for the highest."""
    columns = [
        ("start", [Bytes("parameters", "parameters", 6 * 10**9)]),
        (
            "loss",
            [
                Bytes("parameters", "parameters", 6 * 10**9),
                Bytes("activations", "activations", 6 * 10**9),
            ],
        ),
        (
            "end",
            [Bytes("parameters", "parameters", 6 * 10**9), Bytes("activations", "activations", 0)],
        ),
    ]
    figure = columns_figure("Step", columns, 10 * 10**9)
    drawn = [
        (bar.name, bar.x[0], bar.base[0], bar.y[0], bool(bar.marker.pattern.shape))
        for bar in figure.data
    ]
    assert drawn == [
        ("parameters", 0, 0, 6, False),
        ("parameters", 1, 0, 6, False),
        ("activations", 1, 6, 4, False),
        ("activations", 1, 10, 2, True),
        ("parameters", 2, 0, 6, False),
    ]
    assert sum(bar.showlegend for bar in figure.data) == 2 and figure.layout.yaxis.range[0] == 0
    assert (
        "peak 12 GB" in words(figure)
        and "10 GB card" in words(figure)
        and figure.layout.shapes[0].y0 == 10
    )
    ranks = {bar.name: bar.legendrank for bar in figure.data}
    assert sorted(ranks, key=ranks.get) == ["parameters", "activations"]
    far = columns_figure("Step", columns, 800 * 10**9)
    assert (
        "800 GB card: far above" in words(far)
        and not far.layout.shapes
        and far.layout.yaxis.range[1] < 20
    )


# ---------------------------------------------------------------- time and loss


def test_a_duration_stands_where_it_belongs():
    """Mutation: seconds given to an axis that was told days."""
    figure = duration_figure("Time", 86_400, TICKS, 60, 3e12)
    assert (
        figure.data[0].x[0] == figure.layout.xaxis.tickvals[1] == 86_400
        and figure.layout.xaxis.type == "log"
    )
    assert "1 day" in words(figure)


def test_beyond_the_end_stands_an_arrow():
    """Mutation: the value itself drawn, off the axis where nobody sees it."""
    for seconds, symbol, place in ((1e14, "triangle-right", 3e12), (1, "triangle-left", 60)):
        (mark,) = duration_figure("Time", seconds, TICKS, 60, 3e12).data
        assert (mark.marker.symbol, mark.x[0]) == (symbol, place)
    assert "3.17e6 years" in words(duration_figure("Time", 1e14, TICKS, 60, 3e12))


def test_a_measured_duration_is_a_disc_in_a_ring():
    """Mutation: both marks filled, so that one hides the other."""
    figure = duration_figure("Time", 3600, TICKS, 60, 3e12, measured_seconds=7200)
    assert [(mark.name, mark.marker.symbol) for mark in figure.data] == [
        ("predicted", "circle-open"),
        ("measured", "circle"),
    ]


def test_the_loss_is_drawn_from_zero_with_levels_to_compare():
    """Mutations: steps counted from 0; the range cut to the curve; a level without its words."""
    figure = loss_figure([4.2, 3.123456, 2.5], [("guessing", 4.248)])
    assert list(figure.data[0].x) == [1, 2, 3] and list(figure.data[0].y) == [4.2, 3.1235, 2.5]
    assert figure.layout.yaxis.range[0] == 0 and figure.layout.yaxis.range[1] > 4.248
    assert "guessing: 4.25" in words(figure) and figure.layout.shapes[0].y0 == 4.248


# ---------------------------------------------------------------- explorers, and all


def test_the_pictures_of_an_explorer():
    """Mutations: a part left out; the measured bytes of one part given to another; the time picture
    not drawn."""
    spec = EXPLORERS["fits-and-how-long"]
    computed = spec.compute(spec.start())
    memory, time = explorer_figures(spec, computed, {"gradient_bytes_per_gpu": 50 * 10**9})
    parts = spec.pictures[0].parts
    assert [text.split("<br>")[0] for text in memory.layout.yaxis.ticktext] == [
        *(part.label for part in parts),
        "together",
    ]
    assert {bar.name for bar in memory.data if bar.name.endswith("measured")} == {
        "gradients, measured"
    }
    assert bars(memory, "together, predicted")[-1][1] == pytest.approx(
        computed["states_bytes_per_gpu"] / 1e9
    )
    assert time.data[0].x[0] == computed["training_seconds"]


# ---------------------------------------------------------------- curves


def curve(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def test_lines_points_and_what_was_measured():
    """Lines are what the formulas say at each stop, in strokes that differ; what was measured are
    filled marks at their own place; the reader's point is then a ring.

    Mutations: measured points on another line; every line solid; the hierarchical line with one
    rank on a node; a disc over the marks."""
    spec = EXPLORERS["collective-cost"]
    shown = spec.compute(spec.start())
    measured = {"nodes_ring_all_reduce_seconds": [(2**16, 210e-6), (2**30, 2.5)]}
    (plain,), (figure,) = explorer_figures(spec, shown), explorer_figures(spec, shown, measured)
    lines = ("ring", "tree", "naive", "hierarchical")
    for name, line in zip(lines, spec.pictures[0].lines):
        swept = [(stop, values[line.name]) for stop, values in spec.swept(spec.pictures[0], shown)]
        assert [
            (x, pytest.approx(y, rel=1e-4))
            for x, y in zip(curve(figure, name).x, curve(figure, name).y)
        ] == swept
    assert (
        len({curve(figure, name).line.dash for name in lines})
        == len({curve(figure, name).line.color for name in lines})
        == 4
    )
    points = curve(figure, "ring, measured")
    assert (
        list(zip(points.x, points.y)) == measured["nodes_ring_all_reduce_seconds"]
        and points.marker.color == curve(figure, "ring").line.color
    )
    assert sum(trace.name.endswith("measured") for trace in figure.data) == 1
    assert "marks: measured" in words(figure) and "marks: measured" not in words(plain)
    assert (curve(plain, "here").marker.symbol, curve(figure, "here").marker.symbol) == (
        "circle",
        "circle-open",
    )
    assert curve(figure, "here").y[0] == pytest.approx(
        shown["fastest_all_reduce_seconds"], rel=1e-4
    ) and "<b>573 µs</b>" in words(figure)
    alone = spec.compute(spec.move(spec.start(), "ranks_per_node", 1))
    assert "hierarchical" not in words(explorer_figures(spec, alone)[0])


def test_words_at_the_ends_of_lines_stand_apart():
    """Mutation: the words where the lines end; ring and hierarchical end within a few pixels of
    each other."""
    spec = EXPLORERS["collective-cost"]
    (figure,) = explorer_figures(spec, spec.compute(spec.start()))
    ends = next(trace for trace in figure.data if trace.mode == "text")
    low, high = figure.layout.yaxis.range
    pixels = (figure.layout.height - figure.layout.margin.t - figure.layout.margin.b) / (high - low)
    at = sorted(math.log10(y) * pixels for y in ends.y)
    assert len(at) == 4 and min(two - one for one, two in zip(at, at[1:])) > 16


def test_axes_of_curves():
    """Logarithmic with ticks in the quantity's own words, around everything that is drawn, also
    what was measured; linear from zero.

    Mutations: a range around the lines only; an axis that starts at the smallest value."""
    spec = EXPLORERS["roofline"]
    shown, low = spec.compute(spec.start()), (0.01, 1e6)
    (figure,) = explorer_figures(spec, shown, {"attainable_flops_per_second": [low]})
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert list(figure.data[1].x) == sorted(figure.data[1].x) and 295 < figure.data[1].x[1] < 296, (
        "the corner is drawn"
    )
    assert figure.layout.xaxis.range[0] <= math.log10(low[0]) and figure.layout.yaxis.range[
        0
    ] <= math.log10(low[1])
    assert (
        "100 T" in figure.layout.yaxis.ticktext and "logarithmic" in figure.layout.yaxis.title.text
    )
    assert {"ridge: 295", "989 TFLOP/s"} <= {text.strip() for text in words(figure).split(" | ")}
    linear = replace(spec.pictures[0], y=replace(spec.pictures[0].y, scale="linear"))
    figure = curves_figure(linear, shown, spec.swept(linear, shown))
    assert (
        figure.layout.yaxis.type == "linear"
        and figure.layout.yaxis.range[0] == 0
        and figure.layout.yaxis.range[1] > 989e12
    )
    both = replace(linear, x=replace(linear.x, scale="linear", ticks=()))
    assert tuple(curves_figure(both, shown, spec.swept(both, shown)).layout.xaxis.range) == (
        0,
        10_000,
    )
    with pytest.raises(
        ValueError,
        match=(
            "was measured as 0 at arithmetic_intensity = 3: a logarithmic axis has only places"
            " above 0"
        ),
    ):
        explorer_figures(spec, shown, {"attainable_flops_per_second": [(3, 0)]})


def all_figures():
    yield states_figure(STATES, STATES)
    yield loss_figure([4.2 - step / 1000 for step in range(300)], [("guessing", 4.248)])
    for spec in EXPLORERS.values():
        yield from explorer_figures(spec, spec.compute(spec.start()))


def test_the_json_is_small_and_the_same_each_time():
    """Mutations: plotly's default template left in (7 KB a figure); arrays, which plotly 6 writes
    as base64 and 5 as numbers."""
    for first, second in zip(all_figures(), all_figures()):
        text = first.to_json()
        assert text == second.to_json() and len(text) < 12_000
        assert "uid" not in text and "bdata" not in text
        assert len(json.dumps(json.loads(text)["layout"].get("template"))) < 100


def test_a_figure_can_stand_on_light_and_on_dark():
    """Mutation: plotly's white paper, or ink that only one of the two pages can carry."""
    for figure in all_figures():
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == CLEAR
        assert (
            min(
                contrast(figure.layout.font.color, page)
                for page in ("#ffffff", "#15181b", "#111111")
            )
            > 3.9
        )


def contrast(one, other):
    """WCAG's contrast ratio of two colours."""

    def luminance(colour):
        channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
