"""From page to page: each page's question, the way to its lab and back, labs by number."""

import re
from pathlib import Path
from types import SimpleNamespace

from bookkit.lab_pages import numbered
from bookkit.ways import labs_of_chapters, onward, question_of, summary

ROOT = Path(__file__).resolve().parents[2]
ENV = SimpleNamespace(
    found_docs={"chapters/a", "chapters/b", "labs/01-a"},
    metadata={
        "chapters/a": dict(lab="labs/01-a", question="Why?"),
        "chapters/b": dict(lab="labs/9"),
    },
)


def test_every_question_of_the_front_page_is_asked_by_a_page():
    """Must catch: a page renamed, a question taken off a page that the front page shows; a page of
    the contents that the front page leaves out."""
    asked = re.findall(r"\{question\}`([\w-]+)`", (ROOT / "index.md").read_text("utf-8"))
    assert all(question_of(ROOT / "chapters" / f"{name}.md").endswith("?") for name in asked)
    contents = (ROOT / "_toc.yml").read_text("utf-8").partition("caption: Labs")[0]
    assert asked == re.findall(r"file: chapters/(\S+)", contents)


def test_a_chapter_leads_to_its_lab_and_back():
    """Must catch: a lab that is not in the book; a way from a page that has none."""
    assert labs_of_chapters(ENV) == {"labs/01-a": "chapters/a"}
    assert (
        onward(ENV, "chapters/a")[1] == "labs/01-a" and onward(ENV, "labs/01-a")[1] == "chapters/a"
    )
    assert onward(ENV, "chapters/b") is None
    assert summary(ENV, "labs/01-a") == summary(ENV, "chapters/a") == "Why?"
    assert summary(ENV, "chapters/b") == ""


def test_a_lab_begins_with_its_number():
    """Must catch: 05; a number inside the text; a notebook without a number."""
    lab = lambda: {"cells": [{"source": ["# Four ranks\n", "Text, # no title"]}]}
    assert numbered(lab(), "05-data")["cells"][0]["source"].startswith(
        "# Lab 5. Four ranks\nText, #"
    )
    assert numbered(lab(), "pretended") == lab()
