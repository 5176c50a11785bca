"""The learner's edition of a lab: no solutions, no guesses, no outputs, a first cell that can
install shardlab, and a GPU on Colab where the lab has parts that need one.

In a cell tagged `predict` a line ``my_bytes = 1_000  # what it is`` holds a guess; the learner
finds ``...`` there. The stored lab is the solved edition, with the outputs of a real run; the book
shows that one, without its guesses (see lab_pages.py). What the buttons give is made from it while
the book is built.
"""

import json
import re
from pathlib import Path

import nbformat

# The cell tagged `install` of every lab, word for word (a test holds them together). In the stored
# lab SHARDLAB is empty; the learner's edition names the repository there, where the book knows it.
INSTALL_LINE = 'SHARDLAB = ""'
INSTALL_CELL = Path(__file__).with_name("install_cell.txt").read_text("utf-8").rstrip()

# Metadata by which Colab opens a notebook on a GPU. Kaggle documents none for a notebook.
COLABS_GPU = {"accelerator": "GPU", "colab": {"gpuType": "T4"}}
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
    if edition.metadata.get("shardlab", {}).get("needs_gpu"):
        edition.metadata.update(COLABS_GPU)
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
    written = json.loads(nbformat.writes(edition))
    text = json.dumps(written, separators=(",", ":"), ensure_ascii=False) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return text
