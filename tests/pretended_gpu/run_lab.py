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

from pretended import are_real


def cells_of(lab: Path) -> list[str]:
    """The code of the lab's cells."""
    import nbformat

    sources = []
    for cell in nbformat.read(lab, as_version=4).cells:
        tags, source = cell.metadata.get("tags", []), cell.source
        if cell.cell_type != "code" or "install" in tags:
            continue
        if "blank" in tags and not source.startswith("%%"):
            body = [node for node in ast.parse(source).body if not isinstance(node, ast.Expr)]
            source = ast.unparse(ast.Module(body, []))
        sources.append(source)
    return list(filter(None, sources))


def believe_checks():
    from coursekit.exercises import checker

    checker._tried = lambda exercise, solution, seconds: checker.Verdict(True, exercise.right)


def time_once():
    """Let timed work run once, in a CPU's sizes: its time on a pretended GPU says nothing."""
    from coursekit.topics.hardware import probes
    from ranklab.measure import clock

    for sizes in (probes.PRODUCT_SIZES, probes.MEMORY_BYTES):
        sizes["cuda"] = sizes["cpu"]
    median_seconds = clock.median_seconds
    clock.median_seconds = lambda work, device, *_, calls=1, **__: median_seconds(
        work, device, repeats=1, warm_up=0, calls=calls
    )


def run_lab(lab: Path) -> int:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    believe_checks()
    if not are_real():
        time_once()
    sources, begin = cells_of(lab), time.perf_counter()
    config = Config(HistoryManager=dict(enabled=False))
    recordings = lab.parents[1] / "measured"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("measured").symlink_to(recordings)  # for what this machine cannot measure
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
