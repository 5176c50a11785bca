"""How much of a lab is given, and how much a learner writes: lines of code that are neither blank
nor a comment; and when the first picture comes.

Minutes are an estimate: so many words and lines are read a minute, so many written, and a
prediction is thought about. Of what is folded (the install cell, solutions) nobody reads a line.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import nbformat

from bench.answers import NAMED, answers, shares
from bookkit.learner import has_tag
from coursekit.recordings.races import Result

MOST_GIVEN = 220  # lines of a lab, exercises included; the install cell is the same in every lab
WORDS_A_MINUTE, LINES_READ_A_MINUTE = 200, 20  # of prose; of code that one must understand
MINUTES_A_LINE, MINUTES_A_PREDICTION = 0.5, 0.5  # a line that one writes; a number that one locks
MOST_MINUTES = 10  # to the first picture


def code_lines(source: str) -> list[str]:
    """The lines of a cell that are neither blank nor a comment."""
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def lines_of_lab(notebook) -> tuple[int, int]:
    """(lines given to a learner, lines that a learner writes: those of the solutions that the lab
    has not given)."""
    given, solved = [], []
    for cell in notebook.cells:
        if cell.cell_type == "code" and not has_tag(cell, "install"):
            (solved if has_tag(cell, "solution") else given).extend(code_lines(cell.source))
    return len(given), (Counter(solved) - Counter(given)).total()


def measure_labs(folder: Path) -> list[Result]:
    """Lines of each lab: those given, those written, and those before the first picture."""
    results = []
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        given, written = lines_of_lab(notebook)
        name = path.stem
        results += [
            Result("labs", f"{name}: lines given", given, "lines", MOST_GIVEN),
            Result("labs", f"{name}: lines written by the learner", written, "lines"),
            Result(
                "labs",
                f"{name}: minutes to the first picture",
                round(minutes_to_picture(notebook), 1),
                "minutes",
                MOST_MINUTES,
                note=before_in_words(notebook),
            ),
        ]
    return results + measure_answers()


def measure_answers() -> list[Result]:
    """The sentences of the checks for answers that plausible learners give."""
    found = shares(answers())
    unnamed = 100 * (1 - found.named / found.wrong)
    return [
        Result(
            "labs",
            "wrong answers that do not hear their misconception",
            round(unnamed, 1),
            "%",
            round(100 * (1 - NAMED)),
            note=f"{found.wrong - found.named} of {found.wrong}",
        ),
        Result(
            "labs", "wrong answers that are called right", len(found.called_right), "answers", 0
        ),
        Result(
            "labs",
            "right answers that are refused",
            len(found.refused),
            "answers",
            0,
            note=f"of {found.right}",
        ),
    ]


class Before(NamedTuple):
    """The lines that a learner reads and writes up to the first picture."""

    words: int
    lines_read: int
    lines_written: int
    predictions: int


def before(notebook) -> Before:
    """Up to the first cell that shows a picture, that cell included; everything where there is
    none. A picture that a solution shows is the learner's own: its blank shows it when right."""
    words = read = written = predictions = 0
    blank: list[str] = []
    for cell in notebook.cells:
        solution = has_tag(cell, "solution")
        if cell.cell_type != "code":
            words += 0 if solution else len(cell.source.split())
            continue
        if has_tag(cell, "install"):
            continue
        lines = code_lines(cell.source)
        if solution:
            written += (Counter(lines) - Counter(blank)).total()
        elif not has_tag(cell, "hide-input"):
            read += len(lines)
            blank = lines
        predictions += has_tag(cell, "predict")
        shown = [kind for output in cell.outputs for kind in output.get("data", {})]
        if any("plotly" in kind or "widget" in kind for kind in shown):
            break
    return Before(words, read, written, predictions)


def minutes_to_picture(notebook) -> float:
    """Minutes to read up to the first picture, by the rates above."""
    found = before(notebook)
    return (
        found.words / WORDS_A_MINUTE
        + found.lines_read / LINES_READ_A_MINUTE
        + found.lines_written * MINUTES_A_LINE
        + found.predictions * MINUTES_A_PREDICTION
    )


def before_in_words(notebook) -> str:
    found = before(notebook)
    return (
        f"{found.words} words, {found.lines_read} lines read, {found.lines_written} written,"
        f" {found.predictions} predictions"
    )
