"""An assignment of a topic and its trials, as they are found in assignments/<topic>/.

The trials.py in that folder makes an Assignment and adds trials, functions that run on every rank
and call what the learner wrote. A trial's docstring says what it tries, and what it raises says
what is wrong (asking.py beside the folders):

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
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
# in an installed wheel, and in a checkout
FOLDERS = (PACKAGE / "data" / "assignments", PACKAGE.parents[1] / "assignments")
GROUPS = ("parity", "bytes", "faults", "speed")


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

    @property
    def named(self) -> tuple[str, str, str]:
        return self.part, self.title, self.group


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
    """The assignment of a topic's trials.py. The folder of all is a package, so that trials may
    be in several files and ask as asking.py does."""
    package = sys.modules.setdefault("assignments", ModuleType("assignments"))
    package.__path__ = [str(folder_of(topic).parent)]
    return import_module(f"assignments.{topic}.trials").ASSIGNMENT
