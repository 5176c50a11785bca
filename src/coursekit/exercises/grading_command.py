"""The command `python -m shardlab grade`.

python -m shardlab grade TOPIC --start [FOLDER]    copy the skeleton and the specification
python -m shardlab grade TOPIC [FILE]              grade what you built
python -m shardlab grade TOPIC --reference         grade the hardened class of the shelf
python -m shardlab grade TOPIC --report FILE.json  write what was found, to hand in

A report has the trials, the versions and the time, and no source code:

{"schema": 1, "topic": "zero", "right": 21, "count": 24, "seconds": 31.2, "versions": {...},
 "trials": [{"part": "stage 1", "title": "...", "group": "parity", "said": "right",
             "sentence": ""}, ...]}

`as_gradescope` says the same as Gradescope wants it: one point a trial that counts.
"""

import argparse
import json
import os
import platform
import textwrap
import time
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from typing import Any

from coursekit.show.format import printable
from ranklab.ranks import RankError, ranks

from .assignments import CannotGrade, assignment, folder_of
from .grading import ABSENCE_SECONDS, Grader, TrialResult
from .grading_text import read_source, rules_broken, unwritten

REPORT_WIDTH = 100
REPORT_SCHEMA = 1
SHOWN = ("shardlab", "torch", "numpy")
REPORTED = ("part", "title", "group", "said", "sentence")


def place_of_file(topic: str) -> Path:
    """Where the skeleton is, or was copied to."""
    places = (Path("assignments", topic, f"{topic}.py"), Path(f"{topic}.py"))
    for place in places:
        if place.is_file():
            return place
    raise CannotGrade(
        f"there is no {places[0]} and no {places[1]} here: say which file, as in"
        f" `python -m shardlab grade {topic} FILE`, or get the skeleton by"
        f" `python -m shardlab grade {topic} --start`."
    )


def copy_skeleton(topic: str, folder: Path) -> list[Path]:
    """Copies the skeleton and the specification to folder/topic/; what is there already stays.
    Returns the copies."""
    source = folder_of(topic)
    copies = [folder / topic / name for name in ("README.md", f"{topic}.py")]
    rules = folder / "AGENTS.md"  # for an assistant that helps the learner
    for copy in copies:
        if copy.exists():
            raise CannotGrade(f"{copy} is there already: it is not overwritten.")
    copies[0].parent.mkdir(parents=True, exist_ok=True)
    for copy in copies:
        copyfile(source / copy.name, copy)
    if not rules.exists():
        copyfile(source.parent / rules.name, rules)
    return copies


def _print_filled(text: str, first: str, others: int):
    """Print the text in lines of REPORT_WIDTH, the others indented by so many blanks."""
    print(textwrap.fill(text, REPORT_WIDTH, initial_indent=first, subsequent_indent=others * " "))


def show_results(results: Iterable[TrialResult]) -> list[TrialResult]:
    """Prints each result as it comes; returns them all."""
    shown = []
    for result in results:
        if not shown or result.trial.group != shown[-1].trial.group:
            print(f"  {result.trial.group}")
        shown.append(result)
        said = result.said if result.counts or result.said != "not yet" else "not measured"
        _print_filled(f"{said:<9} {result.trial.part}: {result.trial.title}", 4 * " ", 14)
        for line in (*result.sentence.splitlines(), *result.printed.splitlines()):
            if text := printable(line.expandtabs()):
                _print_filled(text, 16 * " ", 16)
    return shown


def run_grade(asked) -> int:
    """Exit status 0 if all trials pass, 1 if not. Raises CannotGrade for a file that cannot be."""
    source, path = None, "the reference"
    if asked.start:
        readme, skeleton = copy_skeleton(asked.topic, asked.start)
        print(f"{readme} says what to build, {skeleton} is where. Then:")
        print(f"python -m shardlab grade {asked.topic} {skeleton}")
        return 0
    work = assignment(asked.topic)
    if not asked.reference:
        path = asked.file or place_of_file(asked.topic)
        source = read_source(path)
    print(f"{work.topic}: {path}")
    broken = [] if source is None else list(rules_broken(work, source, str(path)))[:5]
    for sentence in broken:
        _print_filled(f"not yet   {sentence}", 4 * " ", 0)
    if broken:
        return 1
    begin, todo = time.monotonic(), {} if source is None else unwritten(source)
    options = dict(device="cpu", patience_seconds=ABSENCE_SECONDS, announce=False)
    try:
        with ExitStack() as stack:
            start = lambda: stack.enter_context(ranks(work.world_size, **options))
            whose = dict(todo=todo, user=asked.user or ())
            shown = show_results(Grader(work, source, str(path), start, **whose).all_results())
    except RankError as error:  # ranks that do not start
        raise CannotGrade(str(error).partition("\n")[0]) from None
    report = report_of(work.topic, shown, time.monotonic() - begin)
    print(f"{report['right']} of {report['count']} right, in {report['seconds']:.0f} s.")
    write_reports(report, asked.report, asked.gradescope)
    return 0 if report["right"] == report["count"] else 1


def report_of(topic: str, results: list[TrialResult], seconds: float) -> dict[str, Any]:
    """The report. A trial's sentence is the grader's; what the learner's code printed stays out."""
    counted = [found for found in results if found.counts]
    return dict(
        schema=REPORT_SCHEMA,
        topic=topic,
        right=sum(found.said == "right" for found in counted),
        count=len(counted),
        seconds=round(seconds, 1),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={
            "python": platform.python_version(),
            **{name: import_module(name).__version__ for name in SHOWN},
        },
        trials=[
            dict(zip(REPORTED, (*found.trial.named, found.said, found.sentence)))
            for found in results
        ],
    )


def as_gradescope(report: dict[str, Any]) -> dict[str, Any]:
    """The report in the form of Gradescope's results.json; a speed has no points."""
    tests = []
    for part, title, group, said, sentence in map(dict.values, report["trials"]):
        right, points = said == "right", int(group != "speed")
        tests.append(
            dict(
                name=f"{group}, {part}: {title}",
                score=points * right,
                max_score=points,
                status="passed" if right or not points else "failed",
                output=sentence or said,
            )
        )
    return dict(tests=tests, execution_time=report["seconds"], stdout_visibility="hidden")


def write_reports(report: dict[str, Any], ours: Path | None, gradescope: Path | None) -> None:
    """Write the report to the places that are asked for. Raises OSError where one cannot be
    written."""
    for path, content in ((ours, report), (gradescope, as_gradescope(report))):
        if path is not None:
            path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def user_ids(name: str) -> tuple[int, int]:
    """(uid, gid) of a user of this machine as whom root may run a file."""
    try:
        import pwd  # not on Windows

        found = pwd.getpwnam(name)
    except (ImportError, KeyError):
        raise argparse.ArgumentTypeError(f"{name} is no user of this machine") from None
    if os.geteuid():
        raise argparse.ArgumentTypeError("root alone runs a file as somebody else")
    return found.pw_uid, found.pw_gid
