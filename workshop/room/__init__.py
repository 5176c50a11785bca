"""A room of learners, from files in one shared folder: no server, and nothing about persons but the
name that they typed.

    python -m shardlab hand-in SHARED --name Ada       on a learner's machine, as often as one likes
    python -m shardlab collect SHARED                  on the instructor's

`hand-in` reads the learner's own notebooks and predictions, and writes one small file: what runs
here, where each lab stands, which exercises are right, and the predictions. No code is in it.
"""

import csv
import json
import os
import re
import secrets
import statistics
import tempfile
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from coursekit.machine.regular_file import LARGEST_FILE_BYTES, regular_json
from coursekit.show.format import printable
from coursekit.show.tables import Table

from .handed_in import HANDED_IN_SCHEMA, LONGEST_NAME, HandedIn, LabState, handed_in, typed

TOKEN = ".room"  # beside the labs: which file of the shared folder is this learner's
BINS, BAR = 8, 30  # of a histogram: how many, and signs of the longest
WIDE_RANGE = 8  # factor between the least and the largest number from which bins are factors, too
NEAR_MEASURED = 0.1  # of the measured number
FIRST_OF_BOOK = 2  # columns of a gradebook before those of assignments
FEWEST = 3  # predictions that make a histogram
NOT_ONE = ValueError, KeyError, TypeError, AttributeError, OSError  # of a file that is no notebook

CHECKED = re.compile(r"\bcheck\((?:exercises\.)?(\w+)")
HEADING = re.compile(r"^#{1,2} (.+)$", re.MULTILINE)
COMPARED = re.compile(r"^\| ([^|\n]+) \| [^|\n]+ \| ([-\d.,e+]+) \| [^|\n]+ \|$", re.MULTILINE)


class CannotCollect(ValueError):
    """A shared folder that is not there, or a name that cannot be one."""


# --- on a learner's machine -----------------------------------------------------------------------


def state_of(path: Path) -> LabState:
    """The state of a saved notebook. Raises ValueError for another file."""
    cells = regular_json(path)["cells"]
    section, reached, latest = "", "", 0
    exercises: dict[str, str] = {}
    measured: dict[str, float] = {}
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            section = (HEADING.findall(source) or [section])[-1]
            continue
        count = cell.get("execution_count") or 0
        if count > latest:
            latest, reached = count, section
        shown = "".join(map(_text, cell.get("outputs", ())))
        for name in CHECKED.findall(source):
            said = "right" if "**right:**" in shown else "not yet" if "**not yet" in shown else ""
            exercises[name] = said or exercises.get(name, "open")
        for name, number in COMPARED.findall(shown):
            with suppress(ValueError):
                measured[name] = float(number.replace(",", ""))
    return LabState(path.stem, reached, exercises, measured)


def _text(output: dict) -> str:
    return "".join(output.get("data", {}).get("text/markdown", output.get("text", "")))


def hand_in(shared: Path, name: str, labs: Path, doctor: dict | None = None) -> Path:
    """Write, or write anew, this learner's file in the shared folder; return its path."""
    name = " ".join(name.split())
    if not name or len(name) > LONGEST_NAME or printable(name) != name:
        raise CannotCollect(f"the name {name!r:.200} is not one of 1 to {LONGEST_NAME} letters.")
    if not shared.is_dir():
        raise CannotCollect(f"{shared} is no folder here: is the shared disk mounted?")
    states, predictions, reports = [], {}, []
    saved = filter(Path.is_file, labs.glob("[0-9]*.ipynb"))
    saved = sorted(saved, key=lambda path: (path.stat().st_mtime, path.name))
    for path in saved:  # the one that was saved last is where the learner is
        with _left_out_if_damaged(path):
            states.append(typed(state_of(path)._asdict(), LabState)._asdict())
    for path in sorted(labs.glob("*.predictions.json")):
        with _left_out_if_damaged(path):
            locked = typed(regular_json(path), dict[str, float])
            predictions[path.name.removesuffix(".predictions.json")] = locked
    found = {os.path.realpath(p) for where in (labs, Path()) for p in where.glob("*.report.json")}
    for report in sorted(found):
        with _left_out_if_damaged(Path(report)):
            reports.append(typed(regular_json(Path(report)), dict[str, Any]))
    written = dict(
        schema=HANDED_IN_SCHEMA,
        name=name,
        ready=None if doctor is None else doctor["ready"],
        missing=[f["question"] for f in (doctor or {}).get("findings", ()) if not f["fit"]],
        labs=states,
        predictions=predictions,
        reports=reports,
    )
    if len(content := json.dumps(written, indent=1)) > LARGEST_FILE_BYTES:
        raise CannotCollect(
            f"{len(reports)} reports in {labs} are more than {LARGEST_FILE_BYTES:,} bytes."
        )
    token = _token(labs)
    target = shared / f"{re.sub(r'[^0-9A-Za-z]+', '-', name)}-{token}.json"
    with tempfile.NamedTemporaryFile(
        "w", dir=shared, prefix=".", delete=False, encoding="utf-8"
    ) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, target)
    for before in set(shared.glob(f"*-{token}.json")) - {target}:  # of these labs, by another name
        with suppress(OSError):
            before.unlink()
    return target


