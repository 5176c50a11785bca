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
INSTALL_CELL = f"""\
# Install shardlab if it is missing, or if the wheel has another version. The wheel is
# beside this notebook or, on Kaggle, among the inputs. A PyTorch that fits is kept.
import importlib.metadata
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile

{INSTALL_LINE}  # filled in where the book knows its repository

places = [pathlib.Path.cwd(), *pathlib.Path("/kaggle/input").glob("**/")]
wheels = [wheel for place in places for wheel in place.glob("shardlab-*.whl")]
wheel = max(wheels, key=lambda found: found.stat().st_mtime, default=None)
wanted = wheel.name.split("-")[1] if wheel else ""
found = importlib.metadata.distributions(name="shardlab")
here = next((one.version for one in found), "")
missing = importlib.util.find_spec("shardlab") is None

if missing or (wheel and here and here != wanted):
    if not (wheel or SHARDLAB):
        raise ModuleNotFoundError(
            "shardlab is not installed. This lab's page in the book offers its wheel: "
            "upload the wheel beside this notebook, then run this cell again."
        )
    state = "is missing" if missing else f"{{here}} is here"
    source = wanted or "it from its repository"
    print(f"shardlab {{state}}; installing {{source}}", flush=True)
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is missing, too: minutes, without a word", flush=True)
    legal = f"shardlab-{{wanted}}-py3-none-any.whl"  # a browser may have added " (1)"
    if wheel and wheel.name != legal:
        wheel = shutil.copy(wheel, pathlib.Path(tempfile.mkdtemp(), legal))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries=1"]
    beside = f"--find-links={{places[0]}}"
    if subprocess.run([*pip, beside, str(wheel or SHARDLAB)]).returncode:
        raise RuntimeError(
            "pip could not install shardlab; the lines above say why. Without a "
            "network, bring the wheels of the packages that shardlab needs: on a "
            "machine with a network, pip download shardlab-*.whl fetches them. Put "
            "them all beside this notebook."
        )
    importlib.invalidate_caches()
    if "shardlab" in sys.modules:
        print("restart the kernel: it still has the shardlab that was here")

if importlib.util.find_spec("coursekit"):
    from coursekit.exercises.missing_names import explain_missing_names

    explain_missing_names()  # of a cell that did not run: a sentence, no traceback"""

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
