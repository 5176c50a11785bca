"""A script under torchrun: every process runs all of it, and is one rank of the world that torchrun
made.

    torchrun --nproc-per-node 2 train.py                # one machine

    torchrun --nnodes 2 --node-rank 0 --master-addr A --master-port P \\
        --nproc-per-node 2 train.py                     # of two; --node-rank 1 on the other

`world.run(fn, ...)` calls fn here and returns the results of all ranks to each of them. torchrun
handles the output, and a failing rank ends all ranks: no parent keeps the others alive.

Ranks of one machine are compared as in shardlab's own world (see checks.py): a rank with another
shape, type or operation than its neighbours raises RanksDisagree. Ranks on different machines share
no memory and are not compared. A rank that keeps others waiting prints its place in the code on
stderr, a waiting rank prints which rank it waits for, and waiting ranks are ended.
"""

import os
import sys
import threading
import time
from contextlib import ExitStack

import cloudpickle
import torch
import torch.distributed as dist

from ranklab.torch_internals import watching_new_groups

from .asked import Asked
from .board import MOST_RANKS, Board
from .calls import listening
from .checks import Checks
from .devices import make_group, take_device
from .faults import RankAbsent, RanksDisagree, ranks_of, reader_lines, sentence_of, waiting_in
from .findings import NCCL_START_SECONDS, Finding, first_finding
from .messages import dumps
from .place import SharedFile
from .reports import is_echo, thread_frames
from .scheduling import woken_threads_wait
from .watch import LOOK_SECONDS

LEAVE_SECONDS = 2.0  # after the connections were cut: a rank that is still stuck is ended


class Torchrun:
    """A world of which this process is a rank."""

    def __init__(self, asked: Asked):
        self.rank, local, there = (
            int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        )
        self.world_size, self.patience_seconds = asked.world_size, asked.patience_seconds
        if there != self.world_size:
            raise ValueError(f"world_size = {asked.world_size}: torchrun started {there} ranks.")
        self.ours = not dist.is_initialized()
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        self.device, self.backend = take_device(local, here, asked)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.ours:
            with woken_threads_wait():
                make_group(self.backend, self.rank, asked)
        self.open, self.board = ExitStack(), None
        if self.world_size > MOST_RANKS or sys.platform != "linux":
            return self._say(
                "The tensors that ranks bring to a collective are not compared: that is for up to"
                f" {MOST_RANKS} ranks on Linux."
            )
        if here < self.world_size:
            self._say(
                "The tensors that ranks bring to a collective are compared within each machine, not"
                " between them."
            )
        self.board = self._board(local, here)
        checks = Checks(self.board, self.rank, self._disagreement)
        self.open.enter_context(listening(checks))
        self.open.enter_context(watching_new_groups(checks.new_group, woken_threads_wait))
        ended = threading.Event()
        self.open.callback(ended.set)
        threading.Thread(target=self._watch, args=(ended,), daemon=True).start()

    def _board(self, local: int, here: int) -> Board:
        """One file for the ranks of this machine: the first rank makes it, and the others open it
        by the first rank's descriptor."""
        made = SharedFile(Board.nbytes(self.world_size)) if local == 0 else None
        paths: list = [None] * self.world_size
        dist.all_gather_object(paths, made and f"/proc/{os.getpid()}/fd/{made.fd}")
        file = made or SharedFile(path=paths[self.rank - local])
        dist.barrier()  # all have opened it
        first = self.rank - local
        board = Board(file, self.world_size, visible=range(first, first + here))
        file.close()  # the mapping stays
        return board

    def _disagreement(self, said: str) -> RanksDisagree:
        return RanksDisagree(f"Rank {self.rank} {said}", [self.rank])

    def _watch(self, ended: threading.Event):
        """Report the rank that keeps others waiting, and end waiting ranks."""
        from .stopping import abort_groups, cut_connections  # Windows has not all that they need

        while not ended.wait(LOOK_SECONDS):
            start_seconds = NCCL_START_SECONDS * (self.backend == "nccl")
            found = self._look(self.patience_seconds, start_seconds)
            if found is None:
                continue
            guilty, waiting = ranks_of(found), waiting_in(found)
            if self.rank == min(waiting):
                print(sentence_of(found), file=sys.stderr, flush=True)
            if self.rank in guilty:
                for line in reader_lines(thread_frames(threading.main_thread())):
                    print(f"Rank {self.rank} is in {line}", file=sys.stderr, flush=True)
            if self.rank in waiting:
                cut_connections()
                if self.backend == "nccl":
                    threading.Thread(target=abort_groups, daemon=True).start()
                if not ended.wait(LEAVE_SECONDS):
                    os._exit(1)  # torchrun ends the others
            return

    def _look(self, patience_seconds: float, start_seconds: float = 0.0) -> Finding | None:
        ends = [None] * self.world_size
        return first_finding(self.board, ends, patience_seconds, time.monotonic(), start_seconds)

    def _blame(self, error: BaseException) -> Finding | None:
        """The rank that has left a collective and so made it fail."""
        return self._look(0.0) if self.board is not None and is_echo(error) else None

    def _say(self, sentence: str):
        if self.rank == 0:
            print(sentence, file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # after an error the other ranks may be anywhere: exit, and torchrun ends them
        if error[0] is None:
            self.close()
        elif found := self._blame(error[1]):
            print(sentence_of(found), file=sys.stderr, flush=True)

    def run(self, function, *args, limit_seconds: float | None = None, **kwargs) -> list:
        """Call `function(*args, **kwargs)` here, as every other rank does. Returns all results, in
        rank order, on every rank."""
        results: list = [None] * self.world_size
        try:
            dist.all_gather_object(results, dumps(function(*args, **kwargs)))
        except RuntimeError as error:
            if found := self._blame(error):
                raise RankAbsent(sentence_of(found), ranks_of(found)) from error
            raise
        return [cloudpickle.loads(result) for result in results]

    def close(self):
        self.open.close()
        if self.ours and dist.is_initialized():
            dist.destroy_process_group()
