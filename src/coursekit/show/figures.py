"""plotly figures of formulas and measurements.

Predicted values are outlines, measured values fills. Bytes start at zero, and the words beside a
bar say the same as its colour. The background is transparent, and text is a grey that is readable
on a light and on a dark page (the book sets its own colours). The JSON is small and the same for
the same numbers: plain lists, no template, no ids.
"""

from html import escape

import plotly.graph_objects as go
from plotly.io import renderers

from .format import format_as, round_up
from .in_words import figure_in_words
from .palette import LINES, PAGE, TIMELINE

CLEAR = "rgba(0,0,0,0)"
INK = PAGE.line
LINE = TIMELINE["forward"].line
ROW_PIXELS, HEAD_PIXELS, FOOT_PIXELS, LANE_PIXELS = 44, 56, 40, 30


# --- what all figures share -----------------------------------------------------------------------


class _Figure(go.Figure):
    """A figure that is also shown in words, and as HTML, which an export of a notebook draws; the
    script of plotly comes over the network there."""

    def _ipython_display_(self):
        bundle = renderers._build_mime_bundle(self.to_dict())
        if not bundle:  # a browser of its own draws it
            return super()._ipython_display_()
        from IPython.display import display

        traces = [trace.to_plotly_json() for trace in self.data]
        words = figure_in_words(dict(data=traces, layout=self.layout.to_plotly_json()))
        drawn = bundle.get("text/html") or self.to_html(include_plotlyjs="cdn", full_html=False)
        said = (
            f"<details><summary>The figure in words</summary><pre>{escape(words)}</pre></details>"
        )
        display({**bundle, "text/plain": words, "text/html": drawn + said}, raw=True)


def new_figure(title, height, **layout):
    """An empty figure of `height` pixels under a title of one line, or two with <br>, that starts
    at the left."""
    return _Figure(
        layout=dict(
            template=go.layout.Template(),
            paper_bgcolor=CLEAR,
            plot_bgcolor=CLEAR,
            height=height,
            showlegend=False,
            font=dict(color=INK, size=13),
            margin=dict(l=10, r=16, t=HEAD_PIXELS, b=FOOT_PIXELS),
            title=dict(
                text=title,
                x=0,
                xref="container",
                xanchor="left",
                y=1,
                yref="container",
                yanchor="top",
                pad=dict(t=22 if "<br>" in title else 8),
                font=dict(size=15),
            ),
            **layout,
        )
    )


def axis(**given):
    """An axis without a zero line of its own; the page colours grid and ticks."""
    return {
        **dict(
            showgrid=False,
            zeroline=False,
            linecolor=INK,
            tickcolor=INK,
            gridcolor="rgba(117,123,132,0.25)",
            tickangle=0,
            fixedrange=True,
            automargin=True,
        ),
        **given,
    }


def draw_line(figure, x=None, y=None, **line):
    """A line across the figure: at x from bottom to top, or at y from left to right."""
    ends = dict(x0=x, x1=x, y0=0, y1=1, yref="paper")
    if x is None:
        ends = dict(x0=0, x1=1, y0=y, y1=y, xref="paper")
    figure.add_shape(type="line", line=dict(color=INK, **line), **ends)


def write_words(figure, words, **place):
    """Words without an arrow, above their place."""
    figure.add_annotation(text=words, yanchor="bottom", showarrow=False, **place)


def name_rows(figure, names):
    """A name beside each row of bars; the first row is on top."""
    down = dict(range=[len(names) - 0.5, -0.5], tickvals=list(range(len(names))), ticktext=names)
    look = dict(tickmode="array", ticks="outside", tickwidth=0, ticklen=8)
    figure.update_yaxes(axis(**down, **look))


def reach(figure, most, words):
    """An axis along, from zero to `most` or a round number above, with these words below."""
    title = dict(text=words, font=dict(size=12), standoff=4)
    figure.update_xaxes(axis(range=[0, round_up(most)], showgrid=True, nticks=6, title=title))


def legend_below(y):
    """The layout of a legend in one row below the figure."""
    legend = dict(orientation="h", x=0, xanchor="left", y=y, yanchor="top", traceorder="normal")
    return dict(showlegend=True, legend=dict(font=dict(size=12), itemclick=False, **legend))


# --- bars -----------------------------------------------------------------------------------------


def unit_of(most, units):
    """(unit, size): the largest unit of which `most` has at least one."""
    return next((unit, size) for unit, size in reversed(units) if most >= size or size == 1)


