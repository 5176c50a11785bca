"""The same code under torchrun: every process runs the whole script, and is one rank of the world
that torchrun made.

    torchrun --nproc-per-node 2 train.py                # one machine

    torchrun --nnodes 2 --node-rank 0 --master-addr A --master-port P \\
        --nproc-per-node 2 train.py                     # of two; --node-rank 1 on the other

`world.run(fn, ...)` calls fn here and returns the results of all ranks to each of them. What is
printed is torchrun's affair, and a rank that fails ends all: there is no parent to keep the others
alive.

Ranks of one machine are compared as in a world of our own (see checks.py): one that brings another
shape, type or operation to a collective than its neighbours raises RanksDisagree. Ranks on
different machines share no memory and are not compared.
"""

import os
import sys
from contextlib import ExitStack
from datetime import timedelta

import cloudpickle

from .board import MOST_RANKS, Board
from .faults import RankRaised, RanksDisagree
from .messages import BringsNaN, Disagreement
from .shared import SharedFile


def started_us() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


class Torchrun:
    """A world of which this process is a rank."""

    def __init__(
        self,
        world_size: int,
        device: str | None,
        backend: str | None,
        share_gpus: bool,
        patience_seconds: float,
        forbid_nan: bool,
    ):
        import torch
        import torch.distributed as dist

        from .calls import listening
        from .checks import Checks
        from .devices import choose

        self.rank, local, there = (
            int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        )
        if there != world_size:
            raise ValueError(f"world_size = {world_size}: torchrun started {there} ranks.")
        self.world_size, self.ours = world_size, not dist.is_initialized()
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        self.device, self.backend = choose(
            local, here, torch.cuda.device_count(), device, backend, share_gpus
        )
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.ours:
            backends = "cpu:gloo,cuda:nccl" if self.backend == "nccl" else self.backend
            dist.init_process_group(
                backends,
                rank=self.rank,
                world_size=world_size,
                timeout=timedelta(seconds=patience_seconds),
            )
        self.open = ExitStack()
        if world_size > MOST_RANKS or sys.platform != "linux":
            return self._say(
                f"What ranks bring to a collective is not compared: that is for up to {MOST_RANKS}"
                " ranks on Linux."
            )
        if here < world_size:
            self._say(
                "What ranks bring to a collective is compared within each machine, not between"
                " them."
            )
        self.checks = Checks(self._board(local), self.rank, forbid_nan)
        self.open.enter_context(listening(self._check))

    def _board(self, local: int) -> Board:
        """One file for the ranks of this machine: the first makes it, and the others open it by the
        first's descriptor."""
        import torch.distributed as dist

        made = SharedFile(Board.nbytes(self.world_size)) if local == 0 else None
        paths: list = [None] * self.world_size
        dist.all_gather_object(paths, made and f"/proc/{os.getpid()}/fd/{made.fd}")
        file = made or SharedFile(path=paths[self.rank - local])
        dist.barrier()  # all have opened it
        board = Board(file, self.world_size)
        file.close()  # the mapping stays
        return board

    def _check(self, call):
        try:
            return self.checks(call)
        except (Disagreement, BringsNaN) as error:
            kind = RanksDisagree if isinstance(error, Disagreement) else RankRaised
            raise kind(f"Rank {self.rank} {error}", [self.rank]) from None

    def _say(self, sentence: str):
        if self.rank == 0:
            print(sentence, file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # after an error the others may be anywhere: leave, and torchrun ends them
        if error[0] is None:
            self.close()

    def run(self, function, *args, limit_seconds: float | None = None, **kwargs) -> list:
        """Call `function(*args, **kwargs)` here, as every other rank does there: all results, in
        rank order, on every rank."""
        import torch.distributed as dist

        results: list = [None] * self.world_size
        dist.all_gather_object(results, cloudpickle.dumps(function(*args, **kwargs)))
        return [cloudpickle.loads(result) for result in results]

    def close(self):
        import torch.distributed as dist

        self.open.close()
        if self.ours and dist.is_initialized():
            dist.destroy_process_group()
