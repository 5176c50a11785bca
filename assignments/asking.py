"""Questions of trials to what a learner wrote, on each rank. A finding is raised as Wrong: other
ranks, which may wait for this one, are then stopped.

    expect("all_reduce of 7 elements", x, wanted, instead={sentence: value of a misconception})
    refuses("all_reduce of a list", mine.all_reduce, [1.0])
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.exercises.on_a_rank import Wrong, text_of
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger

CLOSE_ENOUGH = 1e-9  # relative; float64 sums in another order differ by less than 1e-14
PAIRS = 7  # of interleaved times
GROUPS_OF_RANKS = {1: [2], 2: [1, 3], 3: [1, 2, 3], 4: [0, 1, 2, 3]}  # by their size


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
