"""The rules of English that `make check` holds pages to, and the length of chapters."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from bookkit import words

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def prose():
    spec = spec_from_file_location("prose", ROOT / "tools" / "prose.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STUMBLES = [
    "The shards come in the place of whole tensors.",
    "We have it from the paper.",
    "The test holds the seconds against a measurement.",
    "It works. Who needs the rest, asks for it.",
    "What nobody needs, is freed.",
    "It checks, and who sees a difference raises an error.",
    "Sixteen copies, of which fifteen differ in nothing.",
    "More than half of it stands in no table so far.",
    "A switch that adds while it forwards is no rank.",
    "Beneath all of them lie two calls that are none.",
    "It hardly differs.",
    "A race of PyTorch's ring and ours.",
    "Look what offload takes away.",
    "At its fullest, what has a rank beside its shards?",
    "Two cores: no word about GPUs.",
]
FINE = [
    "The shards replace whole tensors, instead of copying them.",
    "Whoever needs the rest asks for it.",
    "Who needs the rest, and when?",
    "What does a rank hold, once the update is over?",
    "There is no rank that waits, and no table is wrong.",
    "Seven of the eight copies are redundant.",
    "The test compares the seconds with a measurement.",
    "It depends on who sends to whom.",
    "`in the place of` is code here.",
]


@pytest.mark.parametrize("sentence", STUMBLES)
def test_a_stumble_is_found(prose, sentence):
    """In the main line, in a box, in a list, and where a line breaks in the middle of it.

    Must catch: a rule that is lost, or that reads only lines of the main line."""
    broken = sentence.replace(" ", "\n", 1)
    for page in (sentence, f"```{{measured}} a box\n{sentence}\n```\n", f"- {broken}\n"):
        assert prose.stumbles(page), page


@pytest.mark.parametrize("sentence", FINE)
def test_good_english_passes(prose, sentence):
    """Must catch: a rule so wide that it refuses what it asks for."""
    assert prose.stumbles(sentence) == []


def test_code_is_not_prose(prose):
    """Must catch: code, formulas, tables' data or options of a directive read as English; the text
    after such a block lost."""
    bad = STUMBLES[0]
    for page in (
        f"```python\n# {bad}\n```\n",
        f"```{{equation}} a\n{bad}\n```\n",
        f"````{{wild}} names\n```json\n{bad}\n```\n````\n",
        f"```{{shards}} 1\n:ranks: {bad}\n```\n",
    ):
        assert prose.stumbles(page) == []
        assert [line for line, *_ in prose.stumbles(page + bad)] == [page.count("\n") + 1]


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


def test_a_long_chapter_is_an_error(prose, tmp_path, capsys):
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
    assert "over 3,000" in capsys.readouterr().out
    cells = [
        {"cell_type": "markdown", "source": [STUMBLES[0]]},
        {"cell_type": "code", "source": [STUMBLES[0]]},
    ]
    (tmp_path / "labs" / "01.ipynb").write_text(json.dumps({"cells": cells}))
    assert prose.main(tmp_path, {}) == 2
    assert prose.main(tmp_path, {"labs/01.ipynb": 1}) == 1
    assert prose.main(tmp_path, {"labs/01.ipynb": 2}) == 1
    assert "tools/prose.py may say so" in capsys.readouterr().out


def test_a_misspelled_word_is_found(prose):
    """Must catch: code read as words; a kept word reported; a word at the start of a sentence."""
    known = {"teh": "the", "als": "also,"}
    page = "Teh book says teh same, als `teh` does.\n"
    assert [(word, to) for _, word, to in prose.misspelled(page, known)] == [
        ("Teh", "the"),
        ("teh", "the"),
    ]


def test_pages_that_wait_are_there(prose):
    """Must catch: a page that was renamed and leaves its allowance behind."""
    assert set(prose.KNOWN) <= {name for name, _ in prose.pages()}
