"""HTML that no rule of a style sheet shows is not written: spans around plain words of code,
classes of links, inline code and tables, and most of what sphinx-design makes of a folded box. On
ZeRO's chapter that is an eighth of the bytes.

Each is left out where its HTML is made. A rule for one of these classes would show nothing:
``tests/engines/test_bookkit_offline.py`` looks for such rules in the book's style sheets.
"""

import re

from docutils import nodes
from pygments.formatters import HtmlFormatter
from pygments.token import Name, Operator, Punctuation, Text, Whitespace
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.writers.html5 import HTML5Translator
from sphinx_design.dropdown import dropdown_main

# Names and signs have the colour of the text. A kind below these (a function's name, `and`) has a
# colour of its own.
PLAIN_CODE = {Name, Name.Namespace, Name.Builtin.Pseudo, Operator, Punctuation, Whitespace}

# (element, classes of Sphinx's) -> those that a style sheet asks for.
CLASSES = {
    ("a", "reference internal"): "",  # a link within the book looks like any link
    ("code", "docutils literal notranslate"): "",  # book.js keeps code from being translated
}
FOLD_MARK = "sd-summary-state-marker"  # book.css draws its own
# A folded box is a card of sphinx-design's, whose look book.css replaces.
FOLD = {
    "sd-sphinx-override",
    "sd-card",
    "sd-mb-3",
    "sd-summary-title",
    "sd-card-header",
    "sd-summary-text",
    "sd-card-body",
    "sd-card-text",
}
OF_TABLES = {"row-odd", "row-even", "text-left", "head"}


class CodeFormatter(HtmlFormatter):
    """Code as HTML, with spans around what has a colour only."""

    def format_unencoded(self, tokensource, outfile):
        plain = ((Text if kind in PLAIN_CODE else kind, text) for kind, text in tokensource)
        super().format_unencoded(plain, outfile)


class PageTranslator(HTML5Translator):
    """Sphinx's, without the classes and spans that nobody sees."""

    def starttag(self, node, tagname, suffix="\n", empty=False, **attributes):
        for name in {"class", "CLASS"} & attributes.keys():
            if not node.get("classes"):  # else somebody asked for a look
                classes = attributes[name]
                attributes[name] = CLASSES.get((tagname, classes), classes)
        if isinstance(node, (nodes.row, nodes.entry)):
            for holder in (node, attributes):
                holder["classes"] = [
                    name for name in holder.get("classes", ()) if name not in OF_TABLES
                ]
        return super().starttag(node, tagname, suffix, empty, **attributes)

    def visit_Text(self, node):
        if not self.protect_literal_text:
            return super().visit_Text(node)
        # Of several spaces all but the last are kept, as Sphinx does; around each word it writes a
        # span, which only its own theme asks for.
        text = self.encode(node.astext())
        self.body.append(re.sub(r" +(?= )", lambda spaces: "&#160;" * len(spaces[0]), text))


class PlainFolds(SphinxPostTransform):
    """A folded box without the mark that sphinx-design puts into its summary, and without classes
    that say what a card of its own looks like."""

    default_priority = 200  # after sphinx-design has made it (199)
    formats = ("html",)

    def run(self, **kwargs):
        marks = [
            node for node in self.document.findall(nodes.inline) if FOLD_MARK in node["classes"]
        ]
        for mark in marks:
            mark.parent.remove(mark)
        for box in self.document.findall(dropdown_main):
            for node in box.findall(nodes.Element):
                if FOLD & set(node["classes"]):
                    node["classes"] = [name for name in node["classes"] if name not in FOLD]


def _format_code(app):
    if app.builder.format == "html":
        app.builder.highlighter.formatter = CodeFormatter


def setup(app):
    app.set_translator("html", PageTranslator)
    app.add_post_transform(PlainFolds)
    app.connect("builder-inited", _format_code)
