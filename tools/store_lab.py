"""Make a lab's notebook from its text, run it and store it with its outputs, the same bytes for the
same outputs: ``make store LAB=labs/01-name.md``.

The text, MyST Markdown with ``{code-cell}`` blocks, is what a person edits and reviews. Whoever has
edited the notebook instead takes the edits over with ``python tools/store_lab.py --text LAB``.

A number of a text comes from the run, where the text says so: ``{ran}`peak / 10**6:.1f` MB`` is
what this expression is after the next code cell. The notebook has the number in its place.

What changes from run to run without meaning is dropped or numbered: times, ids of cells, versions
of the kernel. So is what no page shows (`bookkit.lab_pages.kept`). A cell that fails leaves the
notebook as it was. The lab runs on the CPU, in a copy of its folder without your own predictions.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

import jupytext
import nbformat
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell
from skeletons import text_of_skeletons

from bookkit.lab_pages import kept
from bookkit.learner import INSTALL_CELL, has_tag

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
TEXT_FORMAT = "md:myst"
IN_TEXT = "# tools/store_lab.py writes the install cell here"
RAN = re.compile(r"\{ran\}`([^`]+)`")
CELL_TIMEOUT_SECONDS = 600


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Leave in `notebook` only what a reader sees; in place."""
    # for shardlab doctor
    needs = {"shardlab": notebook.metadata["shardlab"]} if "shardlab" in notebook.metadata else {}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}, **needs}
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5  # the first with cell ids
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if "outputs" in cell:
            cell.outputs = kept(cell.outputs)
        for output in cell.get("outputs", []):
            (
                output.pop("metadata", None)
                if output.output_type == "stream"
                else output.update(metadata={})
            )


def lab_in(text: Path) -> nbformat.NotebookNode:
    """The notebook that a lab's text describes, with today's install cell, before its run. The
    install cell shows nothing where shardlab is installed, so stored outputs stay as they are."""
    notebook = jupytext.read(text, fmt=TEXT_FORMAT)
    for cell in notebook.cells:
        if has_tag(cell, "install"):
            cell.source = INSTALL_CELL
    normalise(notebook)
    return notebook


def told_as(source: str, stored: str) -> bool:
    """Whether the `stored` source of a cell is what a text says, with any number where it asks the
    run for one."""
    words = map(re.escape, RAN.split(source)[::2])
    return re.fullmatch("[^`\\n]+?".join(words), stored) is not None


def text_of(notebook: nbformat.NotebookNode, before: Sequence[str] = ()) -> str:
    """The text from which `lab_in` makes the cells of `notebook`. Sources that the text had
    `before` stay where they ask the run for a number."""
    notebook = nbformat.from_dict(notebook)
    normalise(notebook)
    for cell in notebook.cells:
        asked = (one for one in before if RAN.search(one) and told_as(one, cell.source))
        cell.source = next(asked, cell.source)
    in_head = "kernelspec,shardlab,-jupytext"
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": in_head}
    for cell in notebook.cells:
        if has_tag(cell, "install"):
            cell.source = IN_TEXT
    return jupytext.writes(notebook, fmt=TEXT_FORMAT)


def difference(text: Path, notebook: Path) -> str:
    """A sentence that says where the stored `notebook` differs from its `text`, if it does."""
    told, stored = lab_in(text), nbformat.read(notebook, as_version=4)
    if told.metadata != stored.metadata:
        return f"{notebook.name} has other metadata than the head of {text.name}"
    if len(told.cells) != len(stored.cells):
        return f"{notebook.name} has {len(stored.cells)} cells and {text.name} {len(told.cells)}"
    for number, (ours, theirs) in enumerate(zip(told.cells, stored.cells), start=1):
        for part in ("cell_type", "metadata", "source"):
            if part == "source" and told_as(ours[part], theirs[part]):
                continue
            if ours[part] != theirs[part]:
                begin = (ours.source or theirs.source or "nothing").splitlines()[0][:40]
                return f"cell {number} ({begin!r}) has another {part} in {text.name}"
    return ""


