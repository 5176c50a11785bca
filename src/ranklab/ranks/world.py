"""A world of ranks, seen from its parent; or joining those that torchrun has started."""

import atexit
import json
import os
import socket
import sys
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection

import cloudpickle

from . import server
from .asked import Asked, RankPlace, announcement, check_asked, check_limit
from .board import Board
from .faults import RankError, RanksInterrupted, verdict
from .findings import NCCL_START_SECONDS
from .links import Host
from .messages import Call, Cell, Quit, Regroup, Returned, call_of, function_name, keep_lines
from .output import Progress, pipe, show_printed
from .place import SharedFile
from .watch import Flooded, Limits, Member, Outcome, Watch, counting_interrupts
from .wire import ParentsEnd, packed

OF_TORCHRUN = "TORCHELASTIC_RUN_ID", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"
START_SECONDS = 120.0  # importing torch takes a few on a cold machine
QUIT_SECONDS = 1.0
GONE_SECONDS = 10.0  # for a killed process to be gone
SETTLED_SECONDS = 0.1
ENDED = "All ranks were ended and their variables are gone; the next run starts fresh ones."
ALIVE = "All ranks live on with their variables; their process group was made anew."
NOT_ANEW = (
    "Their process group could not be made anew, so all ranks were ended; the next run starts fresh"
    " ones."
)


