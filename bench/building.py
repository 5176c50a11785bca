"""Seconds of `make book` in a copy of this repository, with the virtual environment that is there
already."""

import subprocess
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from statistics import median
from time import perf_counter

import yaml

from coursekit.recordings.races import Result

COLD_SECONDS, EDITED_SECONDS = 40, 5
EDITS = 5


def pages_of_the_book(root: Path) -> list[str]:
    """The pages of the contents in their order, without the front page, as the contents name
    them."""
    parts = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))["parts"]

    def names(entries):
        for entry in entries:
            yield entry["file"]
            yield from names(entry.get("sections", []))

    return list(names(entry for part in parts for entry in part["chapters"]))


def make_book(copy: Path, environment: Path) -> float:
    start = perf_counter()
    done = subprocess.run(
        ["make", "book", f"VENV={environment}"],
        cwd=copy,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"make book failed:\n{done.stdout[-3000:]}")
    return seconds


def measure_building(root: Path, folder: Path) -> list[Result]:
    """Cold (no pages, no caches, no wheel), with nothing to do, and after one page was edited."""
    rmtree(folder, ignore_errors=True)
    copytree(
        root,
        folder,
        ignore=ignore_patterns("build", ".venv", ".git", "__pycache__", ".ipynb_checkpoints"),
    )
    environment = root / ".venv"
    cold = make_book(folder, environment)
    again = make_book(folder, environment)
    edited = {}
    contents = pages_of_the_book(root)
    for name in [contents[0], *[name for name in contents if name.startswith("labs/")][:1]]:
        path, times = next(folder.glob(f"{name}.*")), []
        for k in range(EDITS):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = text.replace("# ", "#  ", 1)  # the first heading: one space more
            else:
                text += f"\nOne more sentence, number {k}.\n"
            path.write_text(text, encoding="utf-8")
            times.append(make_book(folder, environment))
        edited[name] = times
    pages = len(list((folder / "build" / "html").rglob("*.html")))
    results = [
        Result(
            "build", "make book, cold", round(cold, 1), "s", COLD_SECONDS, f"{pages} pages; once"
        ),
        Result("build", "make book, nothing changed", round(again, 1), "s"),
    ]
    results += [
        Result(
            "build",
            f"make book, {name} edited",
            round(median(times), 1),
            "s",
            EDITED_SECONDS,
            f"{min(times):.1f} to {max(times):.1f}, {EDITS} edits",
        )
        for name, times in edited.items()
    ]
    rmtree(folder)
    return results
