"""A new technique is a file on the shelf, a topic folder, a chapter, a lab and tests, and edits
_toc.yml and references.bib alone: shown in a copy of the repository, with a technique that does not
exist (pretended_technique.txt)."""

import os
import re
import sys
import zipfile
from pathlib import Path
from shutil import copy2, copytree

import nbformat
import pytest
from pages import ROOT
from programs import ran, tracked_files

from coursekit.recordings.recordings import read_all

TEXT = Path(__file__).with_name("pretended_technique.txt").read_text("utf-8")
FILES = dict(re.findall(r"^=== (.*)\n((?:(?!===).*\n)*)", TEXT, re.MULTILINE))
SOURCE = FILES.pop("references.bib")
LAB_FILE = "labs/90-pretended.ipynb"

ENGINES = "tests/engines/test_"
NAMED = ("names", "bookkit_ways")
ASKED_ONCE_FOR_EACH = ("exercises", "pictures", "show_explorers")
TESTS = (  # of the copy
    ["tests/test_repository.py", *(f"{ENGINES}{name}.py" for name in NAMED)],
    ["tests/pretended", *(f"{ENGINES}{name}.py" for name in ASKED_ONCE_FOR_EACH)]
    + ["-k", "pretended"],
)
FOUND = """
from bench.__main__ import main
from coursekit.formulas import evaluate
from coursekit.recordings import record
from coursekit.show.explorers import EXPLORERS

print("pretended-copies" in EXPLORERS)
print(evaluate(["pretended_bytes"], parameter_bytes=7, pretended_copies=3))
assert record.main("build/run --cpu --quick --only pretending".split()) == 0
assert main("pretended --quick --record build/recorded".split()) == 0
"""


def in_copy(folder, *command):
    """The output of the command in the copy, with the copy's packages."""
    packages = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = ran(sys.executable, *command, cwd=folder, env=packages)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pretended_lab():
    """The notebook: a title and one cell that was run."""
    lab = nbformat.v4.new_notebook()
    lab.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    lab.cells = [
        nbformat.v4.new_markdown_cell("# Pretending: a lab"),
        nbformat.v4.new_code_cell("1 + 1", execution_count=1, outputs=[made]),
    ]
    return lab


def git(folder, *command):
    return ran("git", *command, cwd=folder, check=True).stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of every file that git knows, and the technique added to it."""
    folder = tmp_path_factory.mktemp("pretended") / "repository"
    for path in tracked_files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy2(path, copy)
    for compiled in (ROOT / "src").rglob("__pycache__"):  # else Python compiles all of it again
        copytree(compiled, folder / compiled.relative_to(ROOT), dirs_exist_ok=True)

    git(folder, "init", "-q")
    git(folder, "add", "--all")

    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    nbformat.write(pretended_lab(), folder / LAB_FILE)
    with open(folder / "references.bib", "a", encoding="utf-8") as references:
        references.write("\n" + SOURCE)
    wheel = (
        folder / "build" / "wheel" / "shardlab-0-py3-none-any.whl"
    )  # `make book` makes a real one
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("shardlab/__init__.py", "")

    contents = folder / "_toc.yml"
    last = "          - file: chapters/sending-less-code\n"
    new = (
        "      - file: chapters/pretended\n        sections:\n          - file: labs/90-pretended\n"
    )
    before, after = contents.read_text().split(last)
    contents.write_text(before + last + new + after)
    git(folder, "add", "--all", "--intent-to-add")  # now tests of the copy find the new files, too
    (folder / ".venv").mkdir()  # `make` makes it
    return folder


@pytest.mark.slow
def test_two_files_are_edited(repository):
    """Beside new files, in the places that ARCHITECTURE.md names, nothing but the contents and the
    list of sources. Must catch: another file that this technique edits."""
    changes = [line.split("\t") for line in git(repository, "diff", "--name-status").splitlines()]
    assert {name for kind, name in changes if kind != "A"} == {"_toc.yml", "references.bib"}
    assert {name for kind, name in changes if kind == "A"} == {*FILES, LAB_FILE}


@pytest.mark.nightly  # by day: the same tests of the book's own topics
@pytest.mark.slow
@pytest.mark.parametrize("tests", TESTS, ids=["names", "pretended"])
def test_the_tests_of_the_copy_pass(repository, tests):
    """The tests that list names, floors and rows pass, and those that look at every explorer,
    picture and exercise. Must catch: a test that a new topic, a new row or a new module
    of a topic breaks."""
    quiet = ("-q", "-m", "not slow")
    passed = in_copy(repository, "-m", "pytest", *quiet, *tests).splitlines()[-1]
    assert re.match(r"\d+ passed", passed) and "skipped" not in passed


@pytest.mark.slow
def test_engines_find_it(repository):
    """Must catch: a list of topics anywhere in formulas/, show/, record.py or bench/; a row that
    only the schema refuses; --quick or --record for the book's own topics only."""
    assert in_copy(repository, "-c", FOUND).split("\n")[:2] == ["True", "{'pretended_bytes': 21}"]
    (recording,) = read_all(repository / "build" / "run")
    listed = (repository / "tests" / "pretended" / "recorded.txt").read_text("utf-8").split()
    assert [row.name for row in recording.rows] == [*listed, "record.seconds"]
    assert listed == ["pretended.copies"]
    (recording,) = read_all(repository / "build" / "recorded")
    (row,) = recording.rows
    assert (row.name, row.value, row.case["what"]) == ("pretended_race.step", 2, "pretended")
    assert recording.command == "python -m bench pretended --quick --record measured"
