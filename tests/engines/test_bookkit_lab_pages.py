"""The parts of the stored lab that a lab's page leaves out."""

import json
import re
from pathlib import Path

import nbformat

from bookkit.lab_pages import calls_as_code, kept, without_guesses
from coursekit.exercises.predictions import Predictions

LABS = Path(__file__).resolve().parents[2] / "labs"


def test_a_page_leaves_predictions_to_its_reader(tmp_path):
    """The guess is gone from the code, from the words and from both columns of the table; what was
    measured stays, and other tables stay as they are.

    Must catch: a guess that stays in one of them, or in a sentence that says what it comes from; a
    measured number taken off, too."""
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


def test_a_call_in_a_verdict_is_code():
    """Must catch: a call left in the sentence, where its quotes become curly; the backslash that
    protects an underscore kept in code, where it would show; a call without quotes touched."""
    verdict = r'**not yet:** ledger.by\_module("activations") says it; rate(2 ranks) does not.'
    wanted = '**not yet:** `ledger.by_module("activations")` says it; rate(2 ranks) does not.'
    assert calls_as_code(verdict) == wanted
    assert calls_as_code("f(unit='GB/s') gave") == "`f(unit='GB/s')` gave"
    assert calls_as_code("the reader's (or the book's)") == "the reader's (or the book's)"


def test_no_lab_shows_a_guess():
    """Must catch: a line that holds a guess and that the page's rule does not see; the line that
    says what was locked."""
    for path in sorted(LABS.glob("*.ipynb")):
        for cell in without_guesses(json.loads(path.read_text("utf-8")))["cells"]:
            if "predict" in cell["metadata"].get("tags", []):
                assert re.search(r"^my_\w+ = \.\.\.(?= *(#|$))", cell["source"], re.MULTILINE), path
                streams = [out["text"] for out in cell["outputs"] if out["output_type"] == "stream"]
                assert not any("predicted: " in "".join(text) for text in streams), path
