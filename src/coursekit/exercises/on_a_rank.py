"""The rank's side of grading: a learner's file, called as a module, and findings in words.

mine = Learners(source, "ring.py", path)     # runs the file
mine.all_reduce(x)                           # the learner's function; NotWritten, Wrong
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ranklab.ranks.messages import keep_lines, text_of

from .assignments import Assignment, assignment

SENTENCE_CHARACTERS = 500
GRADING = "coursekit.", "ranklab.", "shardlab.", "assignments.", "torch.distributed."


class Wrong(Exception):
    """The fault of a learner's file, in one line."""


class NotWritten(Exception):
    """A part of the skeleton that still raises NotImplementedError."""


class Learners:
    """The names of a learner's file, or of the reference."""

    def __init__(self, file: str, names: Mapping[str, Any]):
        self._file, self._names = file, names

    def __getattr__(self, name: str):
        if name not in self._names:
            raise Wrong(f"{self._file} has no {name}: keep the names of the skeleton.")
        return self._names[name]

    @classmethod
    def of_source(cls, source: str, path: str) -> "Learners":
        """Runs the source. Its classes can be pickled, its lines are shown in errors."""
        module = ModuleType("graded")
        module.__file__ = path
        sys.modules["graded"] = module
        keep_lines(path, source.splitlines(True))
        exec(compile(source, path, "exec"), vars(module))
        return cls(path.replace("\\", "/").rpartition("/")[2], vars(module))


@contextmanager
def judged_by_its_own() -> Iterator[None]:
    """Raises Wrong where the body has changed a function or class that grades it, and puts it back.
    No proof: the body shares this process."""
    names = [name for name in sys.modules if f"{name}.".startswith(GRADING) or name == "torch"]
    before = [
        (vars(sys.modules[name]), key, value, f"{name}.{key}")
        for name in names
        for key, value in vars(sys.modules[name]).items()
        if callable(value)
    ]
    try:
        yield
    finally:
        changed = [one for one in before if one[0].get(one[1]) is not one[2]]
        for module, key, value, _ in changed:
            module[key] = value
        if changed:
            raise Wrong(f"the file changes {changed[0][-1]}, which grades it.")


def graded(topic: str, name: str, source: str | None, path: str, core: bool, user: tuple):
    """The work of a rank for the trial of this name, which it imports for itself: its findings
    leave as Wrong or NotWritten, one line each."""
    asked = assignment(topic)
    if user and os.geteuid() == 0:  # in the first trial of a rank
        os.setgroups([])
        os.setgid(user[1])
        os.setuid(user[0])
    return _graded(asked, name, source, path, core)


@judged_by_its_own()
def _graded(asked: Assignment, name: str, source: str | None, path: str, core: bool):
    names = [trial.work.__name__ for trial in asked.trials]
    torch.manual_seed(names.index(name) + dist.get_rank())
    work = asked.trials[names.index(name)].work
    try:
        if source is not None:
            return work(Learners.of_source(source, path))
        return work(Learners(path, asked.core if core else asked.reference))
    except (Wrong, NotWritten) as error:
        raise type(error)(one_line(str(error))) from error
    except NotImplementedError as error:
        where = place_of(error, path)
        raise (NotWritten if where else Wrong)(
            f"{where or 'something that this machine cannot do'} raises NotImplementedError:"
            f" {one_line(text_of(error))}"
        ) from error
    except Exception as error:
        where = place_of(error, path)
        said = one_line(f"{type(error).__name__}: {about(error)}")
        raise Wrong(
            f"{where} raised {said}"
            if where
            else f"what came back cannot be used as the README says: {said}"
        ) from error


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SENTENCE_CHARACTERS else f"{line[:SENTENCE_CHARACTERS]} ..."


def about(error: BaseException) -> str:
    """The error's text, or a sentence instead of one that only says where PyTorch noticed."""
    text = text_of(error)
    if found := re.search(r"Global rank (\d+) is not part of group", text):
        return (
            f"rank {found[1]} of the world is not in this group: isend and irecv want the peer's"
            " rank in the world, dist.get_global_rank(group, peer), or its rank in the group as"
            " group_dst= and group_src=."
        )
    return text


def place_of(error: BaseException, path: str) -> str:
    """`all_reduce (ring.py, line 12: x += y)`, the innermost line of the learner's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if not frames:
        return ""
    frame = frames[-1]
    file = path.replace("\\", "/").rpartition("/")[2]
    return f"{frame.name} ({file}, line {frame.lineno}: {one_line(frame.line or '')[:80]})"
