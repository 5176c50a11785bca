"""Runs the code of a lab, solutions included, in a folder of its own:

python tests/pretended_gpu/run.py 4 python tests/pretended_gpu/run_lab.py labs/06-zero.ipynb

Of a blank only what it imports and defines runs, as its solution comes after it. Checks are
believed: exercises are judged on thread ranks, whatever GPUs there are. Ends with 1 and the
traceback of the first cell that fails, and prints the seconds after each cell.
"""

import ast
import contextlib
import sys
import tempfile
import time
from pathlib import Path


def cells_of(lab: Path) -> list[str]:
    """The code of the lab's cells."""
    import nbformat

    sources = []
    for cell in nbformat.read(lab, as_version=4).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and "install" not in tags:
            plain = "blank" in tags and not cell.source.startswith("%%")
            sources.append(definitions(cell.source) if plain else cell.source)
    return list(filter(None, sources))


def definitions(source: str) -> str:
    """A cell without its calls."""
    body = [node for node in ast.parse(source).body if not isinstance(node, ast.Expr)]
    return ast.unparse(ast.Module(body, []))


def believe_checks():
    from coursekit.exercises import checker

    checker._tried = lambda exercise, solution, seconds: checker.Verdict(True, exercise.right)


def run_lab(lab: Path) -> int:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    believe_checks()
    sources, begin = cells_of(lab), time.perf_counter()
    config = Config(HistoryManager=dict(enabled=False))
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shell = InteractiveShell.instance(config=config)
        for source in sources:
            done = shell.run_cell(source)
            print(f"--- {time.perf_counter() - begin:.1f} s: {source.splitlines()[0]}", flush=True)
            if not done.success:
                print(f"the cell that failed:\n{source}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_lab(Path(sys.argv[1]).resolve()))