@contextmanager
def _left_out_if_damaged(path: Path) -> Iterator[None]:
    try:
        yield
    except NOT_ONE as error:
        print(printable(f"{path.name} is damaged, and left out ({str(error)[:80]})."))


def _token(labs: Path) -> str:
    """A few signs that stay with these labs, so that two learners of one name have two files."""
    path = labs / TOKEN
    if path.is_file() and re.fullmatch(b"[0-9a-f]{6}", token := path.read_bytes().strip()):
        return token.decode()
    token = secrets.token_hex(3)
    if path.is_file() or not path.exists():
        with suppress(OSError):  # a folder that is read-only: another file at the next call
            path.write_text(token, "utf-8")
    return token


# --- on the instructor's machine ------------------------------------------------------------------


def read_folder(shared: Path) -> tuple[list[HandedIn], list[str]]:
    """The learners' files, by name, and one sentence for each file that is damaged."""
    if not shared.is_dir():
        raise CannotCollect(f"{shared} is no folder: collect wants the one that learners share.")
    found, damaged = [], []
    for path in sorted(shared.glob("[!.]*.json")):
        try:
            found.append(handed_in(path))
        except (ValueError, OSError) as error:
            said = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            sentence = f"{path.name} is damaged ({said}): its learner hands in once more."
            damaged.append(printable(sentence))
    return sorted(found, key=lambda one: one.name.lower()), damaged


def class_report(shared: Path, lab: str = "") -> str:
    """The learners and where they are, the exercises that are open, and a histogram of each
    prediction, of one lab or of all."""
    learners, damaged = read_folder(shared)
    lab = lab.zfill(2) if lab.isdigit() else lab
    known = sorted({state.lab for one in learners for state in one.labs})
    parts = [_summary(learners, len(damaged))] if learners else []
    parts += [
        repr(Table(["learner", "machine", "at", "right", "not yet"], map(_row, learners)))
        if learners
        else "Nobody has handed in yet: python -m shardlab hand-in SHARED --name NAME"
    ]
    if lab and not any(name.startswith(lab) for name in known):
        parts.append(f"Nobody has a lab {printable(lab)}; there are {', '.join(known) or 'none'}.")
    parts += [repr(Table(*book))] if len((book := gradebook(learners))[0]) > FIRST_OF_BOOK else []
    parts += [repr(table) for table in exercises_of(learners, lab)]
    parts += histograms(learners, lab)
    return "\n\n".join([*parts, *(["\n".join(damaged)] if damaged else [])])


def _summary(learners: list[HandedIn], damaged: int) -> str:
    of = [one.ready for one in learners]
    counts = f"{of.count(True)} ready, {of.count(False)} not ready, {of.count(None)} not examined"
    return f"{len(learners)} learners: {counts}; {damaged} damaged files."


def _row(learner: HandedIn) -> list[str]:
    ready = {True: "ready", False: "not ready: " + ", ".join(learner.missing), None: "not examined"}
    begun = [state for state in learner.labs if state.section]
    at = f"lab {begun[-1].lab[:2]}: {begun[-1].section}" if begun else "not begun"
    said = [verdict for state in learner.labs for verdict in state.exercises.values()]
    return [
        learner.name,
        ready[learner.ready],
        at,
        *(str(said.count(v)) for v in ("right", "not yet")),
    ]


def gradebook(learners: list[HandedIn]) -> tuple[list[str], list[list]]:
    """Heads and rows: each learner's exercises that are right and, of each assignment, the trials
    that are right in the best report, and how many there are."""
    best: list[dict[str, tuple[int, int]]] = [{} for _ in learners]
    for learner, own in zip(learners, best):
        for report in learner.reports:
            topic, *found = (report.get(key) for key in ("topic", "right", "count"))
            if type(topic) is str and [type(one) for one in found] == [int, int]:
                topic = printable(topic)[:LONGEST_NAME]
                own[topic] = max(own.get(topic, (0, 0)), tuple(found))
    topics = sorted({topic for own in best for topic in own})
    heads = ["learner", "exercises", *(part for topic in topics for part in (topic, "of"))]
    rows = []
    for learner, own in zip(learners, best):
        right = sum(s == "right" for lab in learner.labs for s in lab.exercises.values())
        rows.append([learner.name, right, *(n for t in topics for n in own.get(t, ("", "")))])
    return heads, rows


