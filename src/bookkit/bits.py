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

from bookkit.cards import LoneCardDirective, add_card, foot, frame, table
from coursekit import topics
from coursekit.show.card import STATUS, labelled, menu

# The topic whose formats these are, found by what it has.
_card = topics.the_one_with("CARD_FORMATS", "explorer")

IDENT = "bits"


class bits(nodes.General, nodes.Element):
    """The place of the card in a page."""


class BitsDirective(LoneCardDirective):
    kind = bits


def card():
    """The card as HTML, at the first example."""
    (_, value, step), *_ = _card.EXAMPLES
    examples = {place: words for place, (words, *_) in enumerate(_card.EXAMPLES)}
    shown = _card.words_of_all(value, step)
    blocks = "".join(_block(kind, shown[name]) for name, kind in _card.CARD_FORMATS.items())
    data = json.dumps(_card.bits_data(), separators=(",", ":"))
    inside = f"""<div class="explorer-menus">{_box("value", "Number", value)}
{_box("step", "and add", step)}
{menu(f"{IDENT}-try", "Try", examples, 0, own="own numbers")}</div>
<div class="explorer-picture"><p class="explorer-caption">Sizes that a format has, by powers of ten:
a filled bar is where numbers have all their bits, an outlined bar where they have fewer and fewer.
The solid line is the number, the dashed line the number that is added.</p>
<div class="explorer-drawing"></div></div>
<div class="explorer-words" id="{IDENT}-words">
<p class="explorer-sentence">{escape(_card.sentence(value, step))}</p></div>
{STATUS}
<div class="bits-rows"><p class="bits-legend"><span class="bits-sign">sign</span>
<span class="bits-exponent">exponent</span><span class="bits-fraction">fraction</span>
Click a bit to flip it, or go there with Tab and the arrow keys and press space.</p>{blocks}</div>
{foot(_table(value, shown))}
<script>BOOK.bits("{IDENT}", {data});</script>"""
    return frame(IDENT, "explorer bits", "bits", "One number, six formats", inside)


def _box(key, label, value):
    ident = f"{IDENT}-{key}"
    box = (
        f'<input type="text" id="{ident}" value="{_card.written(value)}" inputmode="text"'
        f' spellcheck="false" aria-describedby="{ident}-error">'
    )
    return labelled(ident, label, f'{box}<p class="explorer-error" id="{ident}-error"></p>')


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


def _table(value, shown):
    rows = [
        (
            name,
            f"<code>{words.bits}</code>",
            *map(escape, (words.value, words.error, words.neighbours, words.sum)),
        )
        for name, words in shown.items()
    ]
    heads = ("Format", "Bits", "Its number", "Error", "Neighbours", "After the addition")
    return table(f"{_card.written(value)} in six formats", heads, rows)


FILES = {"explorer.css": 810, "bits.css": 811, "svg.js": 811, "bits.js": 815}


def setup(app):
    add_card(app, bits, BitsDirective, lambda node, builder: card(), FILES)
