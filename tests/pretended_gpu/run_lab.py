"""Runs the code of a lab, solutions included, in a folder of its own:

python tests/pretended_gpu/run.py 4 python tests/pretended_gpu/run_lab.py labs/06-zero.ipynb

Of a blank only what it imports and defines runs, as its solution comes after it. Checks are
believed: exercises are judged on thread ranks, whatever GPUs there are. Ends with 1 and the
traceback of the first cell that fails, and prints the seconds after each cell. `--quick` leaves out
cells tagged slow, and what goes on from them.
"""

import ast
import contextlib
import symtable
import sys
import tempfile
import time
from pathlib import Path

from pretended import are_real


def cells_of(lab: Path, quick: bool = False) -> list[str]:
    """The code of the lab's cells."""
    import nbformat

    sources, missing = [], set()
    for cell in nbformat.read(lab, as_version=4).cells:
        tags, source = cell.metadata.get("tags", []), cell.source
        if cell.cell_type != "code" or "install" in tags:
            continue
        if not source.startswith("%%"):
            defined, used = names_in(source)
            if quick and ("slow" in tags or used & missing):
                missing |= defined
                source = statements(source, is_prediction)
            elif "blank" in tags:
                source = statements(source, lambda node: not isinstance(node, ast.Expr))
            else:
                missing -= defined
        sources.append(source)
    return list(filter(None, sources))


def names_in(source: str) -> tuple[set[str], set[str]]:
    """(defined, used): names that a cell gives a value, and all others that it asks for."""
    tables, defined, used = [symtable.symtable(source, "cell", "exec")], set(), set()
    top = tables[0]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top and (symbol.is_assigned() or symbol.is_imported()):
                defined.add(symbol.get_name())
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                used.add(symbol.get_name())
    return defined, used - defined


def is_prediction(node: ast.stmt) -> bool:
    """Whether a statement makes or locks a guess."""
    targets = [getattr(target, "id", "") for target in getattr(node, "targets", ())]
    return ".lock(" in ast.unparse(node) or any(name.startswith("my_") for name in targets)


def statements(source: str, kept) -> str:
    body = [node for node in ast.parse(source).body if kept(node)]
    return ast.unparse(ast.Module(body, []))


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


def run_lab(lab: Path, quick: bool = False) -> int:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    believe_checks()
    if not are_real():
        time_once()
    sources, begin = cells_of(lab, quick), time.perf_counter()
    config = Config(HistoryManager=dict(enabled=False))
    recordings = lab.parents[1] / "measured"
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("measured").symlink_to(recordings)  # for what this machine cannot measure
        shell = InteractiveShell.instance(config=config)
        for source in sources:
            done = shell.run_cell(source)
            print(f"--- {time.perf_counter() - begin:.1f} s: {source.splitlines()[0]}", flush=True)
            error = done.error_before_exec or done.error_in_exec
            if error is not None and not (quick and type(error).__name__ == "NotYet"):
                print(f"the cell that failed:\n{source}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_lab(Path(sys.argv[1]).resolve(), "--quick" in sys.argv))
