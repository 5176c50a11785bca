"""The facilitator's card of a lab, and the instructor's edition of its notebook. Nothing on a card
is typed for it: the goal, the questions and the numbers come from the stored lab, the sentences
from the topics' `mistakes.md` and `predictions.md`; numbers on GPUs from the recordings in
`measured/`, else from the rates of virtual GPUs.

    ```{facilitator-card} labs/06-zero.ipynb
    ```

``python workshop/facilitator.py labs build/workshop/labs`` writes each lab with its card folded up
below the headings, section by section. Three roles of the plans take
nothing but the labs' word, or the clock's:

    {section}`06-zero: What does a rank keep?`      a link to that section of the lab
    {expected}`06-zero: stage 1, bytes`             the number that the stored lab measured
    {walked}`06-zero: What does a rank keep?`       the seconds that its cells took
"""

import json
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import nbformat
from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from bookkit.cards import CardDirective
from bookkit.lab_pages import PREDICTIONS, ROW
from bookkit.learner import has_tag
from coursekit.exercises.mistakes import mistakes_in, solutions
from coursekit.exercises.wrong_numbers import Slips, slips_of
from coursekit.planner.links import link_rates
from coursekit.recordings.recordings import Recording, read_all

logger = logging.getLogger(__name__)

# An estimate, measured in no room: minutes to read 200 words of text or code, to run a cell, to
# lock a prediction, to fill a blank. It gives about half an hour for the core of each lab.
WORDS_A_MINUTE, RUN, LOCK, BLANK = 200, 0.3, 0.75, 5
MISTAKES, SLIPS = 5, 4  # shown of an exercise, and of a prediction; the lab itself knows more

UNRECORDED = "the room's own: nobody has recorded it"  # a number on a GPU
VIRTUAL = "*virtual*"

HEADING = re.compile(r"^#{1,2} (.+)$", re.MULTILINE)
IMPORTED = re.compile(r"from coursekit\.topics\.(\w+)\.exercises import \(?([\w, \n]+)")
CHECKED = re.compile(r"\bcheck\((?:exercises\.)?(\w+)")
LOCKED = re.compile(r"""\.lock\(\s*f?(["'])(.+?)\1""")
ASKED = re.compile(r"^> \*\*Predict\.\*\* ((?:.+\n?(?:> ?)?)+)", re.MULTILINE)
MARKED = re.compile(r"([\\`*_{}\[\]<>$|])")
KEPT = re.compile(r"(`[^`\n]+`|(?<![\w*])\*\w[^*\n]*(?<=\w)\*(?![\w*]))")


class Section(NamedTuple):
    """A part of a lab from one heading to the next: its minutes, what it asks, the names of its
    predictions, and its exercises as (topic, name)."""

    title: str
    minutes: float
    questions: list[str]
    predictions: list[str]
    exercises: list[tuple[str, str]]

    @property
    def said_minutes(self) -> str:
        minutes = max(1, round(self.minutes))
        return f"({minutes} minute{'s' if minutes > 1 else ''})"

    @property
    def core(self) -> bool:
        return not self.title.startswith("More")


def sections(lab: nbformat.NotebookNode) -> list[Section]:
    """The sections of a stored lab, in its order, without the title's."""
    found: list[tuple[str, list]] = [("", [])]
    for cell in lab.cells:
        heading = HEADING.search(cell.source) if cell.cell_type == "markdown" else None
        if heading:
            found.append((heading[1].strip(), []))
        found[-1][1].append(cell)
    topics = _topics(lab)
    return [_section(title, cells, topics) for title, cells in found[2:]]


def _topics(lab) -> dict[str, str]:
    """The topic of each exercise that a lab imports, or calls as exercises.name."""
    text = "\n".join(cell.source for cell in lab.cells if cell.cell_type == "code")
    found = {
        name.strip(): topic
        for topic, names in IMPORTED.findall(text)
        for name in names.replace("\n", ",").split(",")
    }
    whole = re.search(r"from coursekit\.topics\.(\w+) import exercises", text)
    if whole:
        called = re.findall(r"\bexercises\.(\w+)", text)
        found |= {name: whole[1] for name in called if name not in found}
    return found


