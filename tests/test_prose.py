"""The rules of English that `make check` holds pages to, and the length of chapters."""

import prose
import pytest
from pages import ROOT

from bookkit import words

STUMBLES, FINE = (
    [line[2:] for line in part.splitlines() if line.startswith("- ")]
    for part in (ROOT / "tests" / "stumbles.md").read_text("utf-8").split("\n## ")[1:]
)


@pytest.mark.parametrize("sentence", STUMBLES)
def test_a_stumble_is_found(sentence):
    """In the main line, in a box, in a list, and where a line breaks in the middle of it.

    Must catch: a rule that is lost, or that reads only lines of the main line."""
    broken = sentence.replace(" ", "\n", 1)
    for page in (sentence, f"```{{measured}} a box\n{sentence}\n```\n", f"- {broken}\n"):
        assert prose.stumbles(page), page


@pytest.mark.parametrize("sentence", FINE)
def test_good_english_passes(sentence):
    """Must catch: a rule so wide that it refuses what it asks for."""
    assert prose.stumbles(sentence) == []


def test_code_is_not_prose():
    """Must catch: code, formulas, tables' data or options of a directive read as English; the text
    after such a block lost."""
    bad = STUMBLES[0]
    for page in (
        f"```python\n# {bad}\n```\n",
        f"```{{equation}} a\n{bad}\n```\n",
        f"````{{wild}} names\n```json\n{bad}\n```\n````\n",
        f"```{{objectives}}\n:lab: {bad}\n```\n",
    ):
        assert prose.stumbles(page) == []
        assert [line for line, *_ in prose.stumbles(page + bad)] == [page.count("\n") + 1]


CODE = {
    "a docstring": (2, 'def f():\n    """One line.\n\n    {0}\n    """\n'),
    "a comment": (2, "x = 1\n# {0}\ny = 2\n"),
    "a message": (4, 'x = 1\n\nraise ValueError(\n    "No: {0}"\n    f" Not {{x}}."\n)\n'),
}


@pytest.mark.parametrize("what", CODE)
@pytest.mark.parametrize("sentence", STUMBLES)
def test_code_says_it_in_english_too(tmp_path, capsys, what, sentence):
    """Docstrings, comments and messages, also cut over two lines or two strings.

    Must catch: one of the three not read; a sentence read in halves; the wrong line named."""
    line, code = CODE[what]
    one, two = sentence.rsplit(" ", 1)
    joined = {"a docstring": "\n    ", "a comment": "\n# ", "a message": ' "\n    "'}[what]
    (tmp_path / "src").mkdir()
    (tmp_path / "_toc.yml").write_text("parts:\n")
    for text in (sentence, one + joined + two):
        (tmp_path / "src" / "a.py").write_text(code.format(text))
        found = dict(prose.files(tmp_path))["src/a.py"]
        read = [said for lines in found for said in prose.sentences(lines)]
        assert prose.broken(read), code.format(text)
        assert prose.main(tmp_path, {}) == 1
    assert f"src/a.py:{line}:" in capsys.readouterr().out


BEGINNINGS = (
    "Of each rank, ",
    "What a rank has: ",
    "Not so on a GPU, ",
    "The same for ",
    "Also if ",
)


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_a_docstring_begins_with_its_subject(tmp_path, capsys, begin):
    """Must catch: a docstring or a message of an error not read, or a line lost; a question, a
    comment or another string taken for one."""
    (tmp_path / "src").mkdir()
    (tmp_path / "_toc.yml").write_text("parts:\n")
    file = tmp_path / "src" / "a.py"
    for line, code in (
        (1, '"""%sbytes."""\n'),
        (2, 'class A:\n    """%sbytes\n    and tensors.\n    """\n'),
        (2, 'def f():\n    r"""%sbytes."""\n'),
        (4, 'def f():\n    """Bytes."""\n    raise ValueError(\n        f"%s{x} bytes"\n    )\n'),
    ):
        file.write_text(code % begin)
        assert prose.main(tmp_path, {}) == 1
        assert f"src/a.py:{line}: {begin.split(' ')[0]!r}"[:-1] in capsys.readouterr().out
    file.write_text(f'"""What does a rank hold?"""\n# {begin}\nx = "{begin}"\nf("""{begin}""")\n')
    assert prose.main(tmp_path, {}) == 0


def test_only_english_is_read_in_code(tmp_path):
    """Must catch: code in a docstring, a name, a short string or what an f-string fills in read as
    English; two strings of different calls, or the cells of a table, read as one sentence."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text(
        '''"""Runs them.

    race(ours, theirs)  # ours is no rank

Then it ends with what is none of them.

ours_too | our | a name that stands in the
table | of | others
"""
WAYS = {"ours": 1, 'theirs': "place of"}
said("it is what it is, and", f"{ours and not theirs} or it")
said("no rank of it waits")
'''
    )
    for lines in dict(prose.files(tmp_path)).values():
        assert prose.broken(s for paragraph in lines for s in prose.sentences(paragraph)) == []


def test_the_main_line_is_counted():
    """Must catch: a box, a fold, a caption, a table, a formula or the header counted; a number out
    of a formula or a link not counted as its words."""
    page = """---
lab: labs/01
---
# One two

Three {number}`peak(a=1) as exact` five [six seven](there.md#x) $x + y$ nine. {cite}`somebody2020`

| a table | here |
|:--|--:|

:::{dropdown} Folded
Not counted.
:::

```{predict}
Nor is this.
```

$$ a = b $$

1. ten
- `eleven()`
"""
    assert words.main_line_words(page) == 11


def test_a_long_chapter_is_an_error(tmp_path, capsys):
    """Must catch: the limit not looked at; a page that is not a chapter taken for one; a lab's text
    cells not read; a page that got worse than it was."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "labs").mkdir()
    (tmp_path / "_toc.yml").write_text(
        "parts:\n  - caption: Walls\n    numbered: 1\n    chapters:\n      - file: chapters/one\n"
        "        sections:\n          - file: chapters/within\n"
        "  - caption: Reference\n    chapters:\n      - file: chapters/notation\n"
    )
    for name, count in {"one": words.MOST, "within": 4000, "notation": 4000}.items():
        (tmp_path / "chapters" / f"{name}.md").write_text("word " * count)
    assert prose.main(tmp_path, {}) == 0
    (tmp_path / "chapters" / "one.md").write_text("word " * (words.MOST + 1))
    assert prose.main(tmp_path, {}) == 1
    assert f"over {words.MOST:,}" in capsys.readouterr().out
    code = f"```{{code-cell}}\n:tags: [core]\n\n# {STUMBLES[0]}\n```\n"
    (tmp_path / "labs" / "01.md").write_text(f"{STUMBLES[0]}\n\n+++ {{}}\n\n{code}")
    assert prose.main(tmp_path, {}) == 2
    assert prose.main(tmp_path, {"labs/01.md": 1}) == 1
    assert prose.main(tmp_path, {"labs/01.md": 2}) == 1
    assert "tools/prose.py may say so" in capsys.readouterr().out


def test_pages_that_wait_are_there():
    """Must catch: a page that was renamed and leaves its allowance behind."""
    assert set(prose.KNOWN) <= {name for name, _ in prose.pages()}
