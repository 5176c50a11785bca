"""Thread ranks: threads of this process that send to each other. A check on thread ranks cannot
hang: if all of them wait, all end, and the error says who waits for whom; a rank that does not end
is stopped.

    answer_of_ranks(3, lambda dist: dist.get_rank())   # [0, 1, 2]: one result a rank, or a Failure
    answer_of_ranks(2, work)                           # work(dist) may isend, recv, broadcast and
                                                       # all_reduce as in torch

P2POp(dist.isend, tensor, rank) and batch_isend_irecv are there, too.

A message is copied when it is sent. An isend never waits; a send, and the wait() of an isend, last
until the message is taken or an irecv has room for it. An all-reduce takes what each rank brings as
its k-th, whatever that is: like a real one. With async_op=True the sum is there after wait().
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed
from torch import Tensor

from coursekit.exercises.answers import unless_blank
from coursekit.exercises.checker import Failure, is_blank
from coursekit.exercises.numbers import ranks_in_words
from coursekit.exercises.patience import RunsOn, stop
from coursekit.exercises.properties import OfRanks
from ranklab.torch_internals import settings_of_contexts

WORK_SECONDS = 10.0  # for work that neither ends nor waits
STOPPED_SECONDS = 1.0  # for a rank to end when it is told to


class Stuck(RuntimeError):
    """No rank can go on."""


class Sheet:
    """The shared state of the ranks of one piece of work."""

    def __init__(self, n: int):
        self.n, self.changed = n, threading.Condition()
        # the messages from one rank to another, and how many of them have room there
        self.mail: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        self.room: Counter[tuple[int, int]] = Counter()
        # to the k-th all-reduce, by rank
        self.brought: dict[int, dict[int, Tensor]] = defaultdict(dict)
        self.running, self.waiting = set(range(n)), {}
        self.results: list = [None] * n
        self.trouble: BaseException | None = None
        # errors of each rank's own code; being stopped is not one
        self.errors: dict[int, BaseException] = {}

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A change that a waiting rank may wait for."""
        with self.changed:
            yield
            self.changed.notify_all()

    def wait(self, rank: int, ready: Callable[[], bool], words: str):
        """Wait until `ready`, or raise Stuck when no rank can go on, as another has failed or also
        waits: the same code fails in the same way each time."""
        with self.changed:
            self.waiting[rank] = ready, words
            while not ready() and self.trouble is None:
                waiting = sorted(self.waiting.items())
                if len(waiting) == len(self.running) and not any(can() for _, (can, _) in waiting):
                    said = "; ".join(f"rank {one} waits {words}" for one, (_, words) in waiting)
                    self.trouble = Stuck(f"{said}: nobody can go on.")
                    self.changed.notify_all()
                else:
                    self.changed.wait()
            del self.waiting[rank]
            if not ready():
                raise Stuck(str(self.trouble))

    def end(self, rank: int, error: BaseException | None):
        with self.changing():
            self.running.discard(rank)
            if isinstance(error, (Stuck, RunsOn)):
                self.trouble = self.trouble or error
            elif error is not None:
                self.errors[rank] = error

    def verdict(self) -> tuple[BaseException | None, list[int]]:
        """The error and the ranks that raised it; of several errors that of the lowest rank."""
        if isinstance(self.trouble, TimeoutError) or not self.errors:
            return self.trouble, []
        error, kind = self.errors[min(self.errors)], lambda error: (type(error), str(error))
        alike = [rank for rank, other in self.errors.items() if kind(other) == kind(error)]
        return error, sorted(alike)


class P2POp:
    """One message of a batch: dist.isend or dist.irecv, its tensor, and with whom."""

    def __init__(self, op: Callable, tensor: Tensor, peer: int, group=None, tag: int = 0):
        self.op, self.tensor, self.peer = op, tensor, peer


