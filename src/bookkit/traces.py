"""The ``{trace}`` directive: a stored trace of a step, lane by lane, to zoom into.

    ```{trace} zero-3 zero-3-prefetch
    **Figure 2.** A step of stage 3. Gaps in the upper lane are waits.
    ```

The argument names one trace, or several on one scale of time, of ``coursekit/data/traces``
(``tools/store_traces.py`` makes them). The drawing is SVG, made while the book is built: one path
for each lane and kind, in which spans with less than half a pixel between them are one, so its size
is bounded. Kinds have colours and heights. A thin line leads from a launch to its kernel, where few
are in view. ``static/trace.js`` zooms; without it the whole step
stands there. A table has the same in numbers. Sentences get numbers of a trace by a role:
``{virtual}`exposed of zero-3```, or ``step of``, or ``idle of``, a mean over ranks.
"""

import json
from functools import cache
from html import escape
from importlib.resources import files
from math import floor, log10

from docutils import nodes
from sphinx.util.docutils import SphinxRole

from bookkit.cards import CardDirective, add_files, classed, live, table, warn
from bookkit.recorded import near
from coursekit.recordings.virtual_errors import VIRTUAL_ERRORS
from coursekit.show.card import json_in_html, unbroken
from ranklab.measure.slim_trace import COMPUTES, SlimTrace, SpanKind, covered

WIDTH, ROW, BAR = 1000, 20, 16  # units across; pixels down
AS_ONE = 0.5
ARROWS = 40  # drawn at most, so that they stand apart
# kind -> its words in the key, and the share of the lane's height that it takes
LOOKS = {
    SpanKind.FORWARD: ("forward", 1.0),
    SpanKind.BACKWARD: ("backward", 0.75),
    SpanKind.UPDATE: ("update", 0.5),
    SpanKind.MESSAGE: ("message", 1.0),
    SpanKind.COPY: ("copy", 0.5),
    SpanKind.LAUNCH: ("launch", 0.5),
    SpanKind.WAIT: ("the host waits", 1.0),
    SpanKind.LOADER: ("loader", 0.75),
}
ROUND = (1, 2, 5, 10)
BUTTONS = (
    ("in", "+", "Zoom in"),
    ("out", "−", "Zoom out"),
    ("left", "←", "Earlier"),
    ("right", "→", "Later"),
    ("whole", "whole step", "Show the whole step"),
)


@cache
def stored(name):
    text = (files("coursekit") / "data" / "traces" / f"{name}.json").read_text(encoding="utf-8")
    return SlimTrace.from_json(text)


def stored_names():
    folder = files("coursekit") / "data" / "traces"
    return sorted(path.name.removesuffix(".json") for path in folder.iterdir())


def traces(names):
    """The stored traces of these names; ValueError where there is none."""
    if unknown := [name for name in names if name not in stored_names()]:
        raise ValueError(f"none is named {unknown[0]!r}; there are {', '.join(stored_names())}.")
    return [stored(name) for name in names]


def card(ident, names):
    found = traces(names)
    seconds = max(trace.seconds for trace in found)
    shown = {kind for trace in found for kind in kinds_of(trace)}
    key = "".join(
        f'<li><svg width="14" height="13" aria-hidden="true"><path class="trace-{kind}" d="M1 '
        f'{12.5 - 12 * high:g}h12v{12 * high:g}h-12z"/></svg>{words}</li>'
        for kind, (words, high) in LOOKS.items()
        if kind in shown
    )
    if any(map(has_launches, found)):
        key += (
            '<li><svg width="14" height="13" aria-hidden="true"><path class="trace-arrows" '
            'd="M1 2L13 11"/></svg>from a launch to its kernel</li>'
        )
    buttons = "".join(
        f'<button type="button" data-do="{does}" aria-label="{said}" title="{said}">{sign}</button>'
        for does, sign, said in BUTTONS
    )
    data = [
        dict(
            unit=trace.unit,
            names=trace.names,
            kinds=trace.kinds,
            lanes=trace.lanes,
            spans=[list(span if span.launch >= 0 else span[:-1]) for span in trace.spans],
        )
        for trace in found
    ]
    looks = json.dumps(LOOKS, separators=(",", ":"))
    return f"""<div class="trace-card" id="{ident}" role="group" aria-label="A trace to zoom into">
{live("trace")}
<div class="trace-tools">{buttons}<p class="trace-readout" aria-live="polite"></p></div>
{"".join(drawing(trace, seconds) for trace in found)}
<div class="trace-axis" aria-hidden="true"><div class="trace-ticks">{axis(seconds)}</div></div>
<ul class="trace-key">{key}</ul>
<details class="trace-numbers"><summary>The same in numbers</summary>
{"".join(map(numbers_of, found))}</details>
<script type="application/json" class="trace-data">{json_in_html(data)}</script>
<script>BOOK.trace("{ident}", {looks});</script>
</div>"""


