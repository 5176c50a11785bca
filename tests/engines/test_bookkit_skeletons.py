"""Half-written solutions, made from those of the labs."""

import ast
from pathlib import Path

from nbformat.v4 import new_code_cell, new_notebook

from bookkit.skeletons import half_written, skeletons, text_of_skeletons

ROOT = Path(__file__).resolve().parents[2]


def test_the_skeletons_are_those_of_the_labs():
    """Must catch: a solution that has changed since; a lab that was stored by hand."""
    stored = (ROOT / "src" / "coursekit" / "data" / "skeletons.json").read_text("utf-8")
    assert text_of_skeletons(ROOT / "labs") == stored, "run tools/store_lab.py, for any lab"


def test_what_a_reader_writes_is_dots():
    """Must catch: a value that is given away; a line of the blank turned into dots; the names and
    the calls of a solution lost; a solution without dots, or nothing but dots, taken for half."""

    def half(solution, blank="def f(x):\n    n = len(x)\n    return ..."):
        return half_written(ast.parse(solution).body, ast.parse(blank))

    solution = (
        "def f(x):\n    n = len(x)\n    own = x[1:n]\n    for part in range(3 * n):\n"
        "        if part > 2:\n            own += g(part, 7)\n    h(own)\n    return own / n"
    )
    assert half(solution) == (
        "def f(x):\n    n = len(x)\n    own = ...\n    for part in range(...):\n"
        "        if ...:\n            own += g(...)\n    h(...)\n    return ..."
    )
    assert half("def f(x):\n    return x / 3") == "" == half("def f(x):\n    n = len(x)")
    assert half(solution, solution) == ""
    assert half("with ranks(2) as two:\n    found = two.run(f, 3)", "") == (
        "with ranks(...) as two:\n    found = two.run(...)"
    )


def test_the_function_that_a_check_takes():
    """Must catch: the function of another check in the same cell; a task without a function; the
    imports that a solution needs, or that it does not."""
    imported = "from math import e as one, pi\nfrom coursekit.topics.zero.exercises import a, b\n"
    solution = (
        "def f(x):\n    y = x + one\n    return y\n\n\ndef g(x):\n    z = x + 1\n    return z\n"
    )
    found = skeletons(
        new_notebook(
            cells=[
                new_code_cell(f"{imported}check(a, f)"),
                new_code_cell("check(b, found)"),
                new_code_cell(f"{solution}check(a, f)", metadata={"tags": ["solution"]}),
                new_code_cell("found = 2 + 3\ncheck(b, found)", metadata={"tags": ["solution"]}),
            ]
        )
    )
    assert {name: one["half"] for name, one in found.items()} == {
        "zero.a": "def f(x):\n    y = ...\n    return y",
        "zero.b": "found = ...",
    }
    assert found["zero.a"]["imports"] == "from math import e as one"
    assert found["zero.a"]["solution"] == "def f(x):\n    y = x + one\n    return y"
