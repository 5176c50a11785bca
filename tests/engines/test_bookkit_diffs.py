"""Diffs out of the source: what is shown stands there, it says what goes and what comes, and a
wrong name stops the build."""

import re
from html import unescape

import pytest
from small_books import builder
from told import from_told

from bookkit.diffs import coloured, compare, source_of

CODE = '''
import abc


class First:
    """Sums a < b,
    one by one."""

    def end(self):
        for one in self.all:
            send(one)
        return True


@abc.decorated
class Second:
    """Sums a < b,
    in groups."""

    def end(self):
        for group in self.groups:
            send(group)
        return True


def alone():
    pass
'''
PAGE = """# Page

```{source-diff} code/steps.py
:from: First
:to: Second

Only the *loop* changes.
```
"""


@pytest.fixture
def build(tmp_path):
    """build(page, code) -> (HTML of the page, warnings); a second call goes on from the first, as
    `make book` does."""
    build_it = builder(tmp_path, "diffs", fresh=False)

    def build_page(page, code=CODE):
        pages, warnings = build_it(**{"code/steps.py": code, "index": page})
        return pages["index"], warnings

    return build_page


def shown(html):
    """The lines of a page's diff as text, each with its sign, and the tag that holds it."""
    rows = re.findall(r"<(span|del|ins)>(<span><span>.*?)\n</\1>", html, re.DOTALL)
    return [(tag, unescape(re.sub(r"<[^>]*>", "", row))) for tag, row in rows]


def test_the_page_shows_both_whole(build):
    """Mutations: a decorator or the last line left out; `<` unescaped; a line that both have shown
    twice; the indent lost when elements are put behind it; the two texts exchanged, or lines of one
    change shuffled; a page that does not depend on the file."""
    html, warnings = build(PAGE)
    assert not warnings
    rows = shown(html)
    for name, tags in (("First", ("span", "del")), ("Second", ("span", "ins"))):
        assert "\n".join(row[2:] for tag, row in rows if tag in tags) == source_of(CODE, name)
    signs = {"span": " ", "del": "\N{MINUS SIGN}", "ins": "+"}
    assert {(tag, row[0]) for tag, row in rows} == set(signs.items())
    assert "Only the <em>loop</em> changes." in html
    assert 'aria-label="From First to Second: 4 lines out, 5 in, 4 as before"' in html
    changed = [(tag, row[1:].strip()) for tag, row in rows if "send" in row or "for" in row]
    assert changed == [
        ("del", "for one in self.all:"),
        ("del", "send(one)"),
        ("ins", "for group in self.groups:"),
        ("ins", "send(group)"),
    ]
    html, _ = build(PAGE, CODE.replace("send(group)", "send_all(group)"))
    assert "send_all" in html


def test_long_texts_are_compared_line_by_line():
    """Mutation: difflib's guess that a line which stands often is noise: all blank lines of a class
    would count as changed."""
    before, after = ("\n".join(f"{letter}{number}\n" for number in range(150)) for letter in "ab")
    assert [kind for kind, _ in compare(before, after)].count("both") == 149


def test_each_line_stands_alone():
    """A text over several lines is closed at the end of each. Mutation: the whole coloured in one
    piece and cut."""
    for line in coloured(source_of(CODE, "First")):
        assert line.count("<span") == line.count("</span>")
        assert not re.match(r"<[^>]*> ", line)


@from_told("change, sentence")
def test_what_cannot_be_compared_stops_the_build(build, change, sentence):
    """A warning with page and line; the build takes warnings for errors. Mutation: an empty diff in
    silence."""
    html, warnings = build(PAGE.replace(*change))
    assert sentence in warnings and "index.md:3" in warnings and "highlight-diff" not in html


def test_another_file(build, tmp_path):
    """Mutation: the page does not depend on the second file, or `:to:` is looked for in the
    first."""
    _, warnings = build(PAGE.replace(":to: Second", ":to: Second\n:into: code/other.py"))
    assert "No such file" in warnings
    (tmp_path / "source" / "code" / "other.py").write_text("class First:\n    pass\n", "utf-8")
    html, warnings = build(PAGE.replace(":to: Second", ":into: code/other.py\n:to: First"))
    assert not warnings and 'aria-label="From steps.py: First to other.py: First' in html
