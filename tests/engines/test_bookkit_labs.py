"""The parts of the stored lab that a lab's page leaves out; half-written solutions out of it."""

import json
import re

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from pages import ROOT
from skeletons import skeletons, text_of_skeletons

from bookkit.lab_pages import kept, without_guesses
from coursekit.exercises.predictions import Predictions
from coursekit.show.embed import STORED
from coursekit.show.widgets import explorer

LABS = ROOT / "labs"


def test_a_page_leaves_predictions_to_its_reader(tmp_path):
    """Must catch: a guess that stays in one of them, or in a sentence that says what it comes from;
    a measured number taken off, too."""
    predictions = Predictions("a lab", folder=tmp_path)
    predictions.lock("bytes", 153)
    tables = [
        predictions.compare("bytes", 612)._repr_markdown_(),
        "| formula | predicted |\n| :-- | --: |\n| p | 600 |",
    ]
    outputs = [nbformat.v4.new_output("stream", text="predicted: bytes = 153\n")]
    outputs += [nbformat.v4.new_output("display_data", {"text/markdown": one}) for one in tables]
    cell = nbformat.v4.new_code_cell(
        "my_bytes = 153  # of all\nlook(my_bytes)", outputs=kept(outputs)
    )
    cell.metadata["tags"] = ["predict"]
    [found] = without_guesses({"cells": [cell]})["cells"]
    assert found["source"] == "my_bytes = ...  # of all\nlook(my_bytes)"
    first, second = [output["data"]["text/markdown"] for output in found["outputs"]]
    assert second == tables[1]
    assert "153" not in first and "0.25" not in first and "| bytes | … | 612 | … |" in first
    assert "quarter" in tables[0] and "quarter" not in first


def test_a_page_has_the_books_explorer_and_no_blank_verdict():
    """Must catch: a sentence about a dead control where the book has its explorer; a hundred
    kilobytes of it in a stored lab; the verdict of a blank that waits for its reader."""
    shown = explorer("zero")._repr_mimebundle_()
    blank = {"text/markdown": "**not yet:** f(1) gave Ellipsis: fill in the blank."}
    outputs = [nbformat.v4.new_output("display_data", data) for data in (blank, shown)]
    outputs = kept(outputs)
    assert {*outputs[1]["data"]} == {STORED, "text/plain"} and "text/html" in shown
    cell = nbformat.v4.new_code_cell('display(explorer(\n    "zero", n=1))', outputs=outputs)
    [found] = without_guesses({"cells": [cell]})["cells"]
    assert [out["data"] for out in found["outputs"]] == [
        {"text/markdown": "```{explorer} zero\n```"}
    ]


def test_no_lab_shows_a_guess():
    """Must catch: a line that holds a guess and that the page's rule does not see; the line that
    says what was locked."""
    for path in sorted(LABS.glob("*.ipynb")):
        for cell in without_guesses(json.loads(path.read_text("utf-8")))["cells"]:
            if "predict" in cell["metadata"].get("tags", []):
                assert re.search(r"^my_\w+ = \.\.\.(?= *(#|$))", cell["source"], re.MULTILINE), path
                streams = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream"]
                assert not any("predicted: " in "".join(text) for text in streams), path


def test_the_skeletons_are_those_of_the_labs():
    """Must catch: a solution that has changed since; a lab that was stored by hand; a value that is
    given away; a line of the blank turned into dots; the names and the calls of a solution lost; a
    solution without dots, or nothing but dots, taken for half."""
    stored = (ROOT / "src" / "coursekit" / "data" / "skeletons.json").read_text("utf-8")
    assert text_of_skeletons(ROOT / "labs") == stored, "run tools/store_lab.py, for any lab"


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
