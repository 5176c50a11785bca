"""A world of ranks, seen from its parent."""

import atexit
import linecache
import os
import sys
import time
import weakref
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe

import cloudpickle

from . import torchrun
from .board import MOST_RANKS, Board
from .faults import RanksInterrupted, verdict
from .links import Host
from .messages import Call, Cell, Quit, Regroup, Returned
from .output import Printed, Progress, show
from .server import Place, start, start_method, warm_up
from .shared import SharedFile, SharedPath
from .watch import Member, Outcome, counting_interrupts, send_all, watch

START_SECONDS = 120.0  # a cold machine imports torch in a few
QUIT_SECONDS = 1.0
GONE_SECONDS = 10.0  # for a killed process to be gone


def ranks(
    world_size: int,
    *,
    device: str | None = None,
    backend: str | None = None,
    share_gpus: bool = False,
    patience_seconds: float = 60.0,
    threads: int = 1,
    forbid_nan: bool = False,
    hosts: tuple[Host, ...] = (),
    method: str | None = None,
    announce: bool = True,
):
    """Start `world_size` ranks; close them with `close()` or by leaving the `with`.

    device            "cuda" or "cpu"; by itself: GPUs if there are any
    backend           "nccl" or "gloo"; by itself: NCCL with a GPU for each rank, else gloo
    share_gpus        NCCL for more ranks than GPUs: an experiment of NCCL 2.30, not yet seen to
                      work here
    patience_seconds  how long ranks may wait in a collective for one that does not come
    threads           of PyTorch, for each rank
    forbid_nan        a rank that brings a NaN to a sum is an error
    hosts             rehearsed hosts (see links.py) among which the ranks are divided
    method            "forkserver" or "spawn"; by itself what this system can do
    announce          print one line that says what was started

    Under torchrun this process is one of the ranks already: the world is torchrun's, and the same
    code runs on. Raises ValueError, one sentence, where this cannot be had.
    """
    if (
        isinstance(world_size, bool)
        or not isinstance(world_size, int)
        or not 1 <= world_size <= MOST_RANKS
    ):
        raise ValueError(
            f"world_size = {world_size!r}: a world has 1 to {MOST_RANKS} ranks on one machine."
        )
    for name, value, known in (
        ("device", device, ("cpu", "cuda")),
        ("backend", backend, ("gloo", "nccl")),
        ("method", method, ("forkserver", "spawn")),
    ):
        if value not in (None, *known):
            raise ValueError(
                f"{name} = {value!r}: it must be {' or '.join(known)}, or be left away."
            )
    for name, value in (("patience_seconds", patience_seconds), ("threads", threads)):
        if not value > 0:
            raise ValueError(f"{name} = {value!r}: it must be above 0.")
    if hosts and world_size % len(hosts):
        raise ValueError(
            f"world_size = {world_size}: {len(hosts)} hosts want the same number of ranks each."
        )
    if torchrun.started_us():
        return torchrun.Torchrun(
            world_size, device, backend, share_gpus, patience_seconds, forbid_nan
        )
    loaded = sys.modules.get("torch.distributed")
    if loaded is not None and loaded.is_available() and loaded.is_initialized():
        here = f"rank {loaded.get_rank()} of {loaded.get_world_size()}"
        raise ValueError(f"this process is {here}: a rank cannot start a world of its own.")
    return World(
        world_size,
        device,
        backend,
        share_gpus,
        patience_seconds,
        threads,
        forbid_nan,
        hosts,
        method or start_method(),
        announce,
    )


