"""The code of a technique's core is on the pages of chapters, every line of it."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import ROOT
from sphinx.directives.code import LiteralIncludeReader
from told import from_told, valued

PACKAGE = ROOT / "src" / "shardlab"
# As CORES of tools/budgets.py.
CORES = sorted(
    path.relative_to(PACKAGE).as_posix()
    for pattern in (
        "collective_plans.py",
        "common/collective_wire.py",
        "collectives.py",
        "pipelines/schedules.py",
        "*/core*.py",
    )
    for path in PACKAGE.glob(pattern)
)
DIRECTIVE = re.compile(
    r"^[ \t]*(?:`{3,}|:{3,})\{(literalinclude|source-diff)\} *(\S+)\n((?:[ \t]*:[\w-]+:.*\n)*)",
    re.MULTILINE,
)


class Numbered(LiteralIncludeReader):
    """Sphinx's reader, of a file whose lines end with their numbers."""

    def read_file(self, filename, location=None):
        lines = super().read_file(filename, location)
        return [f"{line.rstrip()}\0{number}\n" for number, line in enumerate(lines, 1)]


def included(file: Path, options: dict) -> set[int]:
    """Numbers of the lines that a literalinclude prints."""
    options = {name: value for name, value in options.items() if name != "dedent"}
    text, _ = Numbered(str(file), options, SimpleNamespace(source_encoding="utf-8")).read()
    return {int(number) for number in re.findall(r"\0(\d+)", text)}


def compared(folder: Path, path: str, options: dict) -> dict[Path, set[int]]:
    """Numbers of the lines that a source-diff prints, by file."""
    found: dict[Path, set[int]] = {}
    for side, name in ((path, options["from"]), (options.get("into", path), options["to"])):
        file = (folder / side).resolve()
        found.setdefault(file, set()).update(included(file, {"pyobject": name}))
    return found


def printed(page: str, folder: Path) -> dict[Path, set[int]]:
    """Numbers of the lines of each file that a page prints."""
    found: dict[Path, set[int]] = {}
    for kind, path, block in DIRECTIVE.findall(page):
        options = {
            name: value.strip().strip("'") for name, value in re.findall(r":([\w-]+):(.*)\n", block)
        }
        if kind == "literalinclude":
            file = (folder / path).resolve()
            parts = {file: included(file, options)}
        else:
            parts = compared(folder, path, options)
        for file, lines in parts.items():
            found.setdefault(file, set()).update(lines)
    return found


def lines_of_code(code: str) -> set[int]:
    """Numbers of the lines that a page must print: all except the module's docstring, imports,
    empty lines and comments between definitions."""
    lines = code.splitlines()
    numbers = {
        number for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")
    }
    for at, node in enumerate(ast.parse(code).body):
        docstring = at == 0 and isinstance(node, ast.Expr)
        if docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
            numbers -= set(range(node.lineno, node.end_lineno + 1))
    return numbers


@pytest.fixture(scope="module")
def on_pages():
    """{file: numbers of the lines that chapters print}."""
    found: dict[Path, set[int]] = {}
    for page in sorted((ROOT / "chapters").glob("*.md")):
        try:
            parts = printed(page.read_text("utf-8"), page.parent)
        except (OSError, ValueError) as error:
            pytest.fail(f"{page.name} prints code that is not there: {error}", pytrace=False)
        for file, lines in parts.items():
            found.setdefault(file, set()).update(lines)
    return found


@pytest.mark.parametrize("core", CORES)
def test_every_line_of_a_core_is_on_a_page(on_pages, core):
    """Must catch: a method that was added to a core and that its chapter does not print; an
    `end-before` that leaves out a last line."""
    code = (PACKAGE / core).read_text("utf-8")
    lines = code.splitlines()
    missing = lines_of_code(code) - on_pages.get(PACKAGE / core, set())
    shown = [f"{core}:{number}: {lines[number - 1]}" for number in sorted(missing)]
    assert shown == [], "no literalinclude or source-diff of a chapter prints these lines"


CODE = '''"""A module."""
import os

LIMIT = 1


class A:
    """One."""

    def first(self):
        return 1

    @property
    def second(self):
        return 2


class B:
    """One."""

    def first(self):
        return 3
'''


@from_told("directive, expected", valued)
def test_the_lines_that_a_page_prints(tmp_path, directive, expected):
    """Must catch: a decorator left out, an option of Sphinx's not followed, what a diff folds taken
    for printed, a directive in a fold not found."""
    (tmp_path / "a.py").write_text(CODE)
    page = f":::{{dropdown}} Folded\n\n```{{{directive}\n```\n:::\n"
    assert printed(page, tmp_path) == {tmp_path / "a.py": expected}
