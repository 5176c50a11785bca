"""The parts that cards and pictures share: their directive, their frame, their table, and the files
that a page with one loads.

An author's mistake is a warning at its place, and the page goes on without the card. A card is HTML
that a script makes live; without one, and on paper, a table says what it shows.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from coursekit.show import card

logger = logging.getLogger(__name__)


def warn(place, subtype, said):
    """A warning at a place of the book, by which the build stops."""
    logger.warning("%s", said, location=place, type="bookkit", subtype=subtype)


# --- a card as HTML -------------------------------------------------------------------------------

FULL_SCREEN = (  # last in a card's foot: book.js
    '<button type="button" class="present-open" title="On the whole screen, for a room: f">Full'
    " screen</button>"
)


def live(function):
    """First in a card: where the script is that will call BOOK.function, the card has its last
    shape from the start."""
    there = f"window.BOOK && BOOK.{function}"
    return f'<script>if ({there}) document.currentScript.parentNode.classList.add("live");</script>'


def frame(ident, look, function, title, inside, attributes=""):
    """A card with its title; `look` are its classes, BOOK.`function` makes it live."""
    return card.frame(ident, f"{look} wide", title, inside, attributes, live(function) + "\n")


def foot(fallback, before="", after=""):
    """The end of a card: the table for print and for readers without JavaScript, and buttons."""
    buttons = card.foot(before, after + FULL_SCREEN)
    return f'<div class="explorer-fallback">{fallback}</div>\n{buttons}'


def table(caption, heads, rows, numbers=(), named=True):
    """A table of HTML texts. The first cell of a row is its name where rows are `named`, columns in
    `numbers` are right-aligned, and the last cell takes the columns for which a row has no text."""
    looks = [' class="number"' if column in numbers else "" for column in range(len(heads))]

    def cell(row, column):
        if named and column == 0:
            return f'<th scope="row">{row[0]}</th>'
        spare = len(heads) - len(row) if column == len(row) - 1 else 0
        look = f' colspan="{spare + 1}"' if spare else looks[column]
        return f"<td{look}>{row[column]}</td>"

    head = "".join(f'<th scope="col"{look}>{text}</th>' for text, look in zip(heads, looks))
    body = "".join(f"<tr>{''.join(cell(row, n) for n in range(len(row)))}</tr>" for row in rows)
    return (
        f'<table class="table"><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def node_table(heads, rows, numeric=()):
    """A table of texts and nodes, as nodes; columns in `numeric` are right-aligned."""

    def row(cells):
        entries = []
        for column, cell in enumerate(cells):
            inner = nodes.paragraph("", "", nodes.Text(cell) if isinstance(cell, str) else cell)
            entries.append(
                nodes.entry("", inner, classes=["text-right"] if column in numeric else [])
            )
        return nodes.row("", *entries)

    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in heads), cols=len(heads))
    group += [nodes.thead("", row(heads)), nodes.tbody("", *map(row, rows))]
    return nodes.table("", group)


def link_to(text, target, docname, kind="doc", sure=True):
    """A link to a page, or to another `kind` of target; one that leads nowhere is a warning where
    its author is `sure`."""
    inside = nodes.inline("", text)
    known = dict(refdomain="std", reftype=kind, reftarget=target, refdoc=docname)
    return addnodes.pending_xref("", inside, **known, refexplicit=True, refwarn=sure)


def radio_buttons(ident, key, label, choices, chosen):
    """Buttons, one of them pressed; `choices`: value -> what is written on it."""
    buttons = "".join(
        f'<label><input type="radio" name="{ident}-{key}"'
        f' value="{value}"{" checked" if value == chosen else ""}><span>{text}</span></label>'
        for value, text in choices.items()
    )
    return f"""<div class="explorer-menu"><span id="{ident}-{key}">{label}</span>
