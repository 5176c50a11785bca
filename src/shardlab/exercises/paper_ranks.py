"""Ranks on paper: threads of this process that send to each other. A check on them cannot hang: where all of them wait, all end,
and the error says who waits for whom.

    on_paper(3, lambda dist: dist.get_rank())          # [0, 1, 2]: one result a rank
    on_paper(2, work)                                  # work(dist) may isend, recv, broadcast and all_reduce as in torch

A message is copied when it is sent, so a send never waits. An all-reduce takes what each rank brings as its k-th, whatever that
is: like a real one.
"""

import threading
from collections import defaultdict, deque
from typing import Any, Callable

from torch import Tensor

LIMIT_SECONDS = 10.0  # for work that neither ends nor waits


class Stuck(RuntimeError):
    """Nobody can go on."""


class Sheet:
    """What the ranks of one piece of work share."""

    def __init__(self, n: int):
        self.n, self.changed = n, threading.Condition()
        self.mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.brought: dict[int, dict[int, Tensor]] = defaultdict(dict)  # to the k-th all-reduce, by rank
        self.running, self.waiting = set(range(n)), {}
        self.trouble: BaseException | None = None

    def wait(self, rank: int, ready: Callable[[], bool], words: str):
        """Until `ready`, or until nobody can be: then Stuck. The caller holds `changed`."""
        self.waiting[rank] = ready, words
        while not ready() and self.trouble is None:
            if len(self.waiting) == len(self.running) and not any(can() for can, _ in self.waiting.values()):
                said = "; ".join(f"rank {one} waits {self.waiting[one][1]}" for one in sorted(self.waiting))
                self.trouble = Stuck(f"{said}: nobody can go on.")
                self.changed.notify_all()
            else:
                self.changed.wait()
        del self.waiting[rank]
        if self.trouble is not None:
            raise Stuck(str(self.trouble))

    def end(self, rank: int, error: BaseException | None):
        with self.changed:
            self.running.discard(rank)
            self.trouble = self.trouble or error
            self.changed.notify_all()


class Paper:
    """One rank's view: what a reader's code calls `dist`."""

    def __init__(self, sheet: Sheet, rank: int):
        self._sheet, self._rank, self._reductions = sheet, rank, 0

    def get_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return self._sheet.n

    def isend(self, tensor: Tensor, dst: int) -> "Paper":
        self._peer(dst)
        with self._sheet.changed:
            self._sheet.mail[self._rank, dst].append(tensor.clone())
            self._sheet.changed.notify_all()
        return self

    send = isend

    def wait(self):
        """A message is on its way as soon as it is sent."""

    def recv(self, tensor: Tensor, src: int) -> int:
        self._peer(src)
        with self._sheet.changed:
            letters = self._sheet.mail[src, self._rank]
            self._sheet.wait(self._rank, lambda: bool(letters), f"for rank {src}")
            letter = letters.popleft()
        if letter.numel() != tensor.numel():
            raise ValueError(f"rank {src} sent {letter.numel()} elements to rank {self._rank}, which made room for "
                             f"{tensor.numel()}.")
        tensor.copy_(letter.view(tensor.shape))
        return src

    def all_reduce(self, tensor: Tensor):
        self._reductions += 1
        with self._sheet.changed:
            brought = self._sheet.brought[self._reductions]
            brought[self._rank] = tensor.clone()
            self._sheet.changed.notify_all()
            self._sheet.wait(self._rank, lambda: len(brought) == self._sheet.n, f"in all-reduce {self._reductions}")
        sizes = [brought[rank].numel() for rank in range(self._sheet.n)]
        if len(set(sizes)) > 1:
            raise ValueError(f"all-reduce {self._reductions}: the ranks bring {', '.join(map(str, sizes))} elements.")
        tensor.copy_(sum(brought[rank] for rank in range(self._sheet.n)))

    def broadcast(self, tensor: Tensor, src: int):
        if self._rank != src:
            self.recv(tensor, src)
            return
        for rank in range(self._sheet.n):
            if rank != src:
                self.send(tensor, rank)

    def _peer(self, rank: int):
        if not isinstance(rank, int) or not 0 <= rank < self._sheet.n or rank == self._rank:
            raise ValueError(f"rank {self._rank} has no peer {rank!r}: there are ranks 0 to {self._sheet.n - 1}.")


def on_paper(n: int, work: Callable[[Paper], Any]) -> list:
    """What work(dist) returns on each of n ranks. Raises what a rank raised first, Stuck where all wait, TimeoutError for work
    that runs on and on."""
    sheet, results = Sheet(n), [None] * n

    def life(rank):
        error = None
        try:
            results[rank] = work(Paper(sheet, rank))
        except BaseException as raised:
            error = raised
        sheet.end(rank, error)

    threads = [threading.Thread(target=life, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
        if thread.is_alive():
            sheet.end(-1, TimeoutError("stopped"))  # whoever waits for it ends
            raise TimeoutError(f"a rank had not ended after {LIMIT_SECONDS:g} s, and did not wait for another.")
    if sheet.trouble is not None:
        raise sheet.trouble
    return results
