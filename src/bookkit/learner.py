"""The learner's edition of a lab: no solutions, no guesses, no outputs, and a first cell that can
install shardlab.

In a cell tagged `predict` a line ``my_bytes = 1_000  # what it is`` holds a guess; the learner
                                                      # finds ``...`` there. The stored lab is the
                                                      # solved edition, with the outputs of a real
                                                      # run; that one is shown in the book. What the
                                                      # buttons give
is made from it while the book is built.
"""

import json
import re
from pathlib import Path

import nbformat

# The cell tagged `install` of every lab, word for word (a test holds them together). In the stored
# lab SHARDLAB is empty; the learner's edition names the repository there, where the book knows it.
INSTALL_LINE = 'SHARDLAB = ""'
INSTALL_CELL = f"""\
# Install shardlab where it is missing, as on Colab:
# from its wheel, if that lies beside this notebook.
import importlib.util, pathlib, subprocess, sys

{INSTALL_LINE}  # filled in where the book knows its repository
if importlib.util.find_spec("shardlab") is None:
    wheels = sorted(pathlib.Path.cwd().glob("shardlab-*.whl"))
    source = str(wheels[-1]) if wheels else SHARDLAB
    if not source:
        raise ModuleNotFoundError(
            "shardlab is not installed. This lab's page in the book offers its wheel: "
            "upload that beside this notebook, then run this cell again.")
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, source], check=True)
    importlib.invalidate_caches()"""

GUESS = re.compile(r"^(my_\w+ = )[^#\n]*?(?= *(?:#.*)?$)", re.MULTILINE)


def has_tag(cell, tag: str) -> bool:
    return tag in cell.get("metadata", {}).get("tags", [])


def learner_edition(notebook: nbformat.NotebookNode, requirement: str) -> nbformat.NotebookNode:
    """A new notebook without solutions, guesses and outputs; `requirement` (may be "") where the
    install cell looks.

    `requirement` is what pip is to install, such as ``shardlab @
    git+https://github.com/you/your-book@main``.
    """
    edition = nbformat.from_dict(notebook)
    edition.cells = [cell for cell in edition.cells if not has_tag(cell, "solution")]
    for cell in edition.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if has_tag(cell, "predict"):
            cell.source = GUESS.sub(r"\1...", cell.source)
        if has_tag(cell, "install"):
            cell.source = cell.source.replace(INSTALL_LINE, f'SHARDLAB = "{requirement}"')
        if has_tag(cell, "hide-input"):
            fold(cell)
    return edition


def fold(cell: nbformat.NotebookNode) -> None:
    """Fold a cell's code in the front ends that open a lab, in place: JupyterLab and VS Code look
    for source_hidden, Colab for a form with a title. The book looks for the tag hide-input."""
    title = "Install shardlab" if has_tag(cell, "install") else "Set up this lab"
    cell.source = f"# @title {title}: run this cell\n{cell.source}"
    cell.metadata["jupyter"] = {"source_hidden": True}
    cell.metadata["cellView"] = "form"


def write_learner_edition(source: Path, target: Path, requirement: str) -> str:
    """Read the stored lab `source`, write its learner's edition to `target`; return the text
    written."""
    edition = learner_edition(nbformat.read(source, as_version=4), requirement)
    # Compact, because the lab's page carries it; nbformat's own writer always indents.
    text = (
        json.dumps(json.loads(nbformat.writes(edition)), separators=(",", ":"), ensure_ascii=False)
        + "\n"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return text