<div class="explorer-options" role="radiogroup" aria-labelledby="{ident}-{key}">
{buttons}</div></div>"""


# --- in a Sphinx build ----------------------------------------------------------------------------


class CardDirective(SphinxDirective):
    """A directive that puts one card into the page. `make()` returns the card's node, None where
    there is nothing to show, or raises ValueError with what the author has to mend; then the page
    has a warning instead."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        try:
            node = self.make()
        except ValueError as wrong:
            warn(self.get_location(), self.name, f"{self.name}: {wrong}")
            return []
        if node is None:
            return []
        self.set_source_info(node)
        return [node]

    def argument(self, known):
        """The name that the author gave; ValueError where it is none of those."""
        name = " ".join(self.arguments[0].split())
        if name not in known:
            raise ValueError(f"none is named {name!r}; there are {', '.join(sorted(known))}.")
        return name

    def on_this_page(self, kind):
        """The cards of a kind of node that stand above."""
        return list(self.state.document.findall(kind))

    def first_on_this_page(self, kind, name=None):
        """ValueError where a card of the kind, and of that name if it has one, stands above."""
        if any(node.get("name") == name for node in self.on_this_page(kind)):
            said = "the card" if name is None else repr(name)
            raise ValueError(f"{said} is on this page already.")

    def figure(self, html, *looks, **more):
        """A figure with a picture of HTML and the directive's content as its caption."""
        figure = nodes.container(classes=["figure", *looks], **more)
        figure += nodes.raw("", html, format="html")
        self.state.nested_parse(self.content, self.content_offset, figure)
        return figure


class LoneCardDirective(CardDirective):
    """The directive of a card that is on a page once, with no choice for the author; `kind` is
    the class of its node."""

    required_arguments = 0

    def make(self):
        self.first_on_this_page(self.kind)
        return self.kind()


def add_node(app, kind, html):
    """Make a node known to Sphinx: it is the HTML of `html(node, builder)` in pages, below places
    for the labels that stand above it in the text, and nothing elsewhere."""

    def visit_html(writer, node):
        labels = "".join(f'<span id="{name}"></span>' for name in node["ids"])
        writer.body.append(labels + html(node, writer.builder))
        raise nodes.SkipNode

    def skip(writer, node):
        raise nodes.SkipNode

    app.add_node(kind, html=(visit_html, None), text=(skip, None), latex=(skip, None))


def add_element(app, kind, start):
    """Make a node known to Sphinx whose children stand in an element of HTML;
    `start(node, builder)` is its start tag."""

    def visit(writer, node):
        writer.body.append(start(node, writer.builder))
        writer.context.append(f"</{re.match('<([a-z]+)', writer.body[-1])[1]}>")

    def depart(writer, node):
        writer.body.append(writer.context.pop())

    app.add_node(kind, html=(visit, depart))


def add_files(app, holds, files, **script):
    """Let each page with nodes that `holds` (a class, or a condition) finds load style sheets and
    plain scripts: name -> place in the page's head, or a function of the nodes that returns these.
    A plain script is there when the parser meets the first card."""

    def add(app, pagename, templatename, context, doctree):
        found = list(doctree.findall(holds)) if doctree is not None else []
        if found:
            for name, place in (files(found) if callable(files) else files).items():
                if name.endswith(".css"):
                    app.add_css_file(name, priority=place)
                else:
                    app.add_js_file(name, priority=place, **script)

    app.connect("html-page-context", add)


def add_card(app, kind, directive, html, files):
    """A card: its node, its directive, which has the name of the class of nodes, and its files."""
    add_node(app, kind, html)
    app.add_directive(kind.__name__, directive)
    add_files(app, kind, files)


def add_static(app, name, text):
    """Write `text()` into a file of the pages' folder, before they are."""

    def write(app):
        if app.builder.format == "html":
            path = Path(app.outdir) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")

    app.connect("builder-inited", write)


def after_pages(app, work, priority=500):
    """Call work(app, folder of the pages) when they are written, unless the build failed."""

    def call(app, exception):
        if exception is None and app.builder.format == "html":
            work(app, Path(app.outdir))

    app.connect("build-finished", call, priority=priority)


def classed(name, kind=nodes.container):
    """The condition that a node is of a kind and has a class."""
    return lambda node: isinstance(node, kind) and name in node["classes"]