def write_gradebook(shared: Path, path: Path) -> None:
    """The gradebook as CSV. What a spreadsheet would compute is text there, too."""
    heads, rows = gradebook(read_folder(shared)[0])
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        for row in [heads, *rows]:
            table.writerow(
                [f"'{one}" if str(one).startswith(tuple("=+-@")) else one for one in row]
            )


def exercises_of(learners: list[HandedIn], lab: str = "") -> Iterator[Table]:
    """The number of learners by exercise and verdict, of the labs that somebody has begun."""
    names = sorted({s.lab for one in learners for s in one.labs if s.section})
    for name in names:
        if not name.startswith(lab):
            continue
        states = [s.exercises for one in learners for s in one.labs if s.lab == name]
        order = dict.fromkeys(exercise for state in states for exercise in state)
        verdicts = ("right", "not yet", "open")
        rows = [
            [each, *(sum(s.get(each) == verdict for s in states) for verdict in verdicts)]
            for each in order
        ]
        if rows:
            yield Table([name, *verdicts], rows)


def histograms(learners: list[HandedIn], lab: str = "") -> Iterator[str]:
    """A histogram of each prediction that a few learners have locked, with the measured number
    where somebody's lab shows one."""
    numbers: dict[tuple[str, str], list[float]] = {}
    for learner in learners:
        for name, own in learner.predictions.items():
            if name.startswith(lab):
                for prediction, number in own.items():
                    numbers.setdefault((name, prediction), []).append(number)
    measured: dict[tuple[str, str], list[float]] = {}
    for state in (state for learner in learners for state in learner.labs):
        for prediction, number in state.measured.items():
            measured.setdefault((state.lab, prediction), []).append(number)
    for key in sorted(numbers):
        if len(numbers[key]) >= FEWEST:
            right = statistics.median(measured[key]) if key in measured else None
            yield histogram(f"{key[0]}: {key[1]}", numbers[key], right)


def histogram(title: str, numbers: list[float], right: float | None = None) -> str:
    """A bar of signs for each number where there are few of them, else for each of some bins, which
    are equal factors where the numbers lie far apart. The measured number has a mark."""
    import numpy as np  # nothing else of this command needs it

    head = f"{title}: {len(numbers)} predictions, median {_said(statistics.median(numbers))}"
    if right is not None:
        close = sum(abs(number - right) <= NEAR_MEASURED * abs(right) for number in numbers)
        head += f"; measured {_said(right)}, {close} within {NEAR_MEASURED:.0%} of it"
    few = sorted({*numbers, *(() if right is None else (right,))})
    if len(few) <= BINS:
        rows = [(_said(each), numbers.count(each), each == right) for each in few]
    else:
        low, high = min(numbers), max(numbers)
        spaced = np.geomspace if low > 0 and high > WIDE_RANGE * low else np.linspace
        ends = [float(f"{end:.12g}") for end in spaced(low, high, BINS + 1)]
        found = [bisect(ends[1:-1], number) for number in numbers]
        at = None if right is None else bisect(ends[1:-1], right)
        rows = [
            (f"{_said(start):>12} to {_said(end):>12}", found.count(number), number == at)
            for number, (start, end) in enumerate(pairwise(ends))
        ]
    most = max(count for _, count, _ in rows)
    lines = [
        f"{label:>28} {count:>4} {'#' * round(BAR * count / most)}{'  <- measured' * marked}"
        for label, count, marked in rows
    ]
    return "\n".join([head, *map(str.rstrip, lines)])


def _said(number: float) -> str:
    """A number as a room reads it: a count with all its digits, any other to four."""
    return f"{number if number == round(number) else float(f'{number:.4g}'):,.12g}"


# --- the commands ---------------------------------------------------------------------------------


def run_hand_in(asked) -> int:
    labs = asked.labs or (Path("labs") if Path("labs").is_dir() else Path())
    doctor = None
    if asked.doctor:
        from coursekit.machine.doctor import examine  # loads torch

        found = examine(labs)
        ready = all(one.fit for one in found)
        doctor = dict(ready=ready, findings=[one._asdict() for one in found])
    print(f"handed in: {hand_in(asked.shared, asked.name, labs, doctor)}")
    return 0


def run_collect(asked) -> int:
    print(class_report(asked.shared, asked.lab or ""))
    if asked.csv:
        write_gradebook(asked.shared, asked.csv)
        print(f"the gradebook is in {asked.csv}")
    return 0