class World:
    """Ranks that live until `close`. After a fault all keep their variables, or all are ended and
    the next work gets new ones."""

    def __init__(
        self,
        world_size,
        device,
        backend,
        share_gpus,
        patience_seconds,
        threads,
        forbid_nan,
        hosts,
        method,
        announce,
    ):
        self.world_size, self.device, self.backend, self.share_gpus = (
            world_size,
            device,
            backend,
            share_gpus,
        )
        self.patience_seconds, self.threads, self.forbid_nan = patience_seconds, threads, forbid_nan
        self.hosts, self.method, self.announce = hosts, method, announce
        self.members: list[Member] = []
        self.cells = 0
        self.at_exit = atexit.register(partial(_close, weakref.ref(self)))
        self._start()

    def __del__(self):
        """Nobody has a name for it any more, as when the cell that made it runs again: its ranks
        go."""
        if not sys.is_finalizing():
            with counting_interrupts():  # nobody would see one
                self._kill()
                atexit.unregister(self.at_exit)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    # --- work -------------------------------------------------------------------------------------

    def run(self, function, *args, limit_seconds: float | None = None, **kwargs) -> list:
        """Call `function(*args, **kwargs)` on every rank: its results, in rank order.

        The function may be defined in a cell; what it needs of the notebook goes along. Raises a
        RankError that names the guilty rank, or TypeError if the arguments cannot be sent.
        """
        try:
            pickled = cloudpickle.dumps((function, args, kwargs))
        except Exception as error:
            name = getattr(function, "__name__", type(function).__name__)
            raise TypeError(
                f"{name} and what it needs cannot be sent to the ranks ({error}): make it on the"
                " rank."
            ) from None
        return [cloudpickle.loads(end.pickled) for end in self._do(Call(pickled), limit_seconds)]

    def cell(self, source: str, limit_seconds: float | None = None):
        """Run source code in the `__main__` of every rank, as a cell. Its variables live on
        there."""
        self.cells += 1
        name = f"<ranks {self.cells}>"
        # for the lines in an error
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        self._do(Cell(source, name), limit_seconds)

    def close(self):
        """End the ranks. What they hold is lost."""
        send_all(self.members, Quit())
        deadline = time.monotonic() + QUIT_SECONDS
        for member in self.members:
            member.process.join(max(0.0, deadline - time.monotonic()))
        self._kill()
        atexit.unregister(self.at_exit)

    # --- one piece of work ------------------------------------------------------------------------

    def _do(self, command, limit_seconds) -> list[Returned]:
        if limit_seconds is not None and not limit_seconds > 0:
            raise ValueError(f"limit_seconds = {limit_seconds!r}: it must be above 0.")
        if not self.members:
            self._start()
        outcome = self._watch(command, limit_seconds)
        if outcome.trouble is not None:
            raise verdict(outcome, self._mend(outcome)) from None
        return outcome.ends

    def _watch(self, command, limit_seconds) -> Outcome:
        progress = Progress(self.out)
        try:
            outcome = watch(
                self.members, command, self.board, self.patience_seconds, limit_seconds, progress
            )
            progress.end()
            show(self.out, sys.stdout)
            show(self.err, sys.stderr)
        # an interrupt in a moment when none is counted: later answers would come to the wrong
        # question
        except BaseException:
            self._kill()
            raise
        return outcome

    def _mend(self, outcome: Outcome) -> str:
        """After a fault: a new process group if all ranks have come back, else no ranks. Says
        which."""
        if any(
            end is None or not member.process.is_alive()
            for end, member in zip(outcome.ends, self.members)
        ):
            self._kill()
            return (
                "All ranks were ended and their variables are gone; the next run starts fresh ones."
            )
        self.generation += 1
        self.board.clear()
        if self._watch(Regroup(self.generation), START_SECONDS).trouble is not None:
            self._kill()
            return (
                "Their process group could not be made anew, so all ranks were ended; the next run"
                " starts fresh ones."
            )
        return "All ranks live on with their variables; their process group was made anew."

    # --- starting and ending ----------------------------------------------------------------------

    def _start(self):
        if self.method == "forkserver":
            warm_up()
        self.generation = 0
        self.store, board = SharedPath(), SharedFile(Board.nbytes(self.world_size))
        self.board = Board(board, self.world_size)
        self.out, self.err = ([Printed() for _ in range(self.world_size)] for _ in range(2))
        # one in the middle would leave a rank of which nobody knows
        with counting_interrupts() as interrupts:
            for rank in range(self.world_size):
                ours, theirs = Pipe()
                host = self.hosts[rank * len(self.hosts) // self.world_size] if self.hosts else None
                place = Place(
                    rank,
                    self.world_size,
                    theirs,
                    self.store,
                    board,
                    self.out[rank].file,
                    self.err[rank].file,
                    self.device,
                    self.backend,
                    self.share_gpus,
                    self.patience_seconds,
                    self.threads,
                    self.forbid_nan,
                    host and host.interface,
                    host.namespaces if host else (),
                    dict(os.environ),
                )
                self.members.append(Member(start(place, self.method), ours))
                theirs.close()
        if interrupts:
            self._kill()
            raise RanksInterrupted(
                "The ranks were interrupted while they were started: there are none."
            )
        board.close()  # the mapping stays
        outcome = self._watch(Regroup(0), START_SECONDS)
        if outcome.trouble is not None:
            self._kill()
            raise verdict(outcome, "The ranks did not start.") from None
        places = [cloudpickle.loads(end.pickled) for end in outcome.ends]
        self.places = _announcement(
            [device for device, _ in places], places[0][1], self.threads, len(self.hosts)
        )
        if self.announce:
            print(self.places)

    def _kill(self):
        if not self.members:
            return
        for process, _ in self.members:
            process.kill()
        for process, connection in self.members:
            process.join(GONE_SECONDS)
            with suppress(ValueError):  # it hangs in the system, as one can whose GPU does
                process.close()
            connection.close()
        self.members = []
        self.board.close()
        for printed in (*self.out, *self.err):
            printed.file.close()
        self.store.close()


def _close(world: "weakref.ref[World]"):
    if (there := world()) is not None:
        there.close()


def _announcement(devices: list[str], backend: str, threads: int, hosts: int) -> str:
    count = f"{len(devices)} rank{'s' * (len(devices) > 1)}"
    if devices[0] == "cpu":
        where = f"on the CPU, {threads} thread{'s' * (threads > 1)} each"
    else:
        where = f"on {len(set(devices))} GPU{'s' * (len(set(devices)) > 1)}"
        where += ", which they share" if len(set(devices)) < len(devices) else ", one each"
    return f"{count} {where}; backend {backend}" + f"; {hosts} rehearsed hosts" * bool(hosts)