def heading(trace):
    where = trace.machine or "virtual time"
    return f"{trace.title}, {duration(trace.seconds)}, {where}"


def kinds_of(trace):
    return [SpanKind(trace.kinds[number]) for number in sorted({s.kind for s in trace.spans})]


def drawing(trace, seconds):
    """The lanes: names beside, and one path for each lane and kind."""
    names = "".join(f"<li>{escape(lane)}</li>" for lane in trace.lanes)
    paths = "".join(
        f'<path class="trace-{kind}" data-lane="{lane}" d="{path}"/>'
        for lane in range(len(trace.lanes))
        for kind in kinds_of(trace)
        if (path := shape(trace, lane, kind, 0, seconds))
    )
    if has_launches(trace):
        paths += f'<path class="trace-arrows" d="{arrows(trace, 0, seconds)}"/>'
    high = ROW * len(trace.lanes)
    said = escape(heading(trace), quote=True)
    return f"""<p class="trace-name">{escape(heading(trace))}</p>
<div class="trace-lanes"><ul>{names}</ul>
<svg viewBox="0 0 {WIDTH} {high}" height="{high}" preserveAspectRatio="none" role="img"
 aria-label="{said}" tabindex="0">{paths}</svg></div>"""


def shape(trace, lane, kind, begin, end):
    """The path of a lane's spans of a kind, seen from begin to end; as trace.js draws it."""
    number, scale = trace.kinds.index(kind), WIDTH / (end - begin)
    high = BAR * LOOKS[kind][1]
    y = lane * ROW + BAR - high
    parts = []
    for span in trace.spans:
        left = (span.start * trace.unit - begin) * scale
        right = (span.end * trace.unit - begin) * scale
        if (span.lane, span.kind) != (lane, number) or right < 0 or left > WIDTH:
            continue
        left, right = max(left, 0), min(max(right, left + AS_ONE), WIDTH)
        if parts and left - parts[-1][1] < AS_ONE:
            parts[-1][1] = max(parts[-1][1], right)
        else:
            parts.append([left, right])
    return "".join(f"M{left:.1f} {y:g}H{right:.1f}v{high:g}H{left:.1f}z" for left, right in parts)


def has_launches(trace):
    return any(span.launch >= 0 for span in trace.spans)


def arrows(trace, begin, end):
    """The path from each launch to its kernel, if few are in view; as trace.js draws it."""
    scale, parts = WIDTH / (end - begin), []

    def middle(span):
        return span.lane * ROW + BAR * (1 - LOOKS[trace.kinds[span.kind]][1] / 2)

    for span in trace.spans:
        if span.launch >= 0:
            launch = trace.spans[span.launch]
            left = (launch.end * trace.unit - begin) * scale
            right = (span.start * trace.unit - begin) * scale
            if max(left, right) >= 0 and min(left, right) <= WIDTH:
                parts.append(f"M{left:.1f} {middle(launch):g}L{right:.1f} {middle(span):g}")
    return "".join(parts) if len(parts) <= ARROWS else ""


