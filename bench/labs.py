"""How much of a lab is given, and how much a learner writes: lines of code that are neither blank
nor a comment."""

from collections import Counter
from pathlib import Path

import nbformat

from bookkit.learner import has_tag
from shardlab.measure.races import Result

MOST_GIVEN = 100  # lines of a lab, blanks included; the install cell is the same in every lab


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
    """Of each lab: lines given, lines written, cells before the first picture."""
    results = []
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        given, written = lines_of_lab(notebook)
        name = path.stem
        results += [
            Result("labs", f"{name}: lines given", given, "lines", MOST_GIVEN),
            Result("labs", f"{name}: lines written by the learner", written, "lines"),
            Result("labs", f"{name}: lines before the first picture", before(notebook), "lines"),
        ]
    return results


def before(notebook) -> int:
    """Lines of code up to the first cell that shows a picture, that cell included; all lines where
    there is none."""
    lines = 0
    for cell in notebook.cells:
        if cell.cell_type != "code" or has_tag(cell, "install") or has_tag(cell, "solution"):
            continue
        lines += len(code_lines(cell.source))
        shown = [kind for output in cell.outputs for kind in output.get("data", {})]
        if any("plotly" in kind or "widget" in kind for kind in shown):
            break
    return lines
