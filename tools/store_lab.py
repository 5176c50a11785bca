"""Run a lab and store it with its outputs, the same bytes for the same outputs: ``make store
LAB=labs/01-name.ipynb``.

What changes from run to run without meaning is dropped or numbered: the state of widgets
(megabytes; a stored widget is dead anyway), times, ids of cells and widgets, versions of the
kernel. A cell that fails leaves the file as it was. The lab runs on the CPU, in a copy of its
folder without your own predictions.
"""

import argparse
import os
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from tempfile import TemporaryDirectory

import nbformat
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbclient.output_widget import OutputWidget

from bookkit.learner import INSTALL_CELL, has_tag
from bookkit.skeletons import text_of_skeletons

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
EMPTIED = {"text/plain": ""}  # the line of progress of long work on ranks leaves this when it goes
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_SECONDS = 600


class QuietOutput(OutputWidget):
    """The output of an Output widget, kept here. nbclient also sends it to the kernel, and on a
    busy machine that can cost it the kernel's next answer, so that it waits for nothing until the
    cell's time is up. A stored widget is dead anyway."""

    def sync_state(self) -> None:
        pass


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Leave in `notebook` only what a reader sees; in place."""
    # for shardlab doctor
    needs = {"shardlab": notebook.metadata["shardlab"]} if "shardlab" in notebook.metadata else {}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}, **needs}
    )
    notebook.nbformat, notebook.nbformat_minor = 4, 5  # the first with cell ids
    models = {}
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number}"
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("data") != EMPTIED]
        for output in cell.get("outputs", []):
            (
                output.pop("metadata", None)
                if output.output_type == "stream"
                else output.update(metadata={})
            )
            view = output.get("data", {}).get(WIDGET_VIEW)
            if view:
                view["model_id"] = models.setdefault(view["model_id"], f"widget-{len(models) + 1}")


def copy_place(path: Path, folder: Path) -> Path:
    """Copy what a lab at `path` finds around it into `folder`: its own folder without labs and
    predictions, the recordings."""
    place = folder / path.parent.name
    copytree(
        path.parent,
        place,
        ignore=ignore_patterns("*.ipynb", "*.predictions.json", ".ipynb_checkpoints"),
    )
    recordings = path.parent.parent / "measured"
    if recordings.is_dir():
        copytree(recordings, folder / "measured")
    return place


def renew_install_cell(notebook: nbformat.NotebookNode) -> None:
    """Write today's install cell into `notebook`, in place. The cell shows nothing where shardlab
    is installed, so stored outputs stay as they are."""
    for cell in notebook.cells:
        if has_tag(cell, "install"):
            cell.source = INSTALL_CELL
            cell.metadata["tags"] = ["install", "hide-input"]  # folded in the book


def store(path: Path) -> None:
    """Execute the lab at `path` in a copy of its folder and write it back. Raises
    CellExecutionError when a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    renew_install_cell(notebook)
    # Not with store_widget_state=False: then nbclient fails on an Output widget. normalise drops
    # the state.
    with TemporaryDirectory() as folder:
        place = copy_place(path.resolve(), Path(folder))
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT_SECONDS,
            kernel_name=KERNEL["name"],
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(place)}},
        )
        client.widget_registry["@jupyter-widgets/output"]["OutputModel"] = QuietOutput
        client.execute()
    normalise(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def store_skeletons() -> None:
    """Write the half-written solutions that `hint` shows, of all labs as they are stored now."""
    root = Path(__file__).resolve().parents[1]
    path = root / "src" / "coursekit" / "data" / "skeletons.json"
    path.write_text(text_of_skeletons(root / "labs"), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a lab and store it with its outputs.")
    parser.add_argument(
        "labs", nargs="+", type=Path, metavar="LAB", help="for example labs/01-name.ipynb"
    )
    # one thread, and vectors no longer than AVX2's: the same sums on every machine
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
    for path in parser.parse_args().labs:
        if not path.is_file():
            parser.error(f"{path}: no such lab")
        print(f"lab:    {path} is running", flush=True)
        try:
            store(path)
        except CellExecutionError as error:
            print(f"{path} is left as it was; a cell failed:\n{error}", file=sys.stderr)
            return 1
        store_skeletons()
        print(f"lab:    {path} is stored, {path.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
