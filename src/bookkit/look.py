"""How the pages look: style sheets, fonts, icons, and the palettes as CSS variables.

``static/book.css`` holds the look. This module copies it, ``static/book.js`` and the fonts next to
the theme's style sheet, and what cards have in a notebook, too (``coursekit/show/static``). It
writes ``palette.css`` from ``page.css`` there and ``coursekit.show.palette``, so that a colour is
defined once for figures and pages.
"""

import json
import re
from pathlib import Path

import rcssmin
import rjsmin
from docutils import nodes
from markupsafe import Markup

from bookkit.cards import add_static
from bookkit.icons import ICONS, svg
from coursekit.show import embed
from coursekit.show.palette import palette_css

STATIC = Path(__file__).parent / "static"
TEMPLATES = Path(__file__).parent / "templates"

# Runs before anything is drawn, so that no page flashes in the wrong colours.
THEME_SCRIPT = (TEMPLATES / "theme.js").read_text(encoding="utf-8")


COLUMN_LETTERS = 62  # of code, on a line of the column
WIDE_COLUMNS = 5  # of a table
WORD_LETTERS = 24  # of a word of code that is never broken; a phone has room for it


# Between a formula and the mark after it browsers would end a line.
MATH_AND_MARK = re.compile(
    r"<math\b[^>]*>(?:(?!</math>).)*</math>[.,;:!?)\u2019\u201d]+", re.DOTALL
)

# Faces, as CSS writes a font, and what a page has that shows them; "" stands on every page.
FACES = {
    "1em 'Book Serif'": "",
    "600 1em 'Book Serif'": "",
    "1em 'Book Sans'": "",
    "1em 'Book Code'": r"<(?:code|pre)\b",
    "italic 1em 'Book Serif'": r"<em\b",
    "1em 'STIX Two Math'": r"<math\b",
}


def font_script(body):
    """Asks for the faces of a page before it is laid out: one that comes later is not shown
    (book.css)."""
    faces = [face for face, shows in FACES.items() if re.search(shows, body)]
    load = "function(f){document.fonts.load(f).catch(function(){})}"
    return Markup(f"{json.dumps(faces, separators=(',', ':'))}.forEach({load})")


def _icon(*names):
    """The first of the icons ``names`` (the book's, or the theme's name for one) that is known, as
    inline SVG; or nothing."""
    for name in names:
        if name and name in ICONS:
            return Markup(svg(name))
    return Markup("")


# Parts of the contents that are folded until a reader opens them or is on one of their pages.
FOLDED = re.compile(
    r'<p [^>]*"caption"[^>]*>(<span[^>]*>(?:Teach|Reference)</span>)</p>\s*(<ul.*?)(?=<p |\Z)',
    re.DOTALL,
)


def with_sections(contents, sections):
    """The book's contents, with the sections of the page one is on under its entry; both are HTML
    of Sphinx's making.

    (The theme shows a page's sections in the right margin, which here belongs to notes.)
    """
    contents = FOLDED.sub(_fold, str(contents))
    current = re.search(
        r'<a class="current reference internal" href="#">.*?</a>', contents, flags=re.DOTALL
    )
    inner = re.search(r"</a>(.*)</li>", sections or "", flags=re.DOTALL)
    if not current or not inner:
        return Markup(contents)
    return Markup(contents[: current.end()] + inner.group(1) + contents[current.end() :])


def _fold(part):
    here = " open" * ('class="current' in part[2])
    return f'<details{here}><summary class="caption">{part[1]}</summary>{part[2]}</details>'


def _without_roles(body):
    """docutils calls a bibliography a list, which has no items: take off the roles that tell a
    screen reader nonsense."""
    body = body.replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    return re.sub(r'(<div class="citation" id="[^"]*") role="doc-biblioentry">', r"\1>", body)


def _page_context(app, pagename, templatename, context, doctree):
    context["bookkit_icon"] = _icon
    context["bookkit_contents"] = with_sections
    context["bookkit_theme_script"] = Markup(rjsmin.jsmin(THEME_SCRIPT))
    context["bookkit_font_script"] = font_script(context.get("body", ""))
    if "body" in context:
        context["body"] = MATH_AND_MARK.sub(
            r'<span class="kept">\g<0></span>', _without_roles(context["body"])
        )
        if re.search(r'class="[^"]*\b(?:cell|plotly-figure|needs-kernel)\b', context["body"]):
            app.add_css_file("cells.css", priority=802)


def widen_code(doctree):
    """Code that the column would cut is as wide as a wide figure, by the class `wide`: the page has
    two widths. Blocks that follow one another have the same. Within a box or a list code keeps the
    width that is there; a fold has no box."""
    blocks = []
    for code in doctree.findall(nodes.literal_block):
        block = code
        if {"literal-block-wrapper", "cell_input"} & set(code.parent.get("classes", ())):
            block = code.parent
        around = block.parent.parent if "cell" in block.parent.get("classes", ()) else block.parent
        if around.get("design_component") == "dropdown-body":
            around = around.parent.parent
        longest = max(map(len, code.astext().splitlines()), default=0)
        if isinstance(around, nodes.section):
            blocks.append((block, longest > COLUMN_LETTERS))
    while blocks:
        run = [blocks.pop(0)]
        while blocks and blocks[0][0] is run[-1][0].next_node(descend=False, siblings=True):
            run.append(blocks.pop(0))
        if any(long for _, long in run):
            for block, _ in run:
                block["classes"].append("wide")


def keep_words(doctree):
    """Code of short words has the class `whole`: no line ends within a word, as after `--`."""
    for code in doctree.findall(nodes.literal):
        if max(map(len, code.astext().split()), default=0) <= WORD_LETTERS:
            code["classes"].append("whole")


def mend_tables(doctree):
    """A table of five columns or more is as wide as a wide figure. No head is broken at an equals
    sign, and none is without text: what nobody needs to see is said by a screen reader."""
    for head in list(doctree.findall(nodes.thead)):
        for text in list(head.findall(nodes.Text)):
            text.parent.replace(text, nodes.Text(text.replace(" = ", "\u00a0=\u00a0")))
        for entry in list(head.findall(nodes.entry)):
            if not entry.astext().strip():
                entry.children = []
                entry += nodes.paragraph("", "", nodes.inline("", "Row", classes=["unseen"]))
    for table in list(doctree.findall(nodes.table)):
        columns = len(list(table.findall(nodes.colspec)))
        around = table.parent
        if "answer" in around.get("classes", ()):
            around = around.parent
        if columns >= WIDE_COLUMNS and isinstance(around, nodes.section):
            wide = nodes.container(classes=["wide"])
            table.replace_self(wide)
            wide += table


def _widen(app, doctree, docname):
    widen_code(doctree)
    keep_words(doctree)
    mend_tables(doctree)


def _prepend_templates(app, config):
    config.templates_path = [str(TEMPLATES), *config.templates_path]
    config.html_static_path = [*config.html_static_path, str(embed.STATIC), str(STATIC)]


def _variables():
    return rcssmin.cssmin(embed.text_in(embed.STATIC / "page.css")) + "\n" + palette_css()


def setup(app):
    app.connect("config-inited", _prepend_templates)
    add_static(app, "_static/palette.css", _variables)
    app.connect("doctree-resolved", _widen)
    app.connect("html-page-context", _page_context)
    app.add_css_file("palette.css", priority=800)
    app.add_css_file("book.css", priority=801)
    app.add_js_file("book.js", priority=801, loading_method="defer")