def ranks(
    world_size: int,
    *,
    device: str | None = None,
    backend: str | None = None,
    share_gpus: bool = False,
    patience_seconds: float = 60.0,
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
    hosts             rehearsed hosts (see links.py) among which the ranks are divided; their
                      backend is gloo, as NCCL would go past the link
    method            "forkserver" or "spawn"; by itself what this system can do
    announce          print one line that says what was started

    Under torchrun this process is a rank already: ranks() returns torchrun's world, and the same
    code works. Raises ValueError, one sentence, if this machine cannot provide the request.
    """
    asked = Asked(
        world_size, device, backend, share_gpus, patience_seconds, hosts, method, announce
    )
    check_asked(asked)
    if all(name in os.environ for name in OF_TORCHRUN):
        if hosts:
            raise ValueError(
                f"hosts = {hosts!r}: torchrun has placed these ranks already. Leave hosts away."
            )
        from .torchrun import Torchrun  # which loads torch

        return Torchrun(asked)
    loaded = sys.modules.get("torch.distributed")
    if loaded is not None and loaded.is_available() and loaded.is_initialized():
        here = f"rank {loaded.get_rank()} of {loaded.get_world_size()}"
        raise ValueError(f"this process is {here}: a rank cannot start a world of its own.")
    backend = "gloo" if hosts else backend
    return World(asked._replace(method=method or server.start_method(), backend=backend))


class World:
    """Ranks that live until `close`. After a fault all keep their variables, or all are ended and
    the next work gets new ones."""

    def __init__(self, asked: Asked):
        self.asked, self.world_size = asked, asked.world_size
        self.patience_seconds = asked.patience_seconds
        self.members: list[Member] = []
        self.shared: list = []  # what is closed with the ranks
        self.lock = threading.RLock()  # one piece of work at a time
        self.cells = self.number = 0
        self.at_exit = atexit.register(partial(_close, weakref.ref(self)))
        with counting_interrupts() as interrupts:
            self._start(interrupts)

    def __del__(self):
        """No name refers to the world any more, for example because its cell ran again: end its
        ranks."""
        if not sys.is_finalizing():
            self._kill()
            atexit.unregister(self.at_exit)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    # --- work -------------------------------------------------------------------------------------

    def run(self, function, *args, limit_seconds: float | None = None, **kwargs) -> list:
        """Call `function(*args, **kwargs)` on every rank: its results, in rank order.

        The function may be defined in a cell; the objects of the notebook that it uses are sent
        along. Raises a RankError that names the guilty rank, or TypeError if the arguments cannot
        be sent.
        """
        return self._call(function, call_of(function, args, kwargs), limit_seconds)

    def run_untrusted(self, function, *args, limit_seconds: float | None = None) -> list:
        """Like `run`, for a function that calls the code of a stranger: results come as JSON,
        because the pickle of a stranger's object runs code where it is read."""
        call = call_of(function, args, {})._replace(as_json=True)
        return self._call(function, call, limit_seconds)

    def _call(self, function, call: Call, limit_seconds: float | None) -> list:
        check_limit(limit_seconds)
        read, results = json.loads if call.as_json else cloudpickle.loads, []
        for rank, end in enumerate(self._do(call, limit_seconds)):
            try:
                results.append(read(end.packed))
            except (Exception, SystemExit) as error:
                raise RankError(
                    f"The value that {function_name(function)} returned on rank {rank} cannot be"
                    f" read here ({type(error).__name__}: {error}): return numbers, tensors and"
                    " containers of them.",
                    [rank],
                ) from error
        return results

    def cell(self, source: str):
        """Run source code in the `__main__` of every rank, as a cell. Its variables live on
        there."""
        self.cells += 1
        name = f"<ranks {self.cells}>"
        keep_lines(name, source.splitlines(True))  # for those in an error
        self._do(Cell(source, name), None)

    def close(self):
        """End the ranks. Their variables are lost."""
        mine = self.lock.acquire(timeout=QUIT_SECONDS)  # another thread may wait forever
        try:
            deadline = time.monotonic() + QUIT_SECONDS
            for member in self.members:
                member.wire.send(packed(self.number, Quit()))
            for member in self.members:
                while member.process.is_alive() and time.monotonic() < deadline:
                    member.out.drain()  # or the rank waits to print its last output
                    member.err.drain()
                    member.process.join(0.01)
        finally:
            self._kill()
            if mine:
                self.lock.release()
        atexit.unregister(self.at_exit)

    # --- one piece of work ------------------------------------------------------------------------

    def _do(self, command, limit_seconds) -> list[Returned]:
        with self.lock, counting_interrupts() as interrupts:
            if not self.members:
                self._start(interrupts)
            start_seconds = NCCL_START_SECONDS * (self.backend == "nccl")
            limits = Limits(self.patience_seconds, limit_seconds, start_seconds)
            outcome = self._watch(command, interrupts, limits)
            if outcome.trouble is not None:
                interrupts.clear()  # a second interrupt ends the rest
                raise verdict(outcome, self._mend(outcome, interrupts)) from None
            if any(end.ungrouped for end in outcome.ends):
                anew = self._regroup(interrupts)
                if anew.trouble is not None:
                    self._kill()
                    raise verdict(anew, NOT_ANEW) from None
        if interrupts:  # the interrupt came after all ranks had ended
            raise RanksInterrupted("The ranks were interrupted; their work had ended.")
        return outcome.ends

    def _watch(self, command, interrupts: list, limits: Limits) -> Outcome:
        self.number += 1
        out, err = ([getattr(m, name) for m in self.members] for name in ("out", "err"))
        progress = Progress(out)
        watch = Watch(self.members, self.number, self.board, interrupts)
        try:
            outcome = watch.run(command, limits, progress)
            progress.end()
            show_printed(out, sys.stdout)
            show_printed(err, sys.stderr)
        except BaseException:  # such as a broken pipe behind stdout
            self._kill()
            raise
        return outcome

    def _mend(self, outcome: Outcome, interrupts: list) -> str:
        """After a fault: a new process group if all ranks have responded, else no ranks. Returns
        the sentence that says which."""
        if any(
            end is None or not member.process.is_alive()
            for end, member in zip(outcome.ends, self.members)
        ):
            self._kill()
            return ENDED
        if self._regroup(interrupts).trouble is not None:
            self._kill()
            return NOT_ANEW
        if isinstance(outcome.trouble, Flooded) and self._still_prints(outcome.trouble.ranks):
            self._kill()
            return ENDED
        return ALIVE

    def _still_prints(self, ranks: list[int]) -> bool:
        """Whether a program that a rank has started still prints, although the rank was stopped."""
        time.sleep(SETTLED_SECONDS)
        printed = [one for rank in ranks for one in self.members[rank][2:]]
        for one in printed:
            one.drain()
        return any(one.nbytes for one in printed)

    def _regroup(self, interrupts: list) -> Outcome:
        self.generation += 1
        self.board.clear()
        limits = Limits(START_SECONDS, START_SECONDS)
        return self._watch(Regroup(self.generation), interrupts, limits)

    # --- starting and ending ----------------------------------------------------------------------

    def _start(self, interrupts: list):
        asked = self.asked
        self.generation = 0
        try:
            if asked.method == "forkserver":
                server.start_fork_server()
            store, board = SharedFile(), SharedFile(Board.nbytes(self.world_size))
            self.board = Board(board, self.world_size)
            self.shared = [store, self.board]
            for rank in range(self.world_size):
                self._start_one(rank, store, board)
        except (OSError, EOFError) as error:
            self._kill()
            said = f"The ranks could not be started ({type(error).__name__}: {error})."
            raise RankError(" ".join([said, server.why_not(error)]).strip(), []) from None
        if interrupts:
            self._kill()
            raise RanksInterrupted(
                "The ranks were interrupted while they were started: none of them runs."
            )
        board.close()  # the mapping stays
        outcome = self._watch(Regroup(0), interrupts, Limits(START_SECONDS, START_SECONDS))
        if outcome.trouble is not None:
            self._kill()
            why = server.why_not(verdict(outcome, ""))
            raise verdict(outcome, f"The ranks did not start. {why}".strip()) from None
        places = [cloudpickle.loads(end.packed) for end in outcome.ends]
        self.backend = places[0][1]
        self.places = announcement([device for device, _ in places], self.backend, len(asked.hosts))
        if asked.announce:
            print(self.places)

    def _start_one(self, rank: int, store: SharedFile, board: SharedFile):
        asked = self.asked
        hosts = asked.hosts
        host = hosts[rank * len(hosts) // self.world_size] if hosts else Host()
        ours, theirs = socket.socketpair()
        (out, to_out), (err, to_err) = pipe(), pipe()
        alive, held = (Connection(fd) for fd in os.pipe())
        self.shared.append(held)
        place = RankPlace(
            rank, asked, theirs, store, board, to_out, to_err, alive, host, dict(os.environ)
        )
        wire = ParentsEnd(ours)
        try:
            process = server.start(place, asked.method)
        except BaseException:
            for one in (wire, out, err):
                one.close()
            raise
        finally:
            for one in (theirs, to_out, to_err, alive):
                one.close()
        self.members.append(Member(process, wire, out, err))

    def _kill(self):
        with counting_interrupts():  # an interrupt here would leave unknown ranks behind
            members, self.members = self.members, []
            shared, self.shared = self.shared, []
            for member in members:
                server.end(member.process)
            for process, wire, out, err in members:
                process.join(GONE_SECONDS)
                with suppress(ValueError):  # it hangs in the system, say because its GPU does
                    process.close()
                for one in (wire, out, err):
                    one.close()
            for one in shared:
                one.close()


def _close(world: "weakref.ref[World]"):
    if (there := world()) is not None:
        there.close()
