"""The ``{trace-image}`` directive: stored traces as ``{trace}`` draws them, in a file of their own.

It is for pages without room for a trace to zoom into. The file is an SVG for each theme, which a
browser loads when a reader comes near; a browser without scripts shows it, too.
"""

from html import escape
from pathlib import Path

from docutils import nodes

from bookkit.cards import CardDirective
from bookkit.traces import (
    BAR,
    LOOKS,
    ROW,
    WIDTH,
    heading,
    kinds_of,
    marks,
    shape,
    traces,
    with_error,
)
from coursekit.show.palette import PAGE, TIMELINE
from ranklab.measure.slim_trace import SpanKind

FOLDER = "_static/traces"
ACROSS, LEFT, LETTER = 496, 112, 12  # pixels, the names at the left among them
COLOURS = {
    SpanKind.FORWARD: TIMELINE["forward"],
    SpanKind.BACKWARD: TIMELINE["backward"],
    SpanKind.UPDATE: TIMELINE["weight_gradient"],
    SpanKind.MESSAGE: TIMELINE["communication"],
    SpanKind.COPY: TIMELINE["communication"],
}
INK = {"light": "#1d1f22", "dark": "#e3e1db"}  # --ink of book.css
LANE = {"light": "#f0efe9", "dark": "#262b30"}


def svg(names, theme):
    """The lanes of each trace, an axis of time that they share, and a key."""
    found = traces(names)
    seconds = max(trace.seconds for trace in found)
    parts, y = [], 0

    def text(words, x, at, more=""):
        parts.append(f'<text x="{x:g}" y="{at:g}"{more}>{escape(words)}</text>')

    for trace in found:
        text(heading(trace), 0, y + 14, ' font-weight="600"')
        y += 22
        for lane, name in enumerate(trace.lanes):
            top = y + ROW * lane
            text(name, 0, top + 12)
            parts.append(f'<path fill="{LANE[theme]}" d="M{LEFT} {top}H{ACROSS}v{BAR}H{LEFT}z"/>')
        scale = (ACROSS - LEFT) / WIDTH
        parts.append(f'<g transform="translate({LEFT} {y}) scale({scale:g} 1)">')
        for kind in kinds_of(trace):
            paths = (shape(trace, lane, kind, 0, seconds) for lane in range(len(trace.lanes)))
            parts.append(f'<path fill="{getattr(COLOURS[kind], theme)}" d="{"".join(paths)}"/>')
        parts.append("</g>")
        y += ROW * len(trace.lanes) + 8
    for share, words in marks(seconds):
        x, late = LEFT + share * (ACROSS - LEFT), share > 0.85
        parts.append(f'<path stroke="{PAGE.line}" d="M{x:.1f} {y}v16"/>')
        text(words, x - 4 if late else x + 4, y + 13, ' text-anchor="end"' * late)
    y, x = y + 24, 0
    for kind in LOOKS:
        if any(kind in kinds_of(trace) for trace in found):
            words, high = LOOKS[kind]
            fill = getattr(COLOURS[kind], theme)
            parts.append(f'<path fill="{fill}" d="M{x} {y + 12}h12v{-12 * high:g}h-12z"/>')
            text(words, x + 18, y + 11)
            x += 34 + 7 * len(words)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {ACROSS} {y + 16}" width="{ACROSS}"'
        f' height="{y + 16}" font-family="system-ui, sans-serif" font-size="{LETTER}"'
        f' fill="{INK[theme]}">{"".join(parts)}</svg>\n'
    )


# --- in a Sphinx build ----------------------------------------------------------------------------


class TraceImageDirective(CardDirective):
    has_content = True

    def make(self):
        self.assert_has_content()
        names = self.arguments[0].split()
        said = escape("; ".join(map(heading, traces(names))), quote=True)
        up = "../" * self.env.docname.count("/")
        images = "".join(
            f'<img class="only-{theme}" loading="lazy" width="{ACROSS}" alt="{said}"'
            f' src="{up}{file_of(names, theme)}">'
            for theme in INK
        )
        return with_error(self.figure(images, trace_names=names), names, self.env.docname)


def file_of(names, theme):
    return f"{FOLDER}/{'-'.join(names)}-{theme}.svg"


def _write(app, pagename, templatename, context, doctree):
    for node in doctree.findall(nodes.container) if doctree is not None else ():
        for theme in INK if "trace_names" in node else ():
            path = Path(app.outdir) / file_of(node["trace_names"], theme)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(svg(node["trace_names"], theme), encoding="utf-8")


def setup(app):
    app.add_directive("trace-image", TraceImageDirective)
    app.connect("html-page-context", _write)
