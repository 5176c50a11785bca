"""A report of a grading, to hand in: the trials, the versions and the time, and no source code.

{"schema": 1, "topic": "zero", "right": 21, "count": 24, "seconds": 31.2, "versions": {...},
 "trials": [{"part": "stage 1", "title": "...", "group": "parity", "said": "right",
             "sentence": ""}, ...]}

`as_gradescope` says the same as Gradescope wants it: one point a trial that counts.
"""

import json
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .grading import TrialResult

REPORT_SCHEMA = 1
SHOWN = ("shardlab", "torch", "numpy")
REPORTED = ("part", "title", "group", "said", "sentence")


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
        versions={"python": platform.python_version(), **{name: _version(name) for name in SHOWN}},
        trials=[
            dict(zip(REPORTED, (*found.trial.named, found.said, found.sentence)))
            for found in results
        ],
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


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
