"""A lab's page leaves predictions to its reader: the guesses of the stored lab are taken off, and
what was measured stays. The learner's edition (see learner.py) has neither. Its title begins with
the number that the notebook's name gives. A call in a verdict is printed as code.
"""

import json
import re

from .learner import GUESS, has_tag

# the head of a table of predictions.py, its rule, and its rows
PREDICTIONS = re.compile(
    r"(\|  \| predicted \| measured \| predicted / measured \|.*\n.*\n)((?:.*\n?)*)"
)
ROW = re.compile(r"^\|([^|\n]*)\|[^|\n]*\|([^|\n]*)\|[^|\n]*\|", re.MULTILINE)
LOCKED = re.compile(r"^predicted: .*\n?", re.MULTILINE)
ESCAPED = re.compile(r"\\(.)")
# a call with a quoted argument, in Markdown
CALL = re.compile(r"""[\w.\\]+\([^()`\n]*['"][^()`\n]*\)""")


def without_guesses(lab: dict) -> dict:
    """The cells of a notebook (as JSON) without what its author predicted, in place: `...` in the
    code, nothing in the tables of predictions, where what was measured stays."""
    for cell in lab["cells"]:
        if has_tag(cell, "predict"):
            cell["source"] = GUESS.sub(r"\1...", "".join(cell["source"]))
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream" and has_tag(cell, "predict"):
                output["text"] = LOCKED.sub("", "".join(output["text"]))
            for kind, text in output.get("data", {}).items():
                if kind == "text/markdown":
                    output["data"][kind] = calls_as_code(_without_predictions("".join(text)))
        if "outputs" in cell:
            cell["outputs"] = [one for one in cell["outputs"] if one.get("text", "shown")]
    return lab


def _without_predictions(text: str) -> str:
    """The table alone: a sentence below it says what a wrong guess comes from."""
    rows = r"|\1| … |\2| … |"
    return PREDICTIONS.sub(
        lambda found: found[1] + ROW.sub(rows, found[2].partition("\n\n")[0]), text
    )


def calls_as_code(text: str) -> str:
    """Markdown in which a call with quotes is code: in a sentence its quotes would be curly, and
    a reader who copies the call would get an error."""
    return CALL.sub(lambda found: "`" + ESCAPED.sub(r"\1", found[0]) + "`", text)


def numbered(lab: dict, name: str) -> dict:
    """The notebook (as JSON) named `name`, 05-data-parallelism, with "Lab 5. " before its title, in
    place."""
    number, first = re.match(r"\d+", name), lab["cells"][0]
    if number:
        title = "".join(first["source"])
        first["source"] = title.replace("# ", f"# Lab {int(number[0])}. ", 1)
    return lab


def _read(app, docname, source):
    if docname.startswith("labs/") and app.env.doc2path(docname).endswith(".ipynb"):
        lab = numbered(without_guesses(json.loads(source[0])), docname.removeprefix("labs/"))
        source[0] = json.dumps(lab, ensure_ascii=False)


def setup(app):
    app.connect("source-read", _read)
