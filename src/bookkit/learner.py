"""The learner's edition of a lab: blanks, no solutions, no outputs, and a first cell that can install shardlab.

The stored lab is the solved edition, with the outputs of a real run; that one is shown in the book. What the buttons give
is made from it while the book is built.
"""

from pathlib import Path

import nbformat

# The cell tagged `install` of every lab, word for word (a test holds them together). In the stored lab SHARDLAB is
# empty; the learner's edition names the repository there, where the book knows it.
INSTALL_LINE = 'SHARDLAB = ""'
INSTALL_CELL = f'''\
# Where shardlab is missing, as on Colab: install it, from its wheel if that lies beside this notebook.
import importlib, importlib.util, pathlib, subprocess, sys

{INSTALL_LINE}  # filled in where the book knows its repository
if importlib.util.find_spec("shardlab") is None:
    wheels = sorted(map(str, pathlib.Path.cwd().glob("shardlab-*.whl")))
    if not (wheels or SHARDLAB):
        raise ModuleNotFoundError("shardlab is not installed. The book's page of this lab offers its wheel: "
                                  "upload that beside this notebook and run this cell again.")
    source = wheels[-1] if wheels else SHARDLAB
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", source], check=True)
    importlib.invalidate_caches()'''


def has_tag(cell, tag: str) -> bool:
    return tag in cell.get("metadata", {}).get("tags", [])


def learner_edition(notebook: nbformat.NotebookNode, requirement: str) -> nbformat.NotebookNode:
    """A new notebook: solutions left out, outputs cleared, `requirement` (may be "") where the install cell looks.

    `requirement` is what pip is to install, such as ``shardlab @ git+https://github.com/you/your-book@main``.
    """
    edition = nbformat.from_dict(notebook)
    edition.cells = [cell for cell in edition.cells if not has_tag(cell, "solution")]
    for cell in edition.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if has_tag(cell, "install"):
            cell.source = cell.source.replace(INSTALL_LINE, f'SHARDLAB = "{requirement}"')
    return edition


def write_learner_edition(source: Path, target: Path, requirement: str) -> str:
    """Read the stored lab `source`, write its learner's edition to `target`; return the text written."""
    text = nbformat.writes(learner_edition(nbformat.read(source, as_version=4), requirement)) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return text
