"""The opening of a chapter: what the reader will be able to do, and the time that it takes, beside
the first picture.

    # Collectives

    :::{objectives}
    :lab: 60

    - say what each of the nine collectives leaves on which rank.

    The lab runs four ranks on a laptop.
    :::

    Eight GPUs need one sum. How does it get to all of them?

    ```{stepper} ring all-reduce
    ```

    ## Nine collectives

The directive stands below the title. On a wide screen the objectives are in the margin, beside what
follows up to the first section; on a narrow one they come after it. The minutes to read are counted
when the page is built; ``:lab:`` has those of the lab that the page's front matter names.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bookkit import words
from bookkit.cards import link_to
from bookkit.diffs import source_diff
from bookkit.formulas import fold

WORDS_A_MINUTE = 200  # of text, tables and code
STEP = 5  # minutes
WORD = re.compile(r"[^\W_]\S*")
UNREAD = {"objectives", "dropdown"}  # nobody has to open what is folded


def read_words(node) -> int:
    """Words of text, tables and code in a part of a page. A formula is one word."""
    if isinstance(node, nodes.Text):
        return len(WORD.findall(node.astext()))
    if isinstance(node, (nodes.math, nodes.math_block)):
        return 1
    if isinstance(node, source_diff):
        return sum(len(WORD.findall(re.sub("<[^>]+>", "", line))) for _, line in node["lines"])
    kinds = {*node.get("classes", ()), node.get("design_component")}
    if kinds & UNREAD or isinstance(node, (fold, nodes.raw, nodes.Invisible)):
        return 0
    return sum(map(read_words, node.children))


def minutes(count: int) -> int:
    """Minutes that so many words take, up to the next step."""
    return max(1, -(-count // (WORDS_A_MINUTE * STEP))) * STEP


class ObjectivesDirective(SphinxDirective):
    has_content = True
    option_spec = {"lab": int}

    def run(self):
        self.assert_has_content()
        chapters = {page.stem for page in words.chapters(Path(self.env.srcdir))}
        kind = "chapter" if Path(self.env.docname).name in chapters else "page"
        head = nodes.paragraph("", f"After this {kind} you can", classes=["objectives-head"])
        box = nodes.container("", head, classes=["objectives", "margin"])
        box["lab"] = self.options.get("lab")
        self.set_source_info(box)
        self.state.nested_parse(self.content, self.content_offset, box)
        return [box]


def _time(env, docname, box, count):
    """The sentence about time, and what the author wrote about hardware."""
    said = nodes.paragraph("", "", classes=["objectives-time"])
    said += [nodes.strong("", f"{minutes(count)} minutes"), nodes.Text(" to read without folds")]
    if box["lab"]:
        link = link_to("the lab", f"/{env.metadata[docname]['lab']}", docname)
        said += [nodes.Text(", "), nodes.strong("", str(box["lab"])), nodes.Text(" for "), link]
    said += nodes.Text(". ")
    if isinstance(box[-1], nodes.paragraph):
        said += box.pop().children
    return said


def _open(app, doctree):
    """The opening becomes a part of the page, the objectives first; their minutes are counted."""
    boxes = [node for node in doctree.findall(nodes.container) if "objectives" in node["classes"]]
    for box in boxes:
        box += _time(app.env, app.env.docname, box, read_words(doctree))
        page, title = box.parent, box.parent.first_child_matching_class(nodes.title)
        sections = page.first_child_matching_class(nodes.section)
        follows = page.children[title + 1 : sections]
        follows.sort(key=lambda node: node is not box)
        opening = nodes.container("", classes=["opening"])
        page[title + 1 : sections] = [opening]
        opening += follows


def setup(app):
    app.add_directive("objectives", ObjectivesDirective)
    app.connect("doctree-read", _open)