def copy_place(path: Path, folder: Path) -> Path:
    """Copy what a lab at `path` finds around it into `folder`: its own folder without labs and
    predictions, the recordings."""
    place = folder / path.parent.name
    copytree(
        path.parent,
        place,
        ignore=ignore_patterns("*.ipynb", "*.md", "*.predictions.json", ".ipynb_checkpoints"),
    )
    recordings = path.parent.parent / "measured"
    if recordings.is_dir():
        copytree(recordings, folder / "measured")
    return place


def asked_of_the_run(notebook: nbformat.NotebookNode) -> list[tuple]:
    """(text, printing cell) of each text that asks for numbers: the cell is put after the code cell
    that follows, in place."""
    cells, asked, waiting = [], [], []
    for cell in notebook.cells:
        cells.append(cell)
        if RAN.search(cell.source):
            lines = [f"print(f'{{{one}}}')" for one in RAN.findall(cell.source)]
            waiting.append((cell, new_code_cell("\n".join(lines))))
        elif waiting and cell.cell_type == "code":
            cells += [printing for _, printing in waiting]
            asked, waiting = asked + waiting, []
    notebook.cells = cells
    return asked


def take_answers(notebook: nbformat.NotebookNode, asked: list[tuple]) -> None:
    """Put what was printed into the texts, in place, and take the printing cells away."""
    for cell, printing in asked:
        numbers = iter("".join(output.text for output in printing.outputs).split("\n"))
        for _ in RAN.findall(cell.source):
            cell.source = RAN.sub(next(numbers), cell.source, count=1)
        notebook.cells.remove(printing)
    number_the_cells(notebook)


def number_the_cells(notebook: nbformat.NotebookNode) -> None:
    """Count the code cells from 1, in place, as a run without the printing cells does."""
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    for number, cell in enumerate(code, start=1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number


def store(text: Path) -> None:
    """Execute the lab that `text` describes in a copy of its folder and write its notebook beside
    it. Raises CellExecutionError when a cell fails."""
    notebook = lab_in(text)
    asked = asked_of_the_run(notebook)
    with TemporaryDirectory() as folder:
        place = copy_place(text.resolve(), Path(folder))
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_SECONDS,
            kernel_name=KERNEL["name"],
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(place)}},
        )
        client.execute()
    take_answers(notebook, asked)
    normalise(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, text.with_suffix(".ipynb"))


def store_skeletons() -> None:
    """Write the half-written solutions that `hint` shows, of all labs as they are stored now."""
    root = Path(__file__).resolve().parents[1]
    path = root / "src" / "coursekit" / "data" / "skeletons.json"
    path.write_text(text_of_skeletons(root / "labs"), encoding="utf-8")


def edited(text: Path, notebook: Path) -> bool:
    """Whether the notebook was edited after its text, so that to store the text would lose that."""
    newer = notebook.is_file() and notebook.stat().st_mtime > text.stat().st_mtime
    return newer and bool(difference(text, notebook))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Make a lab's notebook from its text, run it and store it with its outputs."
    )
    parser.add_argument("labs", nargs="+", type=Path, metavar="LAB", help="such as labs/01-name.md")
    parser.add_argument(
        "--text", action="store_true", help="write the text from a notebook that was edited instead"
    )
    # one thread, and vectors no longer than AVX2's: the same sums on every machine
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
    arguments = parser.parse_args()
    for path in arguments.labs:
        text, notebook = path.with_suffix(".md"), path.with_suffix(".ipynb")
        source = notebook if arguments.text else text
        if not source.is_file():
            parser.error(f"{source}: no such lab")
        if arguments.text:
            before = [cell.source for cell in lab_in(text).cells] if text.is_file() else []
            told = text_of(nbformat.read(notebook, as_version=4), before)
            text.write_text(told, encoding="utf-8")
            print(f"lab:    {text} has what {notebook} says")
            continue
        if edited(text, notebook):
            parser.error(
                f"{notebook} was edited after {text}, which would replace it. To keep the"
                f" notebook's edits: python tools/store_lab.py --text {path}; to drop them:"
                f" git checkout {notebook}"
            )
        print(f"lab:    {text} is running", flush=True)
        try:
            store(text)
        except CellExecutionError as error:
            print(f"{notebook} is left as it was; a cell failed:\n{error}", file=sys.stderr)
            return 1
        store_skeletons()
        print(f"lab:    {notebook} is stored, {notebook.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
