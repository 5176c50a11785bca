"""Changes from one class or function to the next, computed from the source while the book is built.

    ```{source-diff} ../src/coursekit/topics/data_parallelism/ladder.py
    :from: PerTensor
    :to: Bucketed

    What the change does.
    ```

shows the whole of both, line by line: what only the first has, what only the second has, what both
have. ``:from:`` and ``:to:`` name a class, a function, or a method (``Net.forward``) of the file,
as ``:pyobject:`` of literalinclude does; ``:into:`` names another file, in which ``:to:`` is looked
for. What goes is marked - and what comes is marked +, so that nothing hangs on a colour; long lines
break, so that nothing is cut off on a phone. A name that the file lacks, or two that are equal, is
a warning, which stops the build. A change in the file makes the page stale.
"""

import ast
import re
from difflib import SequenceMatcher
from html import escape
from pathlib import Path
from textwrap import dedent

from docutils import nodes
from docutils.parsers.rst import directives
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx.util.docutils import SphinxDirective

from bookkit.cards import add_files, add_node, warn

SIGNS = {"both": " ", "out": "\N{MINUS SIGN}", "in": "+"}


class source_diff(nodes.General, nodes.Element):
    """A diff in a page: `lines` are pairs (a key of SIGNS, HTML of a line), `label` says it in
    words."""


def source_of(code, name):
    """The source of a class, function or method of that name, decorators included, moved to the
    left; ValueError if there is none."""
    place = ast.parse(code)
    for part in name.split("."):
        place = next(
            (node for node in getattr(place, "body", []) if getattr(node, "name", None) == part),
            None,
        )
        if place is None:
            raise ValueError(f"there is no class, function or method {name}.")
    first = min([place.lineno, *(decorator.lineno for decorator in place.decorator_list)])
    return dedent("\n".join(code.splitlines()[first - 1 : place.end_lineno]))


def compare(before, after):
    """Pairs (a key of SIGNS, line number in its text) of the diff from one text to the other, what
    goes before what comes."""
    ours, theirs = before.splitlines(), after.splitlines()
    if ours == theirs:
        raise ValueError("the two are equal.")
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for _, first, last, start, end in matcher.get_opcodes():
        if ours[first:last] == theirs[start:end]:
            yield from (("both", number) for number in range(start, end))
        else:
            yield from (("out", number) for number in range(first, last))
            yield from (("in", number) for number in range(start, end))


def coloured(text):
    """Each line of Python as HTML, its indent in front of every element. What spans lines, such as
    a docstring, is closed at the end of each."""
    html = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    lines = html.removesuffix("\n").split("\n")
    return [re.sub(r"^((?:<[^>]*>)+)( +)", r"\2\1", line) for line in lines]


def diff(code, before, after, other=None):
    """(lines, words) of a source_diff from the one name to the other, which may be in other
    code."""
    texts = [source_of(code, before), source_of(code if other is None else other, after)]
    pairs = list(compare(*texts))
    old, new = map(coloured, texts)
    count = {kind: sum(one == kind for one, _ in pairs) for kind in SIGNS}
    words = (
        f"{count['out']} line{'s' * (count['out'] != 1)} out, {count['in']} in, {count['both']} as"
        " before"
    )
    return [(kind, old[number] if kind == "out" else new[number]) for kind, number in pairs], words


class SourceDiffDirective(SphinxDirective):
    required_arguments = 1
    has_content = True
    option_spec = dict.fromkeys(("from", "to", "into"), directives.unchanged_required)

    def run(self):
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        before, after = self.options.get("from", ""), self.options.get("to", "")
        _, into = self.env.relfn2path(self.options.get("into", self.arguments[0]))
        self.env.note_dependency(into)
        try:
            first, second = (Path(file).read_text(encoding="utf-8") for file in (path, into))
            lines, words = diff(first, before, after, second)
        except (OSError, SyntaxError, ValueError) as error:
            said = f"source-diff {self.arguments[0]}, {before!r} to {after!r}: {error}"
            warn(self.get_location(), "diff", said)
            return []
        caption = nodes.container(classes=["source-diff-caption"])
        names = before, after
        if path != into:
            names = f"{Path(path).name}: {before}", f"{Path(into).name}: {after}"
        counted = nodes.inline(words, f" \N{EN DASH} {words}", classes=["source-diff-count"])
        first, second = (nodes.literal(name, name) for name in names)
        arrow = nodes.Text(" \N{RIGHTWARDS ARROW} ")
        caption += nodes.paragraph("", "", first, arrow, second, counted)
        self.state.nested_parse(self.content, self.content_offset, caption)
        node = source_diff(lines=lines, label=f"From {names[0]} to {names[1]}: {words}")
        self.set_source_info(node)
        return [nodes.container("", caption, node, classes=["source-diff"])]


def _html(node, builder):
    """A row for each line: sign and indent, then the rest, which goes on below itself where it
    breaks."""
    rows = []
    for kind, line in node["lines"]:
        tag = {"both": "span", "out": "del", "in": "ins"}[kind]
        indent = len(line) - len(line.lstrip(" "))
        # No classes: there are hundreds of lines on a page. The style sheet goes by place.
        rows.append(
            f"<{tag}><span><span>{SIGNS[kind]}</span>"
            f" {' ' * indent}</span><span>{line[indent:]}</span>\n</{tag}>"
        )
    label = escape(node["label"])
    return (
        '<div class="highlight-diff"><div class="highlight"><pre role="group"'
        f' aria-label="{label}">' + "".join(rows) + "</pre></div></div>\n"
    )


def setup(app):
    add_node(app, source_diff, _html)
    app.add_directive("source-diff", SourceDiffDirective)
    add_files(app, source_diff, {"diff.css": 811})
