"""Grades a learner's file: a whole technique, built from a skeleton and a specification in
assignments/<topic>/.

    python -m shardlab grade collectives [FILE]

The trials.py in that folder makes an Assignment and adds trials, functions that run on every rank
and call what the learner wrote. A trial's docstring says what it tries, and what it raises says
what is wrong (on_a_rank.py):

    ASSIGNMENT = Assignment("collectives", reference={"all_reduce": collectives.all_reduce})

    @ASSIGNMENT.trial("parity", "all_reduce")
    def sums(mine):
        "the sum of 7 elements over 4 ranks"
        x = torch.arange(7.0)
        mine.all_reduce(x)
        expect("x after all_reduce", x, 4 * torch.arange(7.0))

The reference is held to the same trials, and so is the core of the technique: to pytest the folders
are tests, and `pytest assignments/collectives --mine FILE` tries a learner's file
(assignments/conftest.py). A wheel carries the folders as data.

Four groups: parity, bytes, faults and speed, whose trials return the seconds of both
(`race_of_two`) and never fail. A part whose code is not written is never run; a part that does not
end or takes the ranks with it is not tried again; a line that raises the same error in several
trials is told once.

grading_text.py looks at the file before it runs, grading_command.py is the command.
"""

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from shardlab.ranks import RankError, RankRaised

PACKAGE = Path(__file__).resolve().parents[1]
# in an installed wheel, and in a checkout
FOLDERS = (PACKAGE / "data" / "assignments", PACKAGE.parents[1] / "assignments")
GROUPS = ("parity", "bytes", "faults", "speed")
TRIAL_SECONDS = 30.0  # for one trial
ABSENCE_SECONDS = 15.0  # for a rank that does not come to a collective
WORDS_CHARACTERS = 600  # of what a trial found
OUTPUT_CHARACTERS = 1_000  # of what the learner's code prints in one trial
LINE_AND_ERROR = re.compile(r".+? \([^()]+, line \d+: .*?\) raised \w+")  # on_a_rank.place_of


class CannotGrade(ValueError):
    """One sentence that says why a file cannot be graded."""


@dataclass(frozen=True)
class Trial:
    group: str
    part: str  # the learner's function or class
    work: Callable  # of Learners, on each rank

    @property
    def title(self) -> str:
        return " ".join((self.work.__doc__ or self.work.__name__).split())


class TrialResult(NamedTuple):
    trial: Trial
    said: str  # "right", "not yet" or, of a speed, "measured"
    sentence: str
    printed: str = ""


@dataclass
class Assignment:
    """The task of a topic, which learners build. `forbidden`: dotted names of PyTorch that would be
    the solution; shardlab is forbidden except for `may_import`."""

    topic: str
    reference: Mapping[str, Any]  # what the learner's names are on the shelf
    core: Mapping[str, Any]  # and in the technique's core
    forbidden: tuple[str, ...] = ()
    may_import: tuple[str, ...] = ()
    world_size: int = 4
    trials: list[Trial] = field(default_factory=list)

    def trial(self, group: str, part: str) -> Callable:
        if group not in GROUPS:
            raise ValueError(f"group = {group!r}: there are {', '.join(GROUPS)}.")
        if part not in self.reference:
            raise ValueError(f"part = {part!r}: there are {', '.join(self.reference)}.")

        def add(work: Callable) -> Callable:
            self.trials.append(Trial(group, part, work))
            return work

        return add

    def trial_of_each(self, group: str, *parts: str) -> Callable:
        """One trial for each part: trial(what the learner has under this name, name)."""

        def add(trial: Callable) -> Callable:
            for name in parts:

                def work(mine, name=name):
                    return trial(getattr(mine, name), name)

                work.__doc__, work.__name__ = trial.__doc__, f"{trial.__name__}_of_{name}"
                self.trial(group, name)(work)
            return trial

        return add


# --- finding what is graded -----------------------------------------------------------------------


def folder_of(topic: str) -> Path:
    """The folder of a topic's assignment. Its trials are not imported: that would load torch."""
    folder = next(filter(Path.is_dir, FOLDERS), None)
    if folder is None:
        raise CannotGrade(
            f"this installation has no skeleton of {topic}: install the wheel of the book, or take"
            f" assignments/{topic}/ of the repository."
        )
    there = sorted(path.parent.name for path in folder.glob("*/trials.py"))
    if topic not in there:
        raise CannotGrade(f"{topic} has no assignment: there are {', '.join(there)}.")
    return folder / topic


