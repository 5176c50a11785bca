"""The plotly figures: what is drawn is what was measured, and the words say it too."""

import json

import numpy
import pytest
from plotly.io import renderers
from told import from_told
from wcag import contrast

from coursekit.show import figures
from coursekit.show.figures import loss_figure
from coursekit.show.in_words import PLOTLY, figure_in_words
from coursekit.show.palette import MEMORY
from coursekit.topics.why_one_gpu.figures import states_figure

STATES = dict(
    parameter_bytes=2_448_896,
    gradient_bytes=2_448_896,
    optimizer_bytes=4_897_792,
    step_counter_bytes=160,
)
CLEAR = "rgba(0,0,0,0)"


def bars(figure, name):
    """(start, end) of each bar of that name, in the axis' unit."""
    return [(bar.base[0], bar.base[0] + bar.x[0]) for bar in figure.data if bar.name == name]


def words(figure):
    """All text of a figure."""
    layout = figure.layout
    ticks = [text for axis in (layout.xaxis, layout.yaxis) for text in axis.ticktext or ()]
    notes = [note.text for note in layout.annotations]
    texts = [text for trace in figure.data for text in getattr(trace, "text", None) or ()]
    return " | ".join([layout.title.text, *ticks, *notes, *texts])


# ---------------------------------------------------------------- in words


def test_a_figure_is_also_shown_in_words_and_as_html(monkeypatch):
    """Must catch: a figure that GitHub, an export or a screen reader shows as nothing: without its
    title, an axis, the name or a number of a trace, its last point, or the words below the HTML; a
    NaN, or an array, that stops the display; HTML without the page's script."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(renderers, "default", "plotly_mimetype")
    figure = figures.loss_figure(
        [4.25, *range(30, 1, -1), float("nan")], [("blind <b>guess</b>", 4.2)]
    )
    figure.add_scatter(x=numpy.arange(2), y=numpy.float32([1.5, 0.25]), name="half")
    figure._ipython_display_()
    (data,) = shown
    assert data["text/plain"] == (
        "Figure: Loss on the batch of each step\nx axis: step\ny axis: nats a token\n"
        "loss (8 of 31): step 1: 4.25; step 5: 27; step 10: 22; step 14: 18; step 18: 14;"
        " step 22: 10; step 27: 5; step 31: no number\nhalf: 0: 1.5; 1: 0.25\n"
        "marked: blind guess: 4.20"
    )
    assert data[PLOTLY]["data"][0]["name"] == "loss" and "https://cdn.plot.ly/" in data["text/html"]
    assert data["text/html"].endswith(f"<pre>{data['text/plain']}</pre></details>")


@from_told("figure, line")
def test_a_trace_is_said_as_under_the_pointer(figure, line):
    """Must catch: a point without its place, its begin, its unit or the words of its tick; a name
    said twice; an outline said that the pointer does not say; rows of a heat map left out."""
    assert figure_in_words(figure.to_dict()).splitlines()[-1] == line


# ---------------------------------------------------------------- bytes


def test_every_bar_starts_where_the_one_above_ended():
    """Mutations: all bars from zero; the sum drawn from where the last part ended; bytes divided by
    2^20 under "MB"."""
    figure = states_figure(STATES, STATES)
    ends = [0.0]
    for name in ("parameters", "gradients", "optimizer states", "step counters"):
        (predicted,), (measured,) = (
            bars(figure, f"{name}, {kind}") for kind in ("predicted", "measured")
        )
        assert predicted == measured and predicted[0] == pytest.approx(ends[-1])
        ends.append(predicted[1])
    assert bars(figure, "together, measured") == [(0, pytest.approx(ends[-1]))]
    assert ends[-1] == pytest.approx(sum(STATES.values()) / 10**6)
    assert figure.layout.xaxis.ticksuffix == " MB"


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
    prediction alone; MiB under the pointer beside an axis in MB."""
    figure = states_figure(STATES, {**STATES, "gradient_bytes": 3_000_000})
    assert bars(figure, "gradients, measured")[0][1] > bars(figure, "gradients, predicted")[0][1]
    assert "gradients<br>3 MB, predicted 2.45 MB" in words(figure)
    assert "parameters<br>2.45 MB |" in words(figure)
    (bar,) = [bar for bar in figure.data if bar.name == "parameters, measured"]
    assert bar.hovertemplate == "parameters, measured: 2.45 MB = 2,448,896 B<extra></extra>"


# ---------------------------------------------------------------- loss


def test_the_loss_is_drawn_from_zero_with_levels_to_compare():
    """Mutations: steps counted from 0; the range cut to the curve; a level without its words."""
    figure = loss_figure([4.2, 3.123456, 2.5], [("guessing", 4.248)])
    assert list(figure.data[0].x) == [1, 2, 3] and list(figure.data[0].y) == [4.2, 3.1235, 2.5]
    assert figure.layout.yaxis.range[0] == 0 and figure.layout.yaxis.range[1] > 4.248
    assert "guessing: 4.25" in words(figure) and figure.layout.shapes[0].y0 == 4.248


# ---------------------------------------------------------------- all


def all_figures():
    yield states_figure(STATES, STATES)
    yield loss_figure([4.2 - step / 1000 for step in range(300)], [("guessing", 4.248)])


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
        ink = figure.layout.font.color
        assert min(contrast(ink, page) for page in ("#ffffff", "#15181b", "#111111")) > 3.9