def marks(end):
    """(share of the axis, words) of three to six marks at round times, from zero."""
    rough = end / 5
    scale = 10.0 ** floor(log10(rough))
    step = next(r * scale for r in ROUND if r * scale >= rough * 0.999)
    ticks = [k * step for k in range(int(end / step * 1.0001) + 1)]
    return [(tick / end, duration(tick)) for tick in ticks]


def axis(end):
    return "".join(
        f'<span style="left:{100 * share:.2f}%"{" class=end" * (share > 0.85)}>{words}</span>'
        for share, words in marks(end)
    )


def duration(seconds):
    if seconds == 0:
        return "0"
    size, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{float(f'{seconds * size:.3g}'):g} {unit}"


def numbers_of(trace):
    rows = []
    for lane, name in enumerate(trace.lanes):
        for kind in kinds_of(trace):
            own = [span for span in trace.of(kind) if span.lane == lane]
            if own:
                took = covered((span.start, span.end) for span in own) * trace.unit
                share = f"{took / trace.seconds:.0%}"
                rows.append((escape(name), LOOKS[kind][0], len(own), duration(took), share))
    heads = ("lane", "what", "spans", "occupied", "of the step")
    return table(escape(heading(trace)), heads, rows, numbers=range(2, 5))


def exposed(trace):
    """The share of the step in which a message or a copy is under way and nothing computes."""
    moves = trace.of(*COMPUTES, SpanKind.MESSAGE, SpanKind.COPY)
    busy = covered((s.start, s.end) for s in trace.of(*COMPUTES))
    return (covered((s.start, s.end) for s in moves) - busy) / trace.end


def idle(trace):
    """The share of the step in which a rank computes nothing: the mean over ranks."""
    ranks = {span.lane for span in trace.of(*COMPUTES)}
    work = sum(covered((s.start, s.end) for s in trace.of(*COMPUTES, lanes=[r])) for r in ranks)
    return 1 - work / len(ranks) / trace.end


SAYS = {
    "step": lambda trace: duration(trace.seconds),
    "exposed": lambda trace: f"{exposed(trace):.1%}",
    "idle": lambda trace: f"{idle(trace):.1%}",
}


# the first word of a trace's name -> the classes of published steps that are like it
ALIKE = dict.fromkeys(("zero", "data", "eight", "own"), ["FSDP on H100"])
ALIKE |= {"tensor": ["Megatron-LM on H100"], "pipeline": [], "offload": []}


# --- in a Sphinx build ----------------------------------------------------------------------------


class TraceDirective(CardDirective):
    has_content = True

    def make(self):
        self.assert_has_content()
        names = self.arguments[0].replace(",", " ").split()
        traces(names)
        ident = f"trace-{self.env.new_serialno('trace')}"
        return with_error(self.figure(card(ident, names), "trace", "wide"), names, self.env.docname)


def with_error(figure, names, docname):
    """The caption says how far virtual seconds are from others."""
    if (alike := ALIKE.get(names[0].split("-")[0])) is not None:
        figure[-1] += [nodes.Text(" "), *near(docname, *alike)]
    return figure


class VirtualRole(SphinxRole):
    """``exposed of zero-3`` as a number: of the stored trace of a step in virtual time. ``how
    near``, and a class of published steps, is the sentence that says how far such seconds are from
    others."""

    def run(self):
        classes = [self.text.removeprefix("how near ")] if self.text != "how near" else []
        if VIRTUAL_ERRORS.keys() >= {*classes}:
            return near(self.env.docname, *classes), []
        what, _, name = self.text.partition(" of ")
        if what not in SAYS or name not in stored_names() or stored(name).machine:
            said = f"virtual: {self.text!r} is not one of {', '.join(SAYS)}, and of a trace in"
            warn(self.get_location(), "virtual", f"{said} virtual time.")
            return [nodes.literal(self.text, self.text)], []
        return [nodes.Text(unbroken(SAYS[what](stored(name))))], []


def setup(app):
    app.add_directive("trace", TraceDirective)
    app.add_role("virtual", VirtualRole())
    add_files(app, classed("trace"), {"trace.css": 812, "trace.js": 812})
