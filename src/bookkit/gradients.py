"""The ``{gradients}`` directive: recorded gradients of a small GPT beside what a format can hold,
under a loss scale that the reader moves, live without a server.

    ```{gradients}
    ```

Counts come from the newest recording in ``measured/`` that has them; without one the card is left
out. Words and shares are data and functions of a topic (its module ``histogram``); in the page
``static/gradients.js`` computes the same from the counts. Without a script, and on paper, a table
says what a few scales do.
"""

import json
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from bookkit import stepper
from bookkit.cards import FULL_SCREEN, anchors, live
from coursekit import topics
from coursekit.recordings.recordings import InvalidRecording, read_all

# The topic whose histogram this is, found by what it has.
_histogram = topics.the_one_with("histogram_data", "histogram")

logger = logging.getLogger(__name__)

IDENT = "gradients"


class gradients(nodes.General, nodes.Element):
    """The place of the card in a page."""


class GradientsDirective(SphinxDirective):
    def run(self):
        if next(self.state.document.findall(gradients), None) is not None:
            logger.warning(
                "gradients: the card is on this page already.",
                location=self.get_location(),
                type="bookkit",
                subtype="gradients",
            )
            return []
        if not _found(self.env)[0]:
            return []
        node = gradients()
        self.set_source_info(node)
        return [node]


def _found(env):
    """(sizes, recording); a damaged file is reported where its rows are shown."""
    try:
        return _histogram.recorded_sizes(read_all(Path(env.srcdir) / "measured"))
    except InvalidRecording:
        return {}, None


def card(found, label):
    """The card as HTML; `label` says where the gradients were recorded."""
    start, kinds = _histogram.START, _histogram.CARD_FORMATS
    sizes, kind = found[start["of"], start["steps"]], kinds[start["kind"]]
    options = "".join(
        f'<option value="{of}"{" selected" if of == start["of"] else ""}>{escape(words)}</option>'
        for of, words in _histogram.WORDS_OF.items()
    )
    steps = sorted({after for _, after in found})
    when = {after: f"after {after} steps" if after else "at the start" for after in steps}
    chosen = stepper.radio_buttons(IDENT, "steps", "Recorded", when, start["steps"])
    named = {name: name for name in _histogram.HISTOGRAM_FORMATS}
    formats = stepper.radio_buttons(IDENT, "kind", "Format", named, start["kind"])
    given = kind, start["microbatches"], start["scale"]
    data = json.dumps(_histogram.histogram_data(found), separators=(",", ":"))
    return f"""
<div class="explorer gradients wide" id="{IDENT}" role="group" aria-labelledby="{IDENT}-title">
{live("gradients")}
<p class="explorer-title" id="{IDENT}-title">Which gradients does the format keep?</p>
<div class="explorer-menus"><div class="explorer-menu"><label for="{IDENT}-of">Gradients</label>
<select id="{IDENT}-of">{options}</select></div>{chosen}{formats}</div>
<div class="explorer-picture"><p class="explorer-caption">Gradients by size, in powers of two. Small
GPT of two layers, fp32, {escape(label)}. Filled: kept; pale: with fewer bits; outline only: 0 or
infinity.</p><div class="explorer-drawing"></div></div>
<div class="explorer-controls">
{_slider("microbatches", "loss divided by k =", _histogram.MOST_MICROBATCHES, start)}
{_slider("scale", "loss scale", _histogram.MOST_SCALE, start)}</div>
<div class="explorer-words" id="{IDENT}-words">
<p class="explorer-sentence">{escape(_histogram.share_sentence(sizes, *given))}</p>
<p class="explorer-detail">{escape(_histogram.share_detail(sizes, *given[:2]))}</p></div>
<p class="explorer-status" role="status"></p>
<div class="explorer-fallback">{_table(sizes)}</div>
<div class="explorer-foot"><button type="button" class="explorer-reset">Reset</button>
{FULL_SCREEN}</div>
<script>BOOK.gradients("{IDENT}", {data});</script>
</div>
"""


def _slider(name, label, most, start):
    return (
        f'<div class="explorer-menu"><label for="{IDENT}-{name}">{label}'
        f' <span class="gradients-count" id="{IDENT}-{name}-value">'
        f"{_histogram.power(start[name])}</span></label>"
        f'<input type="range" id="{IDENT}-{name}" min="0" max="{most}" step="1"'
        f' value="{start[name]}"></div>'
    )


def _table(sizes):
    rows = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f'<td class="number">{escape(text)}</td>' for text in row[1:])
        + "</tr>"
        for row in _histogram.table_rows(sizes)
    )
    heads = ("Loss scale", "Become 0", "Keep fewer bits", "Overflow")
    head = "".join(f'<th scope="col" class="number">{text}</th>' for text in heads)
    return (
        '<table class="table"><caption>What fp16 makes of the recorded gradients</caption><thead>'
        f'<tr><th scope="col">Loss divided by</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _visit_html(writer, node):
    found, recording = _found(writer.builder.env)
    writer.body.append(anchors(node) + card(found, recording.label))
    raise nodes.SkipNode


def _add_scripts(app, pagename, templatename, context, doctree):
    """Plain scripts in the page's head: they are there when the parser meets the card."""
    if doctree is not None and next(doctree.findall(gradients), None) is not None:
        for place, sheet in enumerate(("explorer.css", "gradients.css")):
            app.add_css_file(sheet, priority=810 + place)
        for place, script in enumerate(("svg.js", "bits.js", "gradients.js")):
            app.add_js_file(script, priority=(811, 815, 816)[place])


def setup(app):
    app.add_node(
        gradients, html=(_visit_html, None), text=(stepper.skip, None), latex=(stepper.skip, None)
    )
    app.add_directive("gradients", GradientsDirective)
    app.connect("html-page-context", _add_scripts)
