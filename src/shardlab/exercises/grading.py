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

The reference is held to the same trials. Four groups: parity, bytes, faults and speed, whose trials
return the seconds of both (`race`) and never fail. A part whose code is not written, does not end
or takes the ranks with it is not tried again.
"""

import ast
import io
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shardlab import topics
from shardlab.ranks import RankError, RankRaised, ranks

GROUPS = ("parity", "bytes", "faults", "speed")
TRIAL_SECONDS = 30.0  # for one trial
ABSENCE_SECONDS = 15.0  # for a rank that does not come to a collective
OUTPUT_CHARACTERS = 1_000  # of what the learner's code prints in one trial
SOURCE_CHARACTERS = 200_000
REPORT_WIDTH = 100


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
    """What is built in a topic. `forbidden`: dotted names of PyTorch that would be the solution;
    shardlab is forbidden except for `may_import`."""

    topic: str
    reference: Mapping[str, Any]  # what the learner's names are on the shelf
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


# --- finding what is graded -----------------------------------------------------------------------


def assignment(topic: str) -> Assignment:
    found = {module.ASSIGNMENT.topic: module.ASSIGNMENT for module in topics.modules("assignment")}
    if topic not in found:
        raise CannotGrade(f"{topic} has no assignment: there are {', '.join(found)}.")
    return found[topic]


def place_of_file(topic: str) -> Path:
    """Where the skeleton is, or was copied to."""
    places = (Path("assignments", topic, f"{topic}.py"), Path(f"{topic}.py"))
    for place in places:
        if place.is_file():
            return place
    raise CannotGrade(
        f"there is no {places[0]} and no {places[1]} here: say which file, as in"
        f" `python -m shardlab grade {topic} FILE`."
    )


def read_source(path: Path) -> str:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotGrade(f"{path} cannot be read: {error}.") from None
    if len(source) > SOURCE_CHARACTERS:
        raise CannotGrade(
            f"{path} has {len(source):,} characters: an assignment has at most"
            f" {SOURCE_CHARACTERS:,}."
        )
    return source


def rules_broken(asked: Assignment, source: str, path: str) -> Iterator[str]:
    """Sentences about the text: it does not compile, or takes what it is to build."""
    try:
        tree = ast.parse(source, path)
        compile(source, path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        yield f"{path}{where}: {getattr(error, 'msg', error)}: Python cannot read the file."
        return
    for line, name in sorted(set(names_used(tree))):
        if _within(name, asked.forbidden):
            yield f"line {line} uses {name}, which this assignment is to build: see its rules."
        elif _within(name, ("shardlab",)) and not _within(name, asked.may_import):
            also = f" and {', '.join(asked.may_import)}" if asked.may_import else ""
            yield f"line {line} imports {name}: the file may import PyTorch{also}."


def names_used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module imports, and of attributes of what it imports."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                known[alias.asname or whole] = whole
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := _dotted(node, known)):
            yield node.lineno, name


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, "")
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value, known)):
        return f"{base}.{node.attr}"
    return ""


def _within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# --- grading --------------------------------------------------------------------------------------


def grade(asked: Assignment, source: str | None, path: str, world) -> Iterator[TrialResult]:
    """The result of each trial, group by group, on the world's ranks. `source` None is the
    reference. Never raises for an error in the source."""
    from . import on_a_rank  # loads torch

    load = (
        partial(on_a_rank.Learners.of_source, source, path)
        if source is not None
        else partial(_reference, asked.topic)
    )
    world.run(_load_trials, asked.topic)  # before a trial's limit runs
    given_up: dict[str, str] = {}  # part -> why
    for group in GROUPS:
        for number, trial in enumerate(asked.trials):
            if trial.group != group:
                continue
            if trial.part in given_up:
                yield TrialResult(trial, "not yet", given_up[trial.part])
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
                        limit_seconds=TRIAL_SECONDS,
                    )
                said, sentence = ("measured", _ratio(found)) if group == "speed" else ("right", "")
            except RankError as error:
                said, sentence = "not yet", _words(error)
                if _kind(error) == on_a_rank.NotWritten.__name__:
                    sentence = f"not written yet: {sentence}"
                if not _went_on(error) or _kind(error) == on_a_rank.NotWritten.__name__:
                    given_up[trial.part] = f"not tried, because of {trial.part} above."
            yield TrialResult(trial, said, sentence, _cut(printed.getvalue()))


def _reference(topic: str):
    from .on_a_rank import Learners

    return Learners(f"the reference of {topic}", assignment(topic).reference)


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
    return textwrap.shorten(" ".join(lines), 600, placeholder=" ...")


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


# --- the command ----------------------------------------------------------------------------------


def show_results(results: Iterable[TrialResult]) -> tuple[int, int]:
    """Prints each result as it comes; (right, all) of those that count."""
    right = count = 0
    group = ""
    for result in results:
        if result.trial.group != group:
            group = result.trial.group
            print(f"  {group}")
        counts = group != "speed"
        count += counts
        right += counts and result.said == "right"
        said = "not measured" if not counts and result.said == "not yet" else result.said
        print(
            textwrap.fill(
                f"{said:<9} {result.trial.part}: {result.trial.title}",
                REPORT_WIDTH,
                initial_indent="    ",
                subsequent_indent=14 * " ",
            )
        )
        for text in (result.sentence, *result.printed.splitlines()):
            if text:
                print(
                    textwrap.fill(
                        text, REPORT_WIDTH, initial_indent=16 * " ", subsequent_indent=16 * " "
                    )
                )
    return right, count


def run_grade(asked) -> int:
    """Exit status 0 if all trials pass, 1 if not, 2 if the file cannot be graded."""
    try:
        work = assignment(asked.topic)
        path = None if asked.reference else asked.file or place_of_file(asked.topic)
        source = None if path is None else read_source(path)
    except CannotGrade as refused:
        print(refused)
        return 2
    name = "the reference" if path is None else str(path)
    print(f"{work.topic}: {name}")
    broken = [] if source is None else list(rules_broken(work, source, str(path)))[:5]
    for sentence in broken:
        print(textwrap.fill(f"not yet   {sentence}", REPORT_WIDTH, initial_indent="    "))
    if broken:
        return 1
    begin = time.monotonic()
    try:
        with ranks(
            work.world_size, device="cpu", patience_seconds=ABSENCE_SECONDS, announce=False
        ) as world:
            right, count = show_results(grade(work, source, name, world))
    except RankError as error:  # ranks that do not start
        print(str(error).partition("\n")[0])
        return 2
    except KeyboardInterrupt:
        print("interrupted.")
        return 130
    print(f"{right} of {count} right, in {time.monotonic() - begin:.0f} s.")
    return 0 if right == count else 1


def add_grade(commands):
    parser = commands.add_parser(
        "grade",
        help="try what you built for an assignment: parity, bytes, faults, speed",
        description="Run the trials of assignments/TOPIC on what you built. Exit code 0 if all are"
        " right, 1 if not, 2 if there is nothing to grade. Speed is shown and never counts.",
    )
    parser.add_argument("topic", metavar="TOPIC", help="such as collectives")
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="by default assignments/TOPIC/TOPIC.py"
    )
    parser.add_argument(
        "--reference", action="store_true", help="grade the reference on the shelf instead"
    )
    parser.set_defaults(run=run_grade)
