"""Search that works from a disk: the text of all pages in one script, `_static/search-text.js`.

Sphinx's own index knows on which page a word stands and not where; its lines of text are fetched
from the pages, which a file may not do. Here every section of every page is in the index with its
paragraphs, and ``static/search.js`` looks in them: hits in titles first, then those in headings,
then those in the text, each with the line around it. The names that one thing has, such as *MoE*
and *mixture of experts*, are a table in that script.
"""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from bookkit.cards import after_pages
from bookkit.offline import looked_at

TEXT = "search-text.js"
# Ends a line of what is searched.
BLOCKS = {
    "p", "li", "tr", "dt", "dd", "figcaption", "caption", "pre", "summary", "div", "table", "ul",
    "ol", "dl", "figure", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6",
}  # fmt: skip
NAME = re.compile(r"[^\W\d]\w+")
DOTTED = re.compile(r"[^\W\d][\w.]*\w")  # a name with the names that it belongs to
HEADINGS = {"h1", "h2", "h3", "h4", "dt"}
VOID = {"br", "hr", "img", "input", "meta", "link", "wbr", "source", "col"}
# Left out of the search: drawings, scripts, equations, where a formula comes from, all of an
# explorer but its title, text that another page has first; of a lab its outputs, solutions and the
# cells that install and import; a facilitator's card, which has every answer; solutions that are
# folded. Of code a line stays if it has a name that is new to the page, of a lab's code that name.
SKIPPED_TAGS = {"script", "style", "svg", "noscript", "button", "select", "label"}
SKIPPED = {
    "headerlink", "math-block", "explorer-fallback", "explorer-controls", "explorer-menus",
    "explorer-foot", "explorer-picture", "explorer-words", "lab-links", "box-label",
    "formula-facts", "collapsed", "expanded", "unseen", "trace-card",
    "said-elsewhere", "highlight-diff",
    "cell_output", "tag_install", "tag_setup", "tag_solution", "facilitator-card",
}  # fmt: skip


class _Sections(HTMLParser):
    """The sections of a page: [[anchor, heading, lines of text], ...]; the first has the title."""

    def __init__(self):
        super().__init__()
        self.found = [["", "", []]]
        self.open, self.line = [], ""
        self.said = set()  # names of the lines so far
        # depths at which the article, what is left out, and code of a cell begin
        self.inside = self.skipped = self.cell = 0

    def handle_starttag(self, tag, attributes):
        if tag in VOID:
            self.line += " "
            return
        given = dict(attributes)
        classes = set((given.get("class") or "").split())
        self.open.append(tag)
        if tag == "article":
            self.inside = len(self.open)
        if not self.inside or self.skipped:
            return
        if tag in SKIPPED_TAGS or classes & SKIPPED:
            self.skipped = len(self.open)
            return
        if "cell_input" in classes:
            self.cell = len(self.open)
        if tag in BLOCKS and "tr" not in self.open[:-1]:
            self.end_line()
        anchor = given.get("id", "")
        begins = tag == "section" or tag == "dt" or "formula" in classes
        if anchor and begins:
            first = len(self.found) == 1 and not self.found[0][1]
            if not first or tag != "section":  # the first is the page
                self.found.append([anchor, "", []])

    def handle_endtag(self, tag):
        if tag not in self.open:
            return
        while self.open.pop() != tag:  # a paragraph may end without a tag
            pass
        if self.skipped:
            self.skipped *= len(self.open) >= self.skipped
            return
        if self.inside and tag in ("td", "th"):
            self.line += " · "
        if tag == "summary" and self.line.strip() == "Solution":
            self.line, self.skipped = "", len(self.open)
            return
        if self.inside and tag in BLOCKS and "tr" not in self.open:
            self.end_line(heading=tag in HEADINGS, code=tag == "pre")
        self.inside *= len(self.open) >= self.inside
        self.cell *= len(self.open) >= self.cell

    def handle_data(self, data):
        if not self.inside or self.skipped:
            return
        if "pre" in self.open:
            *ended, data = data.split("\n")
            for line in ended:
                self.line += line
                self.end_line(code=True)
        self.line += data

    def end_line(self, heading=False, code=False):
        line, self.line = " ".join(self.line.split()).strip(" ·"), ""
        if not line:
            return
        section = self.found[-1]
        names = set(NAME.findall(line))
        if code and names <= self.said:
            return
        if code and self.cell:
            new = [word for word in DOTTED.findall(line) if set(NAME.findall(word)) - self.said]
            line = " ".join(dict.fromkeys(new))
        self.said |= names
        if heading and not section[1]:
            section[1] = line
        elif section[0].startswith("formula-") and not section[1]:
            section[1], _, line = line.partition(" – ")
            section[2].append(line)
        else:
            section[2].append(line)


def sections(page: str) -> list:
    """The parts of a page, given as HTML, that a search reads."""
    parser = _Sections()
    parser.feed(page)
    return [[anchor, head, "\n".join(text)] for anchor, head, text in parser.found if head or text]


def rank(env, docname: str) -> int:
    """Which of two pages with like hits comes first: chapters and the glossary, labs, the rest."""
    asks = "question" in env.metadata.get(docname, {})  # as chapters do
    return 0 if asks or docname.endswith("glossary") else 1 if docname.startswith("labs/") else 2


def _keep_the_page(app, config):
    config.html_additional_pages = {**config.html_additional_pages, "search": "search.html"}


def _leave_out_the_index(app):
    app.builder.search = False  # Sphinx's own


def _write_text(app, output):
    (output / "searchindex.js").unlink(missing_ok=True)  # of a build with Sphinx's search
    found = looked_at(output, Path(app.doctreedir) / "search.json", sections)
    pages = [
        [f"{name}.html", rank(app.env, name), found[f"{name}.html"]]
        for name in app.builder.relations  # in the order of the contents
        if f"{name}.html" in found
    ]
    text = json.dumps(pages, ensure_ascii=False, separators=(",", ":"))
    (output / "_static" / TEXT).write_text(f"BOOK_TEXT={text};\n", encoding="utf-8")


def setup(app):
    app.connect("config-inited", _keep_the_page)
    app.connect("builder-inited", _leave_out_the_index)
    after_pages(app, _write_text, priority=870)  # before offline.py tidies up
