"""The rank's side of grading: a learner's file, called as a module, and findings in words.

    mine = Learners(source, "ring.py", path)     # runs the file
    mine.all_reduce(x)                           # the learner's function; NotWritten, Wrong
    expect("all_reduce of 7 elements", x, wanted, instead={sentence: value of a misconception})
    refuses("all_reduce of a list", mine.all_reduce, [1.0])

A finding is raised: the other ranks, which may wait for this one, are then stopped.
"""

import linecache
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger

from .assignments import Assignment, assignment

SENTENCE_CHARACTERS = 500
CLOSE_ENOUGH = 1e-9  # relative; float64 sums in another order differ by less than 1e-14
GRADING = "coursekit.", "ranklab.", "shardlab.", "trials_of_", "torch.distributed."
PAIRS = 7  # of interleaved times
GROUPS_OF_RANKS = {1: [2], 2: [1, 3], 3: [1, 2, 3], 4: [0, 1, 2, 3]}  # by their size


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
        linecache.cache[path] = (len(source), None, source.splitlines(True), path)
        exec(compile(source, path, "exec"), vars(module))
        return cls(path.replace("\\", "/").rpartition("/")[2], vars(module))


@contextmanager
def judged_by_its_own(*packages: str) -> Iterator[None]:
    """Raises Wrong where the body has changed a function or class of these packages, and puts it
    back. No proof: the body shares this process."""
    names = [name for name in sys.modules if f"{name}.".startswith(packages) or name == "torch"]
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
    with judged_by_its_own(*GRADING):
        return _graded(asked, name, source, path, core)


def _graded(asked: Assignment, name: str, source: str | None, path: str, core: bool):
    names = [trial.work.__name__ for trial in asked.trials]
    torch.manual_seed(names.index(name) + dist.get_rank())
    work = asked.trials[names.index(name)].work
    try:
        if source is not None:
            mine = Learners.of_source(source, path)
        else:
            mine = Learners(path, asked.core if core else asked.reference)
        return work(mine)
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


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the learner's own class, with its own __str__
        return "(its text cannot be shown)"


