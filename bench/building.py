"""Seconds of `make book` in a copy of this repository, with the virtual environment that is there already."""

from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from statistics import median
import subprocess
from time import perf_counter

from bench.report import Result

COLD_SECONDS, EDITED_SECONDS = 40, 5
EDITS = 5


def make_book(copy: Path, environment: Path) -> float:
    start = perf_counter()
    done = subprocess.run(["make", "book", f"VENV={environment}"], cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"make book failed:\n{done.stdout[-3000:]}")
    return seconds


def measure_building(root: Path, folder: Path) -> list[Result]:
    """Cold (no pages, no caches, no wheel), with nothing to do, and after one page was edited."""
    rmtree(folder, ignore_errors=True)
    copytree(root, folder, ignore=ignore_patterns("build", ".venv", ".git", "__pycache__", ".ipynb_checkpoints"))
    environment = root / ".venv"
    cold = make_book(folder, environment)
    again = make_book(folder, environment)
    edited = {}
    for path in [*sorted(folder.glob("chapters/0*.md"))[:1], *sorted(folder.glob("labs/*.ipynb"))[:1]]:
        times = []
        for k in range(EDITS):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = text.replace("# ", "#  ", 1)  # the first heading: one space more
            else:
                text += f"\nOne more sentence, number {k}.\n"
            path.write_text(text, encoding="utf-8")
            times.append(make_book(folder, environment))
        edited[path.relative_to(folder).as_posix()] = times
    pages = len(list((folder / "build" / "html").rglob("*.html")))
    results = [Result("build", "make book, cold", round(cold, 1), "s", COLD_SECONDS, f"{pages} pages; once"),
               Result("build", "make book, nothing changed", round(again, 1), "s")]
    results += [Result("build", f"make book, {name} edited", round(median(times), 1), "s", EDITED_SECONDS,
                       f"{min(times):.1f} to {max(times):.1f}, {EDITS} edits") for name, times in edited.items()]
    rmtree(folder)
    return results
