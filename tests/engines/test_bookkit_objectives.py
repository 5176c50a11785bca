"""The opening of a chapter: objectives, and minutes that are counted."""

import re

import pytest
from small_books import builder

from bookkit.objectives import minutes

PAGE = """---
lab: lab
---
# One

A question.

:::{objectives}
:lab: 60

- add.

It runs anywhere.
:::

## First

%s
"""


@pytest.mark.parametrize(
    "count, said", [(0, 5), (1000, 5), (1001, 10), (5000, 25), (5001, 30)], ids=str
)
def test_minutes(count, said):
    """Must catch: minutes that are rounded down; another pace than 200 words a minute."""
    assert minutes(count) == said


def test_the_opening(tmp_path):
    """Must catch: code, tables or answers that nobody counts; folded text that is counted;
    objectives after the first section, or after what stands beside them."""
    # 400 words of text with symbols, 400 in a table, 400 of code, and ten times as many folded
    body = [
        "word $x$ " * 200,
        "| a |\n|:--|\n" + "| word |\n" * 399,
        "```python\n" + "name = 1\n" * 200 + "```",
        ":::{dropdown} Why\n" + "word " * 4000 + "\n:::",
    ]
    contents = "parts:\n  - numbered: 1\n    chapters:\n      - file: index\n"
    build = builder(tmp_path, "objectives", more_extensions=["sphinx_design"])
    pages = {"_toc.yml": contents, "index": PAGE % "\n\n".join(body), "lab": "# A lab\n"}
    page = build(**pages)[0]["index"]
    opening = re.search(r'<div class="opening.*?(?=<section)', page, re.DOTALL)[0]
    words = " ".join(re.sub(r"<[^>]+>", " ", opening).split())
    assert words == (
        "After this chapter you can add. 10 minutes to read, 60 for the lab . It runs anywhere."
        " A question."
    )
    assert 'href="lab.html"' in opening
