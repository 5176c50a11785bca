"""The sizes that `make check` prints, and the files that need a reason."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def budgets():
    spec = spec_from_file_location("budgets", ROOT / "tools" / "budgets.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "source, expected",
    [
        ("x = 1\n", (3, 1)),
        ("x = 1\n\n\n# nothing\ny = 2\n", (6, 2)),
        ('"""A long\ndocstring."""\nx = 1\n', (3, 1)),
        ('def f():\n    """Says so."""\n    return 1\n', (7, 2)),  # def f ( ) : and return 1
        ("x = (\n    1,\n    2,\n)\n", (8, 4)),
        ('x = """two\nrows"""\n', (3, 2)),
        ('x = f"{a + b} and {c}"\n', (3, 1)),
        ("", (0, 0)),
    ],
)
def test_tokens_and_lines_of_code(budgets, source, expected):
    """Must catch: a comment, a docstring or an empty line counted as code, which would let dense
    code pass; an f-string counted by its parts, which Python 3.12 and later see."""
    assert budgets.tokens_and_rows(source) == expected


@pytest.fixture
def package(tmp_path):
    """A package of techniques with one file of each floor, and the course beside it."""
    package = tmp_path / "shardlab"
    for path, source in {
        "__init__.py": 500 * "x = 1\n",
        "idea.py": 200 * "x = 1\n",
        "zero/stage1.py": 3 * "x = 1\n",
        "ranks/world.py": 400 * "x = 1\n",
        "../coursekit/formulas/__init__.py": "",
        "../coursekit/formulas/registry.py": 500 * "x = 1\n",
        "../coursekit/topics/__init__.py": "",
        "../coursekit/topics/zero/__init__.py": "",
        "../coursekit/topics/zero/runs.py": 30 * "x = 1\n",
        "gpt.py": 300 * "x = 1\n",
    }.items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    bookkit = tmp_path / "bookkit"
    bookkit.mkdir()
    (bookkit / "look.py").write_text("x = 1\n")
    return package


def test_within_the_budgets(budgets, package, capsys):
    """Must catch: an instrument or an __init__.py measured as the shelf; the wider budget of
    gpt.py forgotten; a package of the shelf not looked into."""
    assert budgets.main(package, {}) == 0
    printed = capsys.readouterr().out
    assert "split it" not in printed
    assert [path.name for path in budgets.shelf(package)] == ["gpt.py", "idea.py", "stage1.py"]
    assert "ranks                          400" in printed
    assert "formulas                       500" in printed
    assert "zero                            30" in printed
    assert "shardlab                     1,403 of 12,000" in printed
    assert "coursekit                      500 of 8,500" in printed


def test_a_file_over_its_budget_needs_a_reason(budgets, package, capsys):
    """Must catch: a file that is too long passed over; a reason that is not read; a reason that
    outlives its file's size."""
    (package / "idea.py").write_text(201 * "x = 1\n")
    (package / "zero" / "stage1.py").write_text(202 * "x = 1\n")
    assert budgets.main(package, {"idea.py": "it is long."}) == 1
    printed = capsys.readouterr().out
    assert "over 200: it is long." in printed
    assert printed.count("over 200: split it") == 1
    assert budgets.main(package, {"idea.py": "long.", "zero/stage1.py": "long."}) == 0
    budgets.main(package, {"gpt.py": "it was long."})
    assert "its reason in tools/budgets.py can go" in capsys.readouterr().out


def test_dense_code_is_seen(budgets, package, capsys):
    """Must catch: lines packed by hand to meet the budget of lines."""
    for path in budgets.shelf(package):
        path.write_text("x = a + b * (c - d) / e\n")
    assert budgets.main(package, {}) == 1
    assert "over 10 tokens per line of code" in capsys.readouterr().out


def test_every_reason_names_a_file_of_the_shelf(budgets):
    """Must catch: a reason left behind by a file that was renamed."""
    names = {
        path.relative_to(budgets.PACKAGE).as_posix() for path in budgets.shelf(budgets.PACKAGE)
    }
    assert names
    assert set(budgets.REASONS) <= names