class ThreadRank:
    """One rank's view, the `dist` of a reader's code."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, sheet: Sheet, rank: int):
        self._sheet, self._rank = sheet, rank
        self.messages_sent, self.elements_sent, self.reductions = 0, 0, 0
        self.isends: list[Later] = []

    def __getattr__(self, name: str):
        known = ", ".join(sorted(word for word in vars(ThreadRank) if not word.startswith("_")))
        raise AttributeError(f"thread ranks have no {name}; they have {known}.")

    def get_rank(self, group=None) -> int:
        return self._rank

    def get_world_size(self, group=None) -> int:
        return self._sheet.n

    def isend(self, tensor: Tensor, dst: int, group=None, tag: int = 0) -> "Later":
        self.isends.append(self._sent(tensor, dst))
        return self.isends[-1]

    def send(self, tensor: Tensor, dst: int, group=None, tag: int = 0):
        """Waits until the message is taken, as a real send of many bytes does."""
        self._sent(tensor, dst).wait()

    def _sent(self, tensor: Tensor, dst: int) -> "Later":
        self._peer(dst)
        letter, way = tensor.detach().clone(), (self._rank, dst)
        self.messages_sent += 1
        self.elements_sent += letter.numel()
        with self._sheet.changing():
            self._sheet.mail[way].append(letter)
            number = len(self._sheet.mail[way])
        taken = lambda: self._sheet.room[way] >= number
        words = f"until rank {dst} takes its message"
        return Later(lambda: self._sheet.wait(self._rank, taken, words))

    def recv(self, tensor: Tensor, src: int, group=None, tag: int = 0) -> int:
        self.irecv(tensor, src).wait()
        return src

    def irecv(self, tensor: Tensor, src: int, group=None, tag: int = 0) -> "Later":
        self._peer(src)
        way = src, self._rank
        with self._sheet.changing():
            self._sheet.room[way] += 1
            number, letters = self._sheet.room[way], self._sheet.mail[way]
        return Later(lambda: self._into_its_room(tensor, src, number, letters))

    def _into_its_room(self, tensor: Tensor, src: int, number: int, letters: list[Tensor]):
        self._sheet.wait(self._rank, lambda: len(letters) >= number, f"for rank {src}")
        letter = letters[number - 1]
        if letter.numel() != tensor.numel():
            raise ValueError(
                f"rank {src} sent {letter.numel()} elements to rank {self._rank}, which made room"
                f" for {tensor.numel()}."
            )
        tensor.detach().copy_(letter.view(tensor.shape))

    P2POp = P2POp

    def batch_isend_irecv(self, messages: list[P2POp]) -> list["Later"]:
        """A handle of each message, in their order."""
        for message in messages:
            if not isinstance(message, P2POp) or message.op not in (self.isend, self.irecv):
                raise ValueError(
                    "batch_isend_irecv wants a list of P2POp(dist.isend or dist.irecv, tensor,"
                    " rank)."
                )
        return [message.op(message.tensor, message.peer) for message in messages]

    def all_reduce(
        self, tensor: Tensor, op=ReduceOp.SUM, group=None, async_op: bool = False
    ) -> "Later | None":
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"all_reduce wants a tensor, whose elements it sums in place, and got a"
                f" {type(tensor).__name__}."
            )
        if op not in (self.ReduceOp.SUM, self.ReduceOp.AVG, self.ReduceOp.MAX):
            raise ValueError(f"op = {op}: an all-reduce of thread ranks is a SUM, an AVG or a MAX.")
        self.reductions += 1
        number = self.reductions
        with self._sheet.changing():
            self._sheet.brought[number][self._rank] = tensor.detach().clone()
        later = Later(lambda: self._reduce(tensor, op, number))
        return later if async_op else later.wait()

    def _reduce(self, tensor: Tensor, op, number: int):
        brought, n = self._sheet.brought[number], self._sheet.n
        self._sheet.wait(self._rank, lambda: len(brought) == n, f"in all-reduce {number}")
        sizes = [brought[rank].numel() for rank in range(n)]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"all-reduce {number}: the ranks bring {', '.join(map(str, sizes))} elements."
            )
        parts = [brought[rank].reshape(tensor.shape) for rank in range(n)]
        reduced = torch.stack(parts).amax(0) if op == self.ReduceOp.MAX else sum(parts)
        tensor.detach().copy_(reduced / n if op == self.ReduceOp.AVG else reduced)

    def broadcast(self, tensor: Tensor, src: int, group=None):
        if self._rank != src:
            self.recv(tensor, src)
        else:
            for rank in {*range(self._sheet.n)} - {src}:
                self._sent(tensor, rank)

    def _peer(self, rank: int):
        if not isinstance(rank, int) or not 0 <= rank < self._sheet.n or rank == self._rank:
            raise ValueError(
                f"rank {self._rank} has no peer {rank!r}: there are ranks 0 to {self._sheet.n - 1}."
            )


class Later:
    """The handle of an isend, an irecv or an all-reduce: what is left to do when somebody waits,
    done once."""

    def __init__(self, rest: Callable[[], object]):
        self.rest = rest

    def wait(self):
        if self.rest is not None:
            rest, self.rest = self.rest, None
            rest()


def answer_of_ranks(n: int, work: Callable[[ThreadRank], Any]) -> Any:
    """The answer of all ranks for a check: a Failure that names the ranks that raised an error,
    unless all did; `...` for a blank that was not filled in. Raises TimeoutError, because one such
    case is enough."""
    sheet = _followed(n, work)
    error, guilty = sheet.verdict()
    if isinstance(error, TimeoutError):
        raise error
    if error is not None:
        where = ranks_in_words(guilty) if 0 < len(guilty) < n else ""
        return ... if is_blank(error) else Failure.of(error, where)
    return OfRanks(sheet.results)


def value_of_ranks(n: int, work: Callable[[ThreadRank], Any]) -> Any:
    """The answer of ranks that must each hand back a value: None, or a blank, of one rank is the
    answer of all."""
    found = answer_of_ranks(n, work)
    return unless_blank(found) if isinstance(found, OfRanks) else found


def _followed(n: int, work: Callable[[ThreadRank], Any], seconds: float = WORK_SECONDS) -> Sheet:
    """The sheet when all ranks have ended."""
    sheet, restore = Sheet(n), settings_of_contexts()  # dispatch modes of two threads may overlap

    def life(rank):
        error = None
        try:
            sheet.results[rank] = work(ThreadRank(sheet, rank))
        except BaseException as raised:
            error = raised
        sheet.end(rank, error)

    threads = [threading.Thread(target=life, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join(seconds)
            if thread.is_alive():
                with sheet.changed:
                    busy = sheet.running - set(sheet.waiting)
                    sheet.trouble = sheet.trouble or TimeoutError(
                        f"{ranks_in_words(busy)} had not ended after {seconds:g} s, and did not"
                        " wait for another."
                    )
                break
    finally:  # an interrupt comes here, too
        for rank, thread in enumerate(threads):
            if thread.is_alive():
                sheet.end(rank, RunsOn())  # waiting ranks end
                thread.join(STOPPED_SECONDS / 4)
                stop(thread)
        for thread in threads:
            thread.join(STOPPED_SECONDS)
        restore()
    return sheet