def place_of(error: BaseException, path: str) -> str:
    """`all_reduce (ring.py, line 12: x += y)`, the innermost line of the learner's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if not frames:
        return ""
    frame = frames[-1]
    file = path.replace("\\", "/").rpartition("/")[2]
    return f"{frame.name} ({file}, line {frame.lineno}: {one_line(frame.line or '')[:80]})"


# --- what a trial asks ----------------------------------------------------------------------------


def expect(
    what: str,
    got: Any,
    wanted: Tensor,
    instead: Mapping[str, Tensor] | None = None,
    close: float = CLOSE_ENOUGH,
):
    """Raise Wrong unless `got` is the wanted tensor. `instead`: sentences of misconceptions, each
    with the tensor that the misconception gives."""
    if not isinstance(got, Tensor):
        given = "None" if got is None else f"something of type {type(got).__name__}"
        raise Wrong(f"{what} should be a tensor of shape {list(wanted.shape)}, and is {given}.")
    got = got.detach()
    for name, one, other in (
        ("shape", list(got.shape), list(wanted.shape)),
        ("dtype", str(got.dtype), str(wanted.dtype)),
    ):
        if one != other:
            raise Wrong(f"{what} should have the {name} {other}, and has {one}.")
    if _alike(got, wanted, close):
        return
    far = (got - wanted).abs().nan_to_num(torch.inf, torch.inf, torch.inf).reshape(-1)
    place = int(far.argmax())
    wrong = int((far > close * wanted.abs().max().clamp(min=1)).sum())
    said = (
        f"{what}: {wrong} of {far.numel()} elements differ, most of all element {place}, which"
        f" should be {float(wanted.reshape(-1)[place]):.6g} and is"
        f" {float(got.reshape(-1)[place]):.6g}."
    )
    for sentence, value in (instead or {}).items():
        if value.shape == got.shape and _alike(got, value.to(got.dtype), close):
            raise Wrong(f"{said} {sentence}")
    raise Wrong(said)


def _alike(one: Tensor, other: Tensor, close: float) -> bool:
    scale = float(other.abs().max()) if other.numel() else 1.0
    return torch.allclose(one, other, rtol=0, atol=close * max(scale, 1.0))


def demand(right: bool, sentence: str):
    if not right:
        raise Wrong(sentence)


def refuses(
    what: str,
    function: Callable,
    *arguments,
    errors=(ValueError, TypeError),
    may_send: bool = False,
    **named,
):
    """The call must raise one of `errors` with a text, before anything is sent. `may_send`: all
    ranks bring the same wrong thing, and may ask each other."""
    names = " or ".join(error.__name__ for error in errors)
    with CommunicationLog() as log:
        try:
            function(*arguments, **named)
        except NotImplementedError:
            raise
        except errors as error:
            demand(bool(text_of(error)), f"{what} should say why: its {names} has no text.")
        except Exception as error:
            raise Wrong(
                f"{what} should raise {names}, and raised {type(error).__name__}: {text_of(error)}"
            ) from error
        else:
            raise Wrong(f"{what} should raise {names}, and raised nothing.")
    demand(
        may_send or not log.messages,
        f"{what} should raise {names} before anything is sent: {len(log.messages)} messages had"
        " left, for which other ranks now wait.",
    )


def held(function: Callable, *arguments) -> int:
    """The most bytes of memory that the call allocated at one time, by the byte ledger."""
    with Ledger(torch.nn.Identity()) as ledger:
        before = ledger.bytes.total
        function(*arguments)
    return max((point.bytes.total for point in ledger.timeline), default=before) - before


def sent_at_best(log: CommunicationLog, operations: str = "") -> float:
    """The bytes that leave this rank if each collective is done as well as can be: (n - 1)/n of the
    array, twice that for an all-reduce, all of a send. `operations`: these alone."""
    total = 0.0
    for message in log.messages:
        if operations and message.operation not in operations.split():
            continue
        others = (message.group_size - 1) / message.group_size
        share = dict(send=1.0, recv=0.0, barrier=0.0, all_reduce=2 * others)
        total += message.nbytes * share.get(message.operation, others)
    return total


def closest(got: Tensor, values: Sequence[Tensor]) -> Tensor:
    """The value for each element that is closest to what was got: is each of them one of these?"""
    stacked = torch.stack(list(values))
    if got.shape != stacked.shape[1:]:
        return stacked[0]
    return stacked.gather(0, (stacked - got.detach()).abs().argmin(0, keepdim=True))[0]


class Here(NamedTuple):
    """A group that this rank is in."""

    group: dist.ProcessGroup
    n: int
    me: int  # in the group


def new_groups(*members: Sequence[int]) -> list[Here]:
    """New groups of these ranks, those that this rank is in. All ranks call it, before any of them
    uses a group."""
    made = [(dist.new_group(list(ranks)), ranks) for ranks in members]
    me = dist.get_rank()
    return [Here(group, len(ranks), dist.get_rank(group)) for group, ranks in made if me in ranks]


def groups(*sizes: int) -> list[Here]:
    """Groups of these sizes, of ranks that do not begin at 0 if they are not all four."""
    return new_groups(*(GROUPS_OF_RANKS[size] for size in sizes))


def race_of_two(mine: Callable, reference: Callable) -> tuple[float, float]:
    """(seconds of mine, seconds of the reference): medians of interleaved calls."""
    times: tuple[list, list] = ([], [])
    for _ in range(PAIRS + 1):
        for function, seconds in zip((mine, reference), times):
            dist.barrier()
            begin = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - begin)
    mine_seconds, reference_seconds = (sorted(seconds[1:])[PAIRS // 2] for seconds in times)
    return mine_seconds, reference_seconds
