"""The ``{bits}`` directive: one number in six formats, bit by bit, live without a server.

    ```{bits}
    ```

The reader types a number or turns a bit; every format shows its nearest number, how far that is
off, its neighbours, and what becomes of it when something small is added. The card has the look of
an explorer (``explorer.py``). Formats and examples are data of the topic that has
``CARD_FORMATS``; ``static/bits.js`` gets them from the card and works without any request. Without
a script, and on paper, a table says the same of the first number.
"""

import json
from html import escape

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from bookkit import stepper
from bookkit.cards import FULL_SCREEN, anchors, live
from coursekit import topics

# The topic whose formats these are, found by what it has.
_card = topics.the_one_with("CARD_FORMATS", "explorer")

logger = logging.getLogger(__name__)

IDENT = "bits"


class bits(nodes.General, nodes.Element):
    """The place of the card in a page."""


class BitsDirective(SphinxDirective):
    def run(self):
        if next(self.state.document.findall(bits), None) is not None:
            logger.warning(
                "bits: the card is on this page already.",
                location=self.get_location(),
                type="bookkit",
                subtype="bits",
            )
            return []
        node = bits()
        self.set_source_info(node)
        return [node]


def card():
    """The card as HTML, at the first example."""
    (_, value, step), *_ = _card.EXAMPLES
    options = "".join(
        f'<option value="{place}"{" selected" if place == 0 else ""}>{escape(words)}</option>'
        for place, (words, *_) in enumerate(_card.EXAMPLES)
    )
    shown = _card.words_of_all(value, step)
    blocks = "".join(_block(kind, shown[name]) for name, kind in _card.CARD_FORMATS.items())
    data = json.dumps(_card.bits_data(), separators=(",", ":"))
    return f"""
<div class="explorer bits wide" id="{IDENT}" role="group" aria-labelledby="{IDENT}-title">
{live("bits")}
<p class="explorer-title" id="{IDENT}-title">One number, six formats</p>
<div class="explorer-menus">{_box("value", "Number", value)}{_box("step", "and add", step)}
<div class="explorer-menu"><label for="{IDENT}-try">Try</label>
<select id="{IDENT}-try"><option value="" hidden>own numbers</option>{options}</select></div></div>
<div class="explorer-picture"><p class="explorer-caption">Sizes that a format has, by powers of ten:
a filled bar is where numbers have all their bits, an outlined bar where they have fewer and fewer.
The solid line is the number, the dashed line the number that is added.</p>
<div class="explorer-drawing"></div></div>
<div class="explorer-words" id="{IDENT}-words">
<p class="explorer-sentence">{escape(_card.sentence(value, step))}</p></div>
<p class="explorer-status" role="status"></p>
<div class="bits-rows"><p class="bits-legend"><span class="bits-sign">sign</span>
<span class="bits-exponent">exponent</span><span class="bits-fraction">fraction</span>
Click a bit to flip it, or go there with Tab and the arrow keys and press space.</p>{blocks}</div>
<div class="explorer-fallback">{_table(value, step, shown)}</div>
<div class="explorer-foot"><button type="button" class="explorer-reset">Reset</button>
{FULL_SCREEN}</div>
<script>BOOK.bits("{IDENT}", {data});</script>
</div>
"""


def _box(key, label, value):
    return (
        f'<div class="explorer-menu"><label for="{IDENT}-{key}">{label}</label>'
        f'<input type="text" id="{IDENT}-{key}" value="{_card.written(value)}" inputmode="text"'
        f' spellcheck="false" aria-describedby="{IDENT}-{key}-error">'
        f'<p class="explorer-error" id="{IDENT}-{key}-error"></p></div>'
    )


def _block(kind, words):
    """One format: its bits as switches, of which Tab reaches the first, and its words."""
    texts = words.bits.split(" ")
    fields = "".join(
        f'<div class="bits-field bits-{field}">{_switches(kind, field, text)}</div>'
        for field, text in zip(("sign", "exponent", "fraction"), texts)
    )
    sizes = f"1 + {kind.exponent_bits} + {kind.fraction_bits} bits"
    return f"""
<div class="bits-row" data-format="{kind.name}" role="group" aria-label="{kind.name}, {sizes}">
<p class="bits-name">{kind.name}<small>{sizes}</small></p>
<div class="bits-fields">{fields}</div>
<p class="bits-words"><span><span class="bits-value">{escape(words.value)}</span>
<span class="bits-significand"></span><sup></sup></span>
<span class="bits-error">{escape(words.error)}</span>
<span class="bits-neighbours">{escape(words.neighbours)}</span>
<span class="bits-sum">{escape(words.sum)}</span></p></div>"""


def _switches(kind, field, text):
    made = []
    for place, bit in enumerate(text):
        if field == "sign":
            name = "sign"
        elif field == "exponent":
            name = f"exponent bit worth {2 ** (len(text) - 1 - place)}"
        else:
            name = f"fraction bit worth 1/{2 ** (place + 1)}"
        made.append(
            f'<span role="switch" tabindex="{0 if field == "sign" else -1}"'
            f' aria-checked="{"true" if bit == "1" else "false"}" aria-label="{name}">{bit}</span>'
        )
    return "".join(made)


def _table(value, step, shown):
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td><code>{words.bits}</code></td>'
        f"<td>{escape(words.value)}</td><td>{escape(words.error)}</td>"
        f"<td>{escape(words.neighbours)}</td><td>{escape(words.sum)}</td></tr>"
        for name, words in shown.items()
    )
    heads = ("Format", "Bits", "Its number", "Error", "Neighbours", "After the addition")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return (
        f'<table class="table"><caption>{_card.written(value)} in six formats</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _visit_html(writer, node):
    writer.body.append(anchors(node) + card())
    raise nodes.SkipNode


def _add_scripts(app, pagename, templatename, context, doctree):
    """Plain scripts in the page's head: they are there when the parser meets the card."""
    if doctree is not None and next(doctree.findall(bits), None) is not None:
        for place, sheet in enumerate(("explorer.css", "bits.css")):
            app.add_css_file(sheet, priority=810 + place)
        app.add_js_file("svg.js", priority=811)
        app.add_js_file("bits.js", priority=815)


def setup(app):
    app.add_node(
        bits, html=(_visit_html, None), text=(stepper.skip, None), latex=(stepper.skip, None)
    )
    app.add_directive("bits", BitsDirective)
    app.connect("html-page-context", _add_scripts)
