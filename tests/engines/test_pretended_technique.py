"""A new technique is a topic folder, a chapter and a lab, and edits _toc.yml alone: shown in a copy
of the repository, with a technique that does not exist."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copy2

import nbformat
import pytest

from shardlab.measure.recordings import read_all

ROOT = Path(__file__).resolve().parents[2]

FORMULAS = '''"""Pretending: what a technique that does not exist would keep."""

from shardlab.formulas.registry import BOOK

BOOK.quantity("pretended_copies", r"n_\\text{pretend}", "count", "copies that are pretended")


@BOOK.formula(
    symbol=r"M_\\text{pretend}",
    unit="bytes",
    source="nobody",
    measured_by="tests/pretended/test_pretended.py::test_copies",
)
def pretended_bytes(pretended_copies, parameter_bytes):
    """bytes of all pretended copies"""
    return pretended_copies * parameter_bytes
'''

EXPLORER = '''"""The explorer of chapter "pretended"."""

from types import MappingProxyType

from shardlab.show.pictures import MemoryBar, Part
from shardlab.show.spec import Control, Explorer, Menu, Say, ExplorerTable

PRETENDED = Explorer(
    name="pretended-copies",
    title="How much is pretended?",
    menus=(Menu("model", "Model"), Menu("recipe", "Recipe")),
    controls=(Control("pretended_copies", "copies", (1, 2, 3, 4)),),
    links=(),
    begin=MappingProxyType(dict(model="GPT-2 124M", recipe="fp32 Adam", pretended_copies=3)),
    pictures=(
        MemoryBar(
            "Pretended",
            (Part("pretended_bytes", "copies", "parameters"),),
            total="pretended_bytes",
        ),
    ),
    sentence=(Say("Pretended are {pretended_bytes}."),),
    detail=(),
    table=ExplorerTable("By model", "model", (("copies, GB", "pretended_bytes", "GB"),)),
    outputs=("pretended_bytes",),
)
'''

RUNS = '''"""What `make gpu` would record of pretending, and what `make bench` would race."""

from shardlab.measure.races import Bench, Result, Run


def pretending(device):
    """One group of rows."""


def race(copies=3):
    """One ratio."""
    case = dict(what="pretended", peer="nobody", identical_low=1.0, identical_high=1.0)
    return [Result("pretended", "copies", copies, "x", row="pretended_race.step", case=case)]


RUNS = (Run(500, pretending),)
BENCHES = (Bench("pretended", race, dict(copies=2)),)
'''

PAGE = """---
lab: labs/90-pretended
---
# Pretending

Three copies of GPT-2 take
{bytes}`pretended_bytes(model="GPT-2 124M", recipe="fp32 Adam", pretended_copies=3)`.

```{explorer} pretended-copies
```

```{equation} pretended_bytes
```
"""

FOUND = """
from shardlab.formulas import evaluate
from shardlab.show.explorers import EXPLORERS

print("pretended-copies" in EXPLORERS)
print(evaluate(["pretended_bytes"], parameter_bytes=7, pretended_copies=3))
"""


def in_copy(folder, *command):
    """What the command prints in the copy, with the copy's packages."""
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of every file that git knows, and the technique added to it."""
    folder = tmp_path_factory.mktemp("pretended") / "repository"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # not a file that is about to be deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy2(ROOT / name, folder / name)

    topic = folder / "src" / "shardlab" / "topics" / "pretended"
    topic.mkdir()
    for name, text in (
        ("__init__", ""),
        ("formulas", FORMULAS),
        ("explorer", EXPLORER),
        ("runs", RUNS),
    ):
        (topic / f"{name}.py").write_text(text)
    (folder / "chapters" / "pretended.md").write_text(PAGE)
    lab = nbformat.v4.new_notebook()
    lab.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    lab.cells = [
        nbformat.v4.new_markdown_cell("# A pretended lab"),
        nbformat.v4.new_code_cell(
            "1 + 1",
            execution_count=1,
            outputs=[
                nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
            ],
        ),
    ]
    nbformat.write(lab, folder / "labs" / "90-pretended.ipynb")
    wheel = (
        folder / "build" / "wheel" / "shardlab-0-py3-none-any.whl"
    )  # `make book` makes a real one
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("shardlab/__init__.py", "")

    contents = folder / "_toc.yml"
    text = contents.read_text()
    for last, new in (
        ("chapters/zero\n", "chapters/pretended\n"),
        ("labs/06-zero\n", "labs/90-pretended\n"),
    ):
        assert text.count(f"      - file: {last}") == 1
        text = text.replace(f"      - file: {last}", f"      - file: {new}      - file: {last}")
    contents.write_text(text)
    return folder


@pytest.mark.slow
def test_engines_find_it(repository):
    """The explorers have its explorer, the registry its formula. Must catch: a list of topics
    anywhere in formulas/ or show/."""
    assert in_copy(repository, "-c", FOUND).split("\n")[:2] == ["True", "{'pretended_bytes': 21}"]


@pytest.mark.slow
def test_its_run_is_recorded(repository):
    """`make gpu` has its group, in the place its number says. Must catch: a list of groups in
    record.py."""
    printed = in_copy(
        repository,
        "-c",
        "from shardlab.measure import record; print([group.name for group in record.ALL])",
    )
    assert printed.strip().endswith("'pretending']")


@pytest.mark.slow
def test_its_race_is_run(repository):
    """`python -m bench pretended` runs it, with the arguments of --quick, and records its row. Must
    catch: a list of races in bench/; --quick or --record for the book's own topics only."""
    in_copy(repository, "-m", "bench", "pretended", "--quick", "--record", "build/recorded")
    (recording,) = read_all(repository / "build" / "recorded")
    (row,) = recording.rows
    assert (row.name, row.value, row.case["what"]) == ("pretended_race.step", 2, "pretended")
    assert recording.command == "python -m bench pretended --quick --record measured"


@pytest.fixture(scope="module")
def book(repository):
    """The copy's book: a warning would be an error."""
    in_copy(repository, "-m", "bookkit", ".", "build/html")
    return repository / "build" / "html"


@pytest.mark.slow
def test_the_book_shows_it(book):
    """Its chapter has the explorer, the number and the equation; its lab has a page; the formula is
    on the formula sheet, beside what is given; every page's contents lead to it. Must catch: a
    sheet that names its topics and forgets this one."""
    page = (book / "chapters" / "pretended.html").read_text("utf-8")
    assert 'data-explorer="pretended-copies"' in page and 'BOOK.define("pretended-copies"' in page
    assert re.search(r"<span class=\"computed\"[^>]*>1\.39.GiB</span>", page)
    assert 'href="formula-sheet.html#formula-pretended-bytes"' in page
    sheet = (book / "chapters" / "formula-sheet.html").read_text("utf-8")
    for name in ("pretended-bytes", "pretended-copies"):
        assert f'id="formula-{name}"' in sheet
    assert "A pretended lab" in (book / "labs" / "90-pretended.html").read_text("utf-8")
    contents = (book / "chapters" / "zero.html").read_text("utf-8")
    assert 'href="pretended.html"' in contents
    assert 'href="../labs/90-pretended.html"' in contents
