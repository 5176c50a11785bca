"""Grades a learner's file: a whole technique, built from a skeleton and a specification in
assignments/<topic>/.

    python -m shardlab grade collectives [FILE]

What an assignment is, and how its trials look: assignments.py.

Four groups: parity, bytes, faults and speed, whose trials return the seconds of both
(`race_of_two`) and never fail. A part whose code is not written is never run; a part that does not
end or takes the ranks with it is not tried again; a line that raises the same error in several
trials is told once.

grading_text.py looks at the file before it runs, grading_command.py is the command.
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ranklab.ranks import RankError, RankRaised

from .assignments import GROUPS, Assignment, Trial, assignment

TRIAL_SECONDS = 30.0  # for one trial
ABSENCE_SECONDS = 15.0  # for a rank that does not come to a collective
WORDS_CHARACTERS = 600  # of what a trial found
OUTPUT_CHARACTERS = 1_000  # of what the learner's code prints in one trial
NOT_WRITTEN = "not written yet: "
FINDING = re.compile(r"([^:]+?) raised (Wrong|NotWritten): (.*)")  # of on_a_rank.py, on some ranks
LINE_AND_ERROR = re.compile(r".+? \([^()]+, line \d+: .*?\) raised \w+")  # on_a_rank.place_of


class TrialResult(NamedTuple):
    trial: Trial
    said: str  # "right", "not yet" or, of a speed, "measured"
    sentence: str
    printed: str = ""

    @property
    def counts(self) -> bool:
        """True for a verdict that is more than a measured speed."""
        return self.trial.group != "speed"


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
    user: tuple = ()  # (uid, gid) as which the file runs; root grades then
    given_up: dict[str, str] = field(default_factory=dict)  # part -> why
    told: dict[str, Trial] = field(default_factory=dict)  # line and error -> who told of it first

    @cached_property
    def world(self):
        world, topic = self.start(), self.asked.topic
        world.run(lambda: bool(assignment(topic)))  # loads the trials before a limit runs
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
            sentence = f"{NOT_WRITTEN}line {line} raises NotImplementedError."
            return TrialResult(trial, "not yet", sentence)
        from .on_a_rank import graded  # loads torch

        world, printed = self.world, io.StringIO()
        try:
            with redirect_stdout(printed), redirect_stderr(printed):
                found = world.run_untrusted(
                    graded,
                    self.asked.topic,
                    trial.work.__name__,
                    self.source,
                    self.path,
                    self.core,
                    self.user,
                    limit_seconds=self.trial_seconds,
                )
            measured = trial.group == "speed"
            said, sentence = ("measured", _ratio(found)) if measured else ("right", "")
        except RankError as error:
            said, sentence = "not yet", self._sentence(trial, error)
        return TrialResult(trial, said, sentence, _cut(printed.getvalue()))

    def _sentence(self, trial: Trial, error: RankError) -> str:
        sentence = _words(error)
        # or a rank had to be ended, or waited for
        if sentence.startswith(NOT_WRITTEN) or not isinstance(error, RankRaised):
            self._give_up(trial.part)
        if cause := LINE_AND_ERROR.match(sentence):
            first = self.told.setdefault(cause[0], trial)
            if first is not trial:
                sentence = f"{cause[0]}, as in {first.part}: {first.title}."
        return sentence

    def _give_up(self, part: str):
        self.given_up[part] = f"not tried, because of {part} above."


def _words(error: RankError) -> str:
    """The finding, with its ranks where they are not all ranks."""
    if found := FINDING.match(str(error)):
        ranks, kind, said = found.groups()
        return f"{NOT_WRITTEN * (kind == 'NotWritten')}{said} ({ranks})"
    first, *rest = str(error).splitlines()
    lines = [first, *(line.strip() for line in rest[:-1])]  # the last one is about the ranks
    if sum(map(len, lines)) > WORDS_CHARACTERS:
        lines = [textwrap.shorten(line, WORDS_CHARACTERS // len(lines)) for line in lines]
    return "\n".join(lines)


def _ratio(found: Any) -> str:
    try:
        mine, reference = (max(seconds) for seconds in zip(*found, strict=True))
        ratio = mine / reference
    except (TypeError, ValueError, ZeroDivisionError):
        raise RankError("The race has not two times of each rank.", []) from None
    return (
        f"{ratio:.2f} times the reference's time: {1000 * mine:.1f} ms and"
        f" {1000 * reference:.1f} ms, medians of interleaved calls on this machine."
    )


def _cut(printed: str) -> str:
    if len(printed) <= OUTPUT_CHARACTERS:
        return printed
    return f"{printed[:OUTPUT_CHARACTERS]}\n... {len(printed):,} characters in all\n"
