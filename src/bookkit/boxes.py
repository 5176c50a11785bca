"""The four boxes of the book, as directives.

    ```{predict}
    How many bytes does Adam keep for each parameter?
    ```

``predict``, ``measured``, ``which-number`` and ``wild``; each takes an optional title after its name, which follows the
label. The label and the mark say which box it is without any colour.
"""

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

LABELS = {
    "predict": "Predict",
    "measured": "Measured",
    "which-number": "Which number is right?",
    "wild": "In the wild",
}


class Box(SphinxDirective):
    """One of the four boxes; its directive's name is the kind."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"name": directives.unchanged, "class": directives.class_option}

    def run(self):
        self.assert_has_content()
        classes = ["box", f"box-{self.name}", *self.options.get("class", [])]
        box = nodes.admonition(classes=classes)
        box["bookkit-box"] = self.name
        title = nodes.title("", "", nodes.inline("", LABELS[self.name], classes=["box-label"]))
        if self.arguments:
            parsed, messages = self.state.inline_text(self.arguments[0], self.lineno)
            title += [nodes.Text(" "), nodes.inline("", "", *parsed, classes=["box-title"]), *messages]
        box += title
        self.set_source_info(box)
        self.add_name(box)
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]


def setup(app):
    for kind in LABELS:
        app.add_directive(kind, Box)