def _section(title: str, cells, topics: dict[str, str]) -> Section:
    shown = [c for c in cells if not (has_tag(c, "solution") or has_tag(c, "hide-input"))]
    code = "\n".join(cell.source for cell in shown if cell.cell_type == "code")
    text = "\n\n".join(cell.source for cell in shown if cell.cell_type == "markdown")
    locked = [name for _, name in LOCKED.findall(code)]
    minutes = (
        len(re.findall(r"\w\S*", text + code)) / WORDS_A_MINUTE
        + RUN * sum(cell.cell_type == "code" for cell in shown)
        + LOCK * len(locked)
        + BLANK * sum(has_tag(cell, "blank") for cell in shown)
    )
    questions = [" ".join(asked.replace("\n>", " ").split()) for asked in ASKED.findall(text)]
    named = dict.fromkeys(name for name in CHECKED.findall(code) if name in topics)
    return Section(title, minutes, questions, locked, [(topics[name], name) for name in named])


def measured_numbers(lab) -> dict[str, str]:
    """The measured number of each prediction, as a table of the stored lab shows it."""
    shown = {}
    for cell in lab.cells:
        for output in cell.get("outputs", []):
            text = "".join(output.get("data", {}).get("text/markdown", ""))
            for table in PREDICTIONS.findall(text):
                rows = (row.groups() for row in ROW.finditer(table[1]))
                shown |= {name.strip(): number.strip() for name, number in rows}
    return shown


def card(lab: nbformat.NotebookNode, recordings: list[Recording]) -> str:
    """The card in MyST: goal, minutes, and for each section what to ask, to expect and to say, and
    the solutions."""
    parts = sections(lab)
    core = sum(part.minutes for part in parts if part.core)
    more = sum(part.minutes for part in parts if not part.core)
    lines = [
        *_goal(lab),
        "",
        f"**Minutes.** The core takes {core:.0f}, the sections that begin with *More* take"
        f" {more:.0f}, for a learner who reads everything and fills each blank.",
        "",
    ]
    numbers = measured_numbers(lab)
    for part in parts:
        head = f"{part.title} {part.said_minutes}"
        lines += [f"```{{rubric}} {head}", "```", "", *section_notes(part, numbers, recordings)]
        for topic, name in part.exercises:
            solution = solutions().get(f"{topic}.{name}", {}).get("solution")
            if solution:
                lines += ["````{container} said-elsewhere", f"**Solution** of `{name}`:", ""]
                lines += ["```python", solution, "```", "````", ""]
    return "\n".join(lines)


def _goal(lab) -> list[str]:
    """The list in the lab's first cell."""
    bullets = re.search(r"^- (?:.+\n?)+", lab.cells[0].source, re.MULTILINE)
    return ["**Goal.** Afterwards a learner can", "", *(bullets[0].splitlines() if bullets else [])]


def section_notes(part: Section, numbers: dict[str, str], recordings: list[Recording]) -> list[str]:
    """The lines of one section of a card."""
    lines = []
    for question in part.questions:
        lines += [f"**Ask.** {question}", ""]
    if part.predictions:
        lines += [*_expected(part.predictions, numbers, recordings), ""]
        for name in part.predictions:
            lines += _wrong_numbers(name, numbers)
    for topic, name in part.exercises:
        lines += _mistakes(topic, name)
    return lines


def _expected(names, numbers: dict[str, str], recordings) -> list[str]:
    """The table of numbers without a GPU, on one and on several, and where those are from."""
    lines = ["| to predict | no GPU | one GPU | several |", "| :-- | --: | :-- | :-- |"]
    said = {}
    for name in names:
        one, several, recording = on_gpus(slips_of(name).on_gpus, recordings)
        if recording:
            said[recording.label] = None
        lines.append(f"| {_plain(name)} | {numbers.get(name, '–')} | {one} | {several} |")
    notes = [f"Rows named in the table are {label}." for label in said]
    if VIRTUAL in "".join(lines):
        notes.append("*Virtual*: what virtual GPUs reckon with, four fifths of a datasheet.")
    return [*lines, "", *([" ".join(notes)] if notes else [])]


