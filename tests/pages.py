"""Chapters and pictures of the book, as text."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def chapter(name: str) -> str:
    return (ROOT / "chapters" / f"{name}.md").read_text("utf-8")


def words(svg: str) -> str:
    """The texts of a picture, with bars between."""
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
