"""Sentences of a Markdown file in data/, each with its condition: refusals, advice, assumptions.

    - `gpus % t` gpus: gpus = {gpus} is not a multiple of tensor_parallel = {t}.

A line below a heading has a condition in Python, a name where it needs one, and a sentence, whose
braces are Python as well.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib.resources import files
from types import CodeType
from typing import Any


def data_text(file: str) -> str:
    """The text of a file in data/."""
    return files("coursekit").joinpath("data", file).read_text("utf-8")


def with_values(file: str, heading: str, known: Mapping[str, Any]) -> Iterator[tuple]:
    """(value of the condition, name, sentence) of the lines below a heading whose condition is
    true, by what is known."""
    for condition, name, words in _compiled(file, heading):
        if value := eval(condition, dict(known)):
            yield value, name, eval(words, dict(known))


def sentences(file: str, heading: str, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, sentence) of these lines."""
    return ((name, words) for _, name, words in with_values(file, heading, known))


def first_sentence(file: str, heading: str, known: Mapping[str, Any]) -> str:
    """The sentence of the first condition that holds; empty where none does."""
    return next((words for _, words in sentences(file, heading, known)), "")


@cache
def _compiled(file: str, heading: str) -> list[tuple[CodeType, str, CodeType]]:
    text = data_text(file).partition(f"## {heading}\n")[2]
    text = text.partition("\n## ")[0].replace("\n  ", " ")
    compiled = partial(compile, filename=file, mode="eval")
    found = re.findall(r"(?m)^- `(.+?)`(?: (\w+))?: (.+)", text)
    return [
        (compiled(when), name, compiled(f'f"""{words} """[:-1]')) for when, name, words in found
    ]
