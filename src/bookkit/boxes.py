"""The four boxes of the book, as directives.

    ```{predict}
    How many bytes does Adam keep for each parameter?
    ```

``predict``, ``measured``, ``which-number`` and ``wild``; each takes an optional title after its
name, which follows the label. The label and the mark say which box it is without any colour.

A ``predict`` box asks, and the author marks what answers it, anywhere before the next box:

    :::{answer}
    Eight: two moments of 4 bytes.
    :::

or a dropdown with ``:class-container: answer``. ``static/predict.js`` gives the box a field, and
shows the answer once a prediction is locked. Definitions stay outside of the answer: whoever
scrolls on needs them.

A notebook has no directives outside the book. There a quotation that begins with a label, ``>
**Predict.** How many?``, is the box; what the next cell shows, and the text that follows, is the
answer, with the cells in it that ask for what was measured.
"""

from itertools import takewhile

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective

from bookkit.cards import add_files, classed

SAID = (nodes.paragraph, nodes.bullet_list, nodes.enumerated_list, nodes.table, nodes.math_block)

LABELS = {
    "predict": "Predict",
    "measured": "Measured",
    "which-number": "Which number is right?",
    "wild": "In the wild",
}

# Drawn on a 24 x 24 grid. As in the figures, what is predicted is an outline and what is measured
# is filled.
MARKS = {
    "predict": '<path d="M3.5 20v-7h4v7zM10 20V8.5h4V20zM16.5 20V4h4v16z"/>',
    "measured": (
        '<path d="M3 20.5V12.5h5v8zM9.5 20.5V8h5v12.5zM16 20.5v-17h5v17z" fill="currentColor"'
        ' stroke="none"/>'
    ),
    "which-number": (
        '<path d="M12 3v18M6.5 21h11M4 7.5 12 5l8 2.5M4 7.5 1.5 14a3 3 0 0 0 5 0L4 7.5'
        'M20 7.5 17.5 14a3 3 0 0 0 5 0L20 7.5"/>'
    ),
    "wild": '<path d="M5 21c0-9 5-15 15-17 .5 9-4 14.5-11.5 14.5M5 21c1.5-5 4.5-8.5 9-11"/>',
}


def new_box(kind, title=(), classes=()):
    """An empty box with its mark, its label and the nodes of its own title."""
    box = nodes.admonition(classes=["box", f"box-{kind}", *classes])
    mark = f'<svg class="box-mark" viewBox="0 0 24 24" aria-hidden="true">{MARKS[kind]}</svg>'
    heading = nodes.title("", "", nodes.raw("", mark, format="html"))
    heading += nodes.inline("", LABELS[kind], classes=["box-label"])
    if title:
        heading += [nodes.Text(" "), nodes.inline("", "", *title, classes=["box-title"])]
    box += heading
    return box


class Box(SphinxDirective):
    """One of the four boxes; its directive's name is the kind."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"name": directives.unchanged}

    def run(self):
        self.assert_has_content()
        title, messages = (
            self.state.inline_text(self.arguments[0], self.lineno) if self.arguments else ([], [])
        )
        asks = ["asks"] if self.name == "predict" else []
        box = new_box(self.name, title, asks)
        self.set_source_info(box)
        self.add_name(box)
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box, *messages]


class Answer(SphinxDirective):
    """The answer to the predict box before it."""

    has_content = True

    def run(self):
        self.assert_has_content()
        answer = nodes.container(classes=["answer"])
        self.state.nested_parse(self.content, self.content_offset, answer)
        return [answer]


class QuotedBox(SphinxTransform):
    """Quotations that begin with a box's label in bold become that box."""

    default_priority = 400
    kinds = {label.rstrip("?"): kind for kind, label in LABELS.items()}

    def apply(self, **options):
        for quotation in list(self.document.findall(nodes.block_quote)):
            first = quotation[0] if len(quotation) else None
            if not isinstance(first, nodes.paragraph):
                continue
            # MyST puts empty text before what is bold
            said = [node for node in first if node.astext()]
            if not said or not isinstance(said[0], nodes.strong):
                continue
            kind = self.kinds.get(said[0].astext().rstrip(".:?"))
            if kind is None:
                continue
            rest = said[1:]
            if rest and isinstance(rest[0], nodes.Text):
                rest[0] = nodes.Text(rest[0].lstrip())
            first.children = []
            first += rest
            box = new_box(kind)
            box.source, box.line = quotation.source, quotation.line
            box += quotation.children
            quotation.replace_self(box)
            if kind == "predict":
                gate(box)


def is_said(node):
    """Whether a node belongs to what is said about a measured number."""
    asks = "cell" in node.get("classes", ()) and "predictions.measured(" in node.astext()
    return asks or isinstance(node, SAID)


def gate(box):
    """The output of the cell after a question, and what is said about it, become its answer, with
    cells that a reader cannot run before: `predictions.measured` raises there."""
    page = box.parent
    after = page[page.index(box) + 1 :]
    cell = next((node for node in after if "cell" in node.get("classes", ())), None)
    if cell is None or "cell_output" not in cell[-1].get("classes", ()):
        return
    said = takewhile(is_said, after[after.index(cell) + 1 :])
    answer = nodes.container("", nodes.container("", cell.pop(), classes=["cell"]))
    for node in list(said):
        page.remove(node)
        answer += node
    answer["classes"] = ["answer"]
    page.insert(page.index(cell) + 1, answer)
    box["classes"].append("asks")


def setup(app):
    for kind in LABELS:
        app.add_directive(kind, Box)
    app.add_directive("answer", Answer)
    app.add_transform(QuotedBox)
    asks = classed("asks", nodes.admonition)
    add_files(app, asks, {"predict.css": 812, "predict.js": 812}, loading_method="defer")
