"""Grades a learner's file: a whole technique, built from a skeleton and a specification in
assignments/<topic>/.

    python -m shardlab grade collectives [FILE]

A topic's assignment.py makes an Assignment and adds trials, functions that run on every rank and
call what the learner wrote. A trial's docstring says what it tries, and what it raises says what is
wrong (on_a_rank.py):

    ASSIGNMENT = Assignment("collectives", reference={"all_reduce": collectives.all_reduce})

    @ASSIGNMENT.trial("parity", "all_reduce")
    def sums(mine):
        "the sum of 7 elements over 4 ranks"
        x = torch.arange(7.0)
        mine.all_reduce(x)
        expect("x after all_reduce", x, 4 * torch.arange(7.0))

The reference is held to the same trials, and so is the core of the technique. Four groups:
parity, bytes, faults and speed, whose trials return the seconds of both (`race_of_two`) and never
fail. A part whose code is not written is never
run; a part that does not end or takes the ranks with it is not tried again; a line that raises the
same error in several trials is told once.

grading_text.py looks at the file before it runs, grading_command.py is the command.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from coursekit import topics
from shardlab.ranks import RankError, RankRaised

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


def assignment(topic: str) -> Assignment:
    found = {module.ASSIGNMENT.topic: module.ASSIGNMENT for module in topics.modules("assignment")}
    return found[the_topic(topic)]


def the_topic(topic: str) -> str:
    """A topic with an assignment, which is not imported: that would load torch."""
    there = topics.with_module("assignment")
    if topic not in there:
        raise CannotGrade(f"{topic} has no assignment: there are {', '.join(there)}.")
    return topic


# --- grading --------------------------------------------------------------------------------------


def grade(
    asked: Assignment,
    source: str | None,
    path: str,
    world,
    trial_seconds: float = TRIAL_SECONDS,
    todo: Mapping[str, int] | None = None,
    core: bool = False,
) -> Iterator[TrialResult]:
    """The result of each trial, group by group, on the world's ranks. `source` None is the
    reference, or the core; `todo` are the lines of parts that are not written. Never raises for an
    error in the source. `world` may be None where no part is written."""
    from . import on_a_rank  # loads torch

    load = (
        partial(on_a_rank.Learners.of_source, source, path)
        if source is not None
        else partial(_on_the_shelf, asked.topic, core)
    )
    if world is not None:
        world.run(_load_trials, asked.topic)  # before a trial's limit runs
    given_up: dict[str, str] = {}  # part -> why
    told: dict[str, Trial] = {}  # line and error -> the trial that told of it
    for group in GROUPS:
        for number, trial in enumerate(asked.trials):
            if trial.group != group:
                continue
            if trial.part in given_up:
                yield TrialResult(trial, "not yet", given_up[trial.part])
                continue
            if trial.part in (todo or {}):
                given_up[trial.part] = f"not tried, because of {trial.part} above."
                sentence = f"not written yet: line {todo[trial.part]} raises NotImplementedError."
                yield TrialResult(trial, "not yet", sentence)
                continue
            printed = io.StringIO()
            try:
                with redirect_stdout(printed), redirect_stderr(printed):
                    found = world.run(
                        on_a_rank.graded,
                        trial.work,
                        load,
                        path,
                        number,
                        limit_seconds=trial_seconds,
                    )
                said, sentence = ("measured", _ratio(found)) if group == "speed" else ("right", "")
            except RankError as error:
                said, sentence = "not yet", _words(error)
                if _kind(error) == on_a_rank.NotWritten.__name__:
                    sentence = f"not written yet: {sentence}"
                if not _went_on(error) or _kind(error) == on_a_rank.NotWritten.__name__:
                    given_up[trial.part] = f"not tried, because of {trial.part} above."
                if cause := LINE_AND_ERROR.match(sentence):
                    first = told.setdefault(cause[0], trial)
                    if first is not trial:
                        sentence = f"{cause[0]}, as in {first.part}: {first.title}."
            yield TrialResult(trial, said, sentence, _cut(printed.getvalue()))


def _on_the_shelf(topic: str, core: bool):
    from .on_a_rank import Learners

    found = assignment(topic)
    name, parts = ("core", found.core) if core else ("reference", found.reference)
    return Learners(f"the {name} of {topic}", parts)


def _load_trials(topic: str):
    assignment(topic)


def _kind(error: RankError) -> str:
    """The class of the exception that a rank raised."""
    first = str(error).partition("\n")[0]
    return first.partition(" raised ")[2].partition(":")[0] if isinstance(error, RankRaised) else ""


def _went_on(error: RankError) -> bool:
    """Whether the trial ended by a finding, not by a rank that had to be ended or waited for."""
    return isinstance(error, RankRaised)


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