def on_gpus(said: str, recordings: list[Recording]) -> tuple[str, str, Recording | None]:
    """The words for one GPU and for several, and the recording that they are from: the first on a
    GPU that has the row. Rates of virtual GPUs are told for several; for one, nobody has recorded
    the number."""
    if not said.startswith("`"):
        return said, said if said == Slips.on_gpus else "as on one", None
    found = []

    def recorded(row: str, **case) -> float:
        gpus = (one for one in recordings if one.hardware.kind == "gpu")
        found.append(next((one, rows[0]) for one in gpus if (rows := one.find(row, **case))))
        return found[0][1].value

    try:
        number = eval(said.strip("`"), dict(recorded=recorded, link_rates=link_rates))
    except StopIteration:
        return UNRECORDED, "as on one", None
    if not found:
        return UNRECORDED, f"{to_three_digits(number)}, {VIRTUAL}", None
    (recording, row), *_ = found
    of = f", of {task}" if (task := row.case.get("task")) else ""
    return f"{to_three_digits(number)}, `{row.name}`{of}", "as on one", recording


def to_three_digits(number: float) -> str:
    """A whole number as it is, another to three digits."""
    if isinstance(number, int):
        return f"{number:,}"
    rounded = float(f"{number:.3g}")
    return f"{round(rounded):,}" if rounded == round(rounded) else f"{rounded:g}"


def _wrong_numbers(name: str, numbers: dict[str, str]) -> list[str]:
    """Sentences about the wrong numbers of a prediction: a list, or nothing."""
    known = {key: number for key, text in numbers.items() if (number := _number(text)) is not None}
    right = known.get(name)
    slips: Slips = slips_of(name)
    if right is None or not slips.slips:
        return []
    said = []
    for slip in slips.slips:
        wrong = slip.ends(right, known)
        if wrong is not None:
            whole = [int(number) if number == int(number) else number for number in wrong]
            span = " to ".join(map(to_three_digits, dict.fromkeys(whole)))
            said.append(f"- {span}: {_plain(slip.sentence)}")
    return [f"**Wrong numbers** for *{_plain(name)}*", "", *said[:SLIPS], ""] if said else []


def _mistakes(topic: str, name: str) -> list[str]:
    """Where learners get stuck in an exercise: the sentences of its wrong answers."""
    text = files(f"coursekit.topics.{topic}").joinpath("mistakes.md").read_text("utf-8")
    sentences = [mistake.sentence for mistake in mistakes_in(text).get(name, [])]
    if not sentences:
        return []
    head = f"**Where learners get stuck** in `{name}`:"
    return [head, "", *(f"- {_plain(sentence)}" for sentence in sentences[:MISTAKES]), ""]


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _plain(text: str) -> str:
    """Text in which no sign is Markdown's, but names in code and words in italics stay so."""
    parts = KEPT.split(text)
    return "".join(
        MARKED.sub(r"\\\1", part) if k % 2 == 0 else part for k, part in enumerate(parts)
    )


def instructors_edition(
    lab: nbformat.NotebookNode, recordings: list[Recording]
) -> nbformat.NotebookNode:
    """A new notebook: the stored lab, with a card folded up below each heading."""
    edition = nbformat.from_dict(lab)
    numbers = measured_numbers(lab)
    notes = {part.title: part for part in sections(lab)}
    cells = []
    for number, cell in enumerate(edition.cells):
        cells.append(cell)
        heading = HEADING.search(cell.source) if cell.cell_type == "markdown" else None
        part = notes.get(heading[1].strip()) if heading else None
        if part:
            summary = f"<summary>For the instructor {part.said_minutes}</summary>"
            note = "\n".join(section_notes(part, numbers, recordings))
            folded = f"<details>{summary}\n\n{note}\n</details>"
            cells.append(nbformat.v4.new_markdown_cell(folded, id=f"instructor-{number}"))
    edition.cells = cells
    return edition


