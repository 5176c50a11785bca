"""Words with a definition: what a link to the glossary says when a reader points at it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document

from bookkit import glossary

ROOT = Path(__file__).resolve().parents[2]
PAGE = """# Glossary

```{glossary}
rank
  One process, and *its*
  number.

model states
  {number}`bytes(a=1)` of [these](notation.md).
```

Between.

```{glossary}
NCCL
  A `library_of` _collectives_.
```
"""


def link(term, anchor):
    """The node that Sphinx makes of a term: a reference around its words."""
    inside = nodes.inline("", term, classes=["xref", "std", "std-term"])
    return nodes.reference("", "", inside, refuri=f"glossary.html#{anchor}", internal=True)


def test_definitions_are_read():
    """Must catch: a definition of two lines cut, markup in a tooltip, code left out of it or
    without its underscores, a second glossary of the page not read."""
    assert glossary.definitions(PAGE) == {
        "rank": "One process, and its number.",
        "model states": "0 of these.",
        "NCCL": "A library_of collectives.",
    }


def test_lines_of_a_definition_are_indented_equally():
    """Must catch: "  local rank" below a first line of four spaces, of which Sphinx prints "ocal
    rank"."""
    with pytest.raises(ValueError, match="rank: indent all lines"):
        glossary.definitions(
            "```{glossary}\nrank\n    One process.\n  *Local rank* is a number.\n```\n"
        )


def test_a_term_shows_its_definition(tmp_path):
    """Must catch: a term of two words or in capitals without its definition; a link that is no term
    given one."""
    (tmp_path / "chapters").mkdir()
    (tmp_path / "chapters" / "glossary.md").write_text(PAGE)
    page = new_document("page")
    other = nodes.reference("", "rank", refuri="glossary.html#term-rank")
    terms = [link("ranks", "term-rank"), link("states", "term-model-states")]
    terms.append(link("NCCL", "term-NCCL"))
    page += [*terms, other]
    glossary._explain(SimpleNamespace(srcdir=tmp_path), page, "page")
    shown = [term["reftitle"] for term in terms]
    assert shown == ["One process, and its number.", "0 of these.", "A library_of collectives."]
    assert "reftitle" not in other


def test_a_book_without_a_glossary(tmp_path):
    """Must catch: a small book, such as those of the tests, that no longer builds."""
    glossary._explain(SimpleNamespace(srcdir=tmp_path), new_document("page"), "page")


def test_definitions_fit_a_tooltip():
    """Must catch: a definition cut off in the book; a word that no chapter links."""
    known = glossary.definitions((ROOT / f"{glossary.PAGE}.md").read_text("utf-8"))
    assert len(known) > 20 and max(map(len, known.values())) <= glossary.LONGEST
    chapters = "".join(page.read_text("utf-8") for page in (ROOT / "chapters").glob("*.md"))
    linked = re.findall(r"\{term\}`(?:[^`<]*<)?([^`>]+)>?`", chapters)
    assert {"rank", "node", "group", "shard", "collective", "NCCL", "gloo"} <= set(linked)
    assert set(linked) <= set(known)
