"""A lab's page leaves predictions to its reader: the guesses of the stored lab are taken off, and
what was measured stays. The learner's edition (see learner.py) has neither. Its title begins with
the number that the notebook's name gives. A call in a verdict is printed as code; the verdict of a
blank that nobody has filled is left out. Where the lab has a live explorer or stepper, its page has
the book's.
"""

import json
import re
from copy import copy

from coursekit.show.embed import STORED
from coursekit.show.in_words import PLOTLY

from .learner import GUESS, has_tag

# the head of a table of predictions.py, its rule, and its rows
PREDICTIONS = re.compile(
    r"(\|  \| predicted \| measured \| predicted / measured \|.*\n.*\n)((?:.*\n?)*)"
)
ROW = re.compile(r"^\|([^|\n]*)\|[^|\n]*\|([^|\n]*)\|[^|\n]*\|", re.MULTILINE)
LOCKED = re.compile(r"^predicted: .*\n?", re.MULTILINE)  # what `Predictions.lock` prints
ESCAPED = re.compile(r"\\(.)")
LIVE = re.compile(r'^(?:display\()?(explorer|stepper)\(\s*"([\w -]+)"', re.MULTILINE)
UNFILLED = "gave Ellipsis"
# a call with a quoted argument, in Markdown
CALL = re.compile(r"""[\w.\\]+\([^()`\n]*['"][^()`\n]*\)""")


def kept(outputs: list[dict]) -> list[dict]:
    """Copies of a cell's outputs that have only what a page shows: without the guesses that
    a cell locks, the text of a table that is there as Markdown, what a line of progress leaves when
    it goes, and the HTML of a live card, which is as large as the rest of a lab, and of a figure,
    which is as large as its JSON."""
    found = []
    for output in map(copy, outputs):
        data = output.get("data")
        if output["output_type"] == "stream":
            output["text"] = LOCKED.sub("", "".join(output["text"]))
            if not output["text"]:
                continue
        elif data is not None:
            output["data"] = {
                kind: shown
                for kind, shown in data.items()
                if (kind != "text/plain" or (shown and "text/markdown" not in data))
                and (kind != "text/html" or data.keys().isdisjoint((STORED, PLOTLY)))
            }
            if not output["data"]:
                continue
        found.append(output)
    return found


def without_guesses(lab: dict) -> dict:
    """The cells of a notebook (as JSON) without what its author predicted, in place: `...` in the
    code, nothing in the tables of predictions, where what was measured stays."""
    for cell in lab["cells"]:
        if has_tag(cell, "predict"):
            cell["source"] = GUESS.sub(r"\1...", "".join(cell["source"]))
        live = LIVE.search("".join(cell["source"]))
        for output in [*cell.get("outputs", [])]:
            if live and STORED in output.get("data", {}):
                output["data"] = {"text/markdown": f"```{{{live[1]}}} {live[2]}\n```"}
                continue
            if UNFILLED in json.dumps(output.get("data")):
                cell["outputs"].remove(output)
            for kind, text in output.get("data", {}).items():
                if kind == "text/markdown":
                    output["data"][kind] = calls_as_code(_without_predictions("".join(text)))
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