def stacked_figure(title, rows, pieces, hover):
    """A bar for each row, of pieces one behind the other: words -> (a length for each row, swatch).
    `hover` is what a piece says behind its words, in plotly's form."""
    height = HEAD_PIXELS + 2 * FOOT_PIXELS + ROW_PIXELS * len(rows)
    figure = new_figure(title, height, barmode="stack", bargap=0.35)
    for words, (lengths, swatch) in pieces.items():
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=words,
                x=lengths,
                y=list(rows),
                marker=dict(color=swatch.light, line=dict(color=swatch.line, width=1.5)),
                hovertemplate=f"{words}, {hover}<extra></extra>",
            )
        )
    figure.update_layout(margin_b=2 * FOOT_PIXELS, **legend_below(-0.2))
    figure.update_xaxes(axis(showgrid=True))
    return figure.update_yaxes(axis(autorange="reversed"))


# --- time -----------------------------------------------------------------------------------------


def trace_figure(title, rows, until_seconds=0.0):
    """Bars of what ran when: name of a row -> triples (words, colour's name in palette.TIMELINE,
    pairs (begin, duration) in seconds); the first row is on top, and idle time is hatched. Two
    figures with one `until_seconds` have one scale."""
    many = any(len(drawn) > 1 for drawn in rows.values())
    foot = FOOT_PIXELS + 16 + 46 * many
    height = HEAD_PIXELS + foot + LANE_PIXELS * len(rows)
    figure = new_figure(title, height, barmode="overlay", bargap=0)
    figure.update_layout(margin_b=foot, **(legend_below(-1) if many else {}))
    until = until_seconds
    for place, drawn in enumerate(rows.values()):
        for words, colour, bars in drawn:
            until = max([until, *(begin + seconds for begin, seconds in bars)])
            said = [[format_as(time, "short duration") for time in bar] for bar in bars]
            swatch = TIMELINE[colour]
            look = dict(color=swatch.light, line=dict(color=swatch.line, width=1.5))
            if colour == "idle":
                look |= dict(color=CLEAR, pattern=dict(shape="/", fgcolor=swatch.line, size=6))
            figure.add_trace(
                go.Bar(
                    orientation="h",
                    name=words,
                    base=[_milliseconds(begin) for begin, _ in bars],
                    x=[_milliseconds(seconds) for _, seconds in bars],
                    y=[place] * len(bars),
                    width=[0.62] * len(bars),
                    marker=look,
                    text=[f"{words}: {seconds} from {begin} on" for begin, seconds in said],
                    textposition="none",
                    hovertemplate="%{text}<extra></extra>",
                )
            )
    reach(figure, 1000 * until or 1, "milliseconds since forward began")
    name_rows(figure, list(rows))
    return figure


def _milliseconds(seconds):
    return float(f"{1000 * seconds:.4g}")


# --- lines ----------------------------------------------------------------------------------------


def over_steps(numbers):
    """The places and heights of a line with a number for each step."""
    return range(1, len(numbers) + 1), [float(f"{number:.5g}") for number in numbers]


def draw_lines(figure, lines, along, up, hover="%{y}"):
    """Up to four lines, name -> (places, heights), from zero, above their names. `along` and `up`
    are the titles of the axes; `hover` is what a point says, in plotly's form."""
    for stroke, (name, (places, heights)) in zip(LINES, lines.items()):
        dash = ",".join(f"{pixels}px" for pixels in stroke.dash) or "solid"
        figure.add_trace(
            go.Scatter(
                x=list(places),
                y=list(heights),
                mode="lines",
                name=name,
                line=dict(color=stroke.colour, width=2, dash=dash),
                hovertemplate=f"{hover}<extra>{name}</extra>",
            )
        )
    words = dict(font=dict(size=12), standoff=6)
    figure.update_xaxes(axis(title=dict(text=along, **words), showline=True))
    figure.update_yaxes(axis(title=dict(text=up, **words), showgrid=True, rangemode="tozero"))
    figure.update_layout(margin_b=100, **legend_below(-0.22))
    return figure


def runs_figure(title, runs, unit="nats a token"):
    """Losses, or other numbers in `unit`, of up to four runs, step by step."""
    lines = {name: over_steps(numbers) for name, numbers in runs.items()}
    return draw_lines(new_figure(title, 350), lines, "step", unit, "step %{x}: %{y:.3f}")


def loss_figure(losses, levels=(), title="Loss on the batch of each step"):
    """Loss in nats against the step, from zero; `levels` are pairs (words, loss) drawn as lines
    across, to compare with."""
    figure = runs_figure(title, {"loss": losses})
    most = max([*losses, *(level for _, level in levels)])
    figure.update_yaxes(range=[0, 1.08 * most])
    for words, level in levels:
        draw_line(figure, y=level, width=1, dash="dash")
        side = dict(x=1, xref="paper", xanchor="right")
        write_words(figure, f"{words}: {level:.2f}", y=level, **side)
    return figure
