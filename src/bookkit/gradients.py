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

from bookkit import cards
from bookkit.cards import LoneCardDirective, foot, frame, radio_buttons
from coursekit import topics
from coursekit.recordings.recordings import InvalidRecording, read_all
from coursekit.show.card import STATUS, labelled, menu

# The topic whose histogram this is, found by what it has.
_histogram = topics.the_one_with("histogram_data", "histogram")

IDENT = "gradients"


class gradients(nodes.General, nodes.Element):
    """The place of the card in a page."""


class GradientsDirective(LoneCardDirective):
    kind = gradients

    def make(self):
        return super().make() if _found(self.env)[0] else None


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
    steps = sorted({after for _, after in found})
    when = {after: f"after {after} steps" if after else "at the start" for after in steps}
    chosen = radio_buttons(IDENT, "steps", "Recorded", when, start["steps"])
    named = {name: name for name in _histogram.HISTOGRAM_FORMATS}
    formats = radio_buttons(IDENT, "kind", "Format", named, start["kind"])
    given = kind, start["microbatches"], start["scale"]
    data = json.dumps(_histogram.histogram_data(found), separators=(",", ":"))
    inside = f"""<div class="explorer-menus">
{menu(f"{IDENT}-of", "Gradients", _histogram.WORDS_OF, start["of"])}{chosen}{formats}</div>
<div class="explorer-picture"><p class="explorer-caption">Gradients by size, in powers of two. Small
GPT of two layers, fp32, {escape(label)}. Filled: kept; outline only: 0 or
infinity; between them: with fewer bits.</p><div class="explorer-drawing"></div></div>
<div class="explorer-controls">
{_slider("microbatches", "loss divided by k =", _histogram.MOST_MICROBATCHES, start)}
{_slider("scale", "loss scale", _histogram.MOST_SCALE, start)}</div>
<div class="explorer-words" id="{IDENT}-words">
<p class="explorer-sentence">{escape(_histogram.share_sentence(sizes, *given))}</p>
<p class="explorer-detail">{escape(_histogram.share_detail(sizes, *given[:2]))}</p></div>
{STATUS}
{foot(_table(sizes))}
<script>BOOK.gradients("{IDENT}", {data});</script>"""
    title = "Which gradients does the format keep?"
    return frame(IDENT, "explorer gradients", "gradients", title, inside)


def _slider(name, label, most, start):
    ident, shown = f"{IDENT}-{name}", _histogram.power(start[name])
    label += f' <span class="gradients-count" id="{ident}-value">{shown}</span>'
    slider = f'<input type="range" id="{ident}" min="0" max="{most}" step="1"'
    return labelled(ident, label, f'{slider} value="{start[name]}">')


def _table(sizes):
    rows = [(row[0], *map(escape, row[1:])) for row in _histogram.table_rows(sizes)]
    heads = ("Loss divided by", "Loss scale", "Become 0", "Keep fewer bits", "Overflow")
    caption = "What fp16 makes of the recorded gradients"
    return cards.table(caption, heads, rows, numbers=range(1, 5))


def _html(node, builder):
    found, recording = _found(builder.env)
    return card(found, recording.label)


FILES = {
    "explorer.css": 810,
    "gradients.css": 811,
    "svg.js": 811,
    "bits.js": 815,
    "gradients.js": 816,
}


def setup(app):
    cards.add_card(app, gradients, GradientsDirective, _html, FILES)