class FacilitatorCard(CardDirective):
    """The card of a stored lab, whose path from the book's folder is the argument."""

    def make(self):
        path = Path(self.env.srcdir) / self.arguments[0].strip()
        if not path.is_file():
            raise ValueError(f"there is no stored lab {self.arguments[0].strip()!r}.")
        self.env.note_dependency(str(path))
        box = nodes.container(classes=["facilitator-card"])
        recordings = read_all(Path(self.env.srcdir) / "measured")
        lines = card(nbformat.read(path, as_version=4), recordings).splitlines()
        for number, line in enumerate(lines):
            self.content.append(line, str(path), number)
        self.state.nested_parse(self.content, 0, box)
        return box


class LabRole(SphinxRole):
    """A role whose text is `lab: what of it`; a lab or a part that is not there is a warning."""

    def run(self):
        name, _, what = self.text.partition(": ")
        path = Path(self.env.srcdir, "labs", f"{name}.ipynb")
        try:
            if not path.is_file():
                raise ValueError(f"there is no stored lab {name!r}.")
            self.env.note_dependency(str(path))
            return [self.make(name, nbformat.read(path, as_version=4), what)], []
        except ValueError as wrong:
            logger.warning(
                f"{self.name}: %s",
                wrong,
                location=self.get_location(),
                type="bookkit",
                subtype="facilitator",
            )
            return [nodes.Text(what)], []


class SectionRole(LabRole):
    """A link to a section of a lab."""

    def make(self, name, lab, title):
        titles = [part.title for part in sections(lab)]
        if title not in titles:
            raise ValueError(f"lab {name} has no section {title!r}; there are {titles}.")
        return addnodes.pending_xref(
            self.rawtext,
            nodes.inline("", f"lab {int(name[:2])}, {title}"),
            refdomain="std",
            reftype="doc",
            reftarget=f"/labs/{name}",
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )


class WalkedRole(SphinxRole):
    """How long the cells of a section, or the start of a lab, took when a plan was walked with a
    clock (tools/rehearse.py). `machine`: where that was; `seats`: what eight learners at once
    took."""

    def run(self):
        path = Path(self.env.srcdir, "workshop", "walked.json")
        self.env.note_dependency(str(path))
        walked = json.loads(path.read_text("utf-8"))
        if self.text in walked["words"]:
            return [nodes.Text(walked["words"][self.text])], []
        if self.text in walked["seconds"]:
            return [nodes.Text(f"{max(1, round(walked['seconds'][self.text]))} s")], []
        logger.warning(
            "walked: nobody walked %r: python tools/rehearse.py plan 90 writes %s",
            self.text,
            path.name,
            location=self.get_location(),
            type="bookkit",
            subtype="facilitator",
        )
        return [nodes.Text("not walked")], []


class ExpectedRole(LabRole):
    """The number that a stored lab measured for a prediction."""

    def make(self, name, lab, prediction):
        numbers = measured_numbers(lab)
        if prediction not in numbers:
            raise ValueError(f"lab {name} measures no {prediction!r}; there are {list(numbers)}.")
        return nodes.Text(numbers[prediction])


def setup(app):
    app.add_directive("facilitator-card", FacilitatorCard)
    app.add_role("section", SectionRole())
    app.add_role("expected", ExpectedRole())
    app.add_role("walked", WalkedRole())
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main(source: str, target: str) -> None:
    """Write the instructor's edition of each lab in a folder to another folder."""
    Path(target).mkdir(parents=True, exist_ok=True)
    recordings = read_all(Path(source).parent / "measured")
    for path in sorted(Path(source).glob("*.ipynb")):
        edition = instructors_edition(nbformat.read(path, as_version=4), recordings)
        nbformat.write(edition, Path(target, path.name))


if __name__ == "__main__":
    main(*sys.argv[1:])
