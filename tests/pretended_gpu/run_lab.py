"""Runs the code of a lab, solutions included, in a folder of its own:

python tests/pretended_gpu/run.py 4 python tests/pretended_gpu/run_lab.py labs/06-zero.ipynb

Blanks are left out, as their solutions come after them, and checks are believed: exercises are
judged on thread ranks, whatever GPUs there are. Ends with 1 and the traceback of the first cell
that fails, and prints the seconds of each cell.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

LEFT_OUT = {"install", "blank"}


def cells_of(lab: Path) -> list[str]:
    import nbformat

    cells = nbformat.read(lab, as_version=4).cells
    return [
        cell.source
        for cell in cells
        if cell.cell_type == "code" and not LEFT_OUT & set(cell.metadata.get("tags", []))
    ]


def believe_checks():
    from coursekit.exercises import checker

    checker._tried = lambda exercise, solution, seconds: checker.Verdict(True, exercise.right)


def run_lab(lab: Path) -> int:
    from IPython.core.interactiveshell import InteractiveShell

    believe_checks()
    sources, begin = cells_of(lab), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        shell = InteractiveShell.instance()
        for source in sources:
            done = shell.run_cell(source)
            print(f"--- {time.perf_counter() - begin:.1f} s: {source.splitlines()[0]}", flush=True)
            if not done.success:
                print(f"the cell that failed:\n{source}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_lab(Path(sys.argv[1]).resolve()))