def assignment(topic: str) -> Assignment:
    """The assignment of a topic's trials.py. Its folder is imported as a package, so that trials
    may be in several files, and under a name that nothing else has."""
    folder, name = folder_of(topic), f"trials_of_{topic}"
    if name not in sys.modules:
        spec = spec_from_file_location(
            name, folder / "trials.py", submodule_search_locations=[str(folder)]
        )
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].ASSIGNMENT


# --- grading --------------------------------------------------------------------------------------


@dataclass
class Grader:
    """Tries a learner's source. `source` None is the reference, or the core; `start` starts the
    ranks, when the first trial runs; `todo` are the lines of parts that are not written."""

    asked: Assignment
    source: str | None
    path: str
    start: Callable[[], Any]
    trial_seconds: float = TRIAL_SECONDS
    todo: Mapping[str, int] = field(default_factory=dict)
    core: bool = False
    given_up: dict[str, str] = field(default_factory=dict)  # part -> why
    told: dict[str, Trial] = field(default_factory=dict)  # line and error -> who told of it first

    @cached_property
    def world(self):
        world = self.start()
        world.run(_load_trials, self.asked.topic)  # before a trial's limit runs
        return world

    def all_results(self) -> Iterator[TrialResult]:
        for group in GROUPS:
            yield from (self.result(one) for one in self.asked.trials if one.group == group)

    def result(self, trial: Trial) -> TrialResult:
        """Never raises for an error in the source."""
        if trial.part in self.given_up:
            return TrialResult(trial, "not yet", self.given_up[trial.part])
        if trial.part in self.todo:
            self._give_up(trial.part)
            line = self.todo[trial.part]
            sentence = f"not written yet: line {line} raises NotImplementedError."
            return TrialResult(trial, "not yet", sentence)
        from .on_a_rank import graded  # loads torch

        world, printed = self.world, io.StringIO()
        try:
            with redirect_stdout(printed), redirect_stderr(printed):
                found = world.run(
                    graded,
                    self.asked.topic,
                    trial.work.__name__,
                    self.source,
                    self.path,
                    self.core,
                    limit_seconds=self.trial_seconds,
                )
            measured = trial.group == "speed"
            said, sentence = ("measured", _ratio(found)) if measured else ("right", "")
        except RankError as error:
            said, sentence = "not yet", self._sentence(trial, error)
        return TrialResult(trial, said, sentence, _cut(printed.getvalue()))

    def _sentence(self, trial: Trial, error: RankError) -> str:
        sentence, todo = _words(error), _kind(error) == "NotWritten"
        if todo:
            sentence = f"not written yet: {sentence}"
        if todo or not isinstance(error, RankRaised):  # a rank had to be ended, or waited for
            self._give_up(trial.part)
        if cause := LINE_AND_ERROR.match(sentence):
            first = self.told.setdefault(cause[0], trial)
            if first is not trial:
                sentence = f"{cause[0]}, as in {first.part}: {first.title}."
        return sentence

    def _give_up(self, part: str):
        self.given_up[part] = f"not tried, because of {part} above."


def _load_trials(topic: str):
    assignment(topic)


def _kind(error: RankError) -> str:
    """The class of the exception that a rank raised."""
    first = str(error).partition("\n")[0]
    return first.partition(" raised ")[2].partition(":")[0] if isinstance(error, RankRaised) else ""


def _words(error: RankError) -> str:
    """The finding, with its ranks where they are not all ranks."""
    first, *rest = str(error).splitlines()
    if (kind := _kind(error)) in ("Wrong", "NotWritten"):
        return f"{first.partition(f' raised {kind}: ')[2]} ({first.partition(' raised ')[0]})"
    lines = [first, *(line.strip() for line in rest[:-1])]  # the last one is about the ranks
    if sum(map(len, lines)) > WORDS_CHARACTERS:
        lines = [textwrap.shorten(line, WORDS_CHARACTERS // len(lines)) for line in lines]
    return "\n".join(lines)


def _ratio(found: list[tuple[float, float]]) -> str:
    mine, reference = (max(seconds) for seconds in zip(*found))
    return (
        f"{mine / reference:.2f} times the reference's time: {1000 * mine:.1f} ms and"
        f" {1000 * reference:.1f} ms, medians of interleaved calls on this machine."
    )


def _cut(printed: str) -> str:
    if len(printed) <= OUTPUT_CHARACTERS:
        return printed
    return f"{printed[:OUTPUT_CHARACTERS]}\n... {len(printed):,} characters in all\n"
