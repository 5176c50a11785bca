"""One rank: a process that does what its world sends, and says how it ended.

Two threads. The main thread works. The listening thread answers also while the main thread waits in
a collective: it ends the process when the parent is gone, and on Stop it says where the main thread
is, cuts its connections and interrupts it. A main thread that hears nothing of this is left to
itself, and another one works on.
"""

import ast
import builtins
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType, ModuleType

import cloudpickle
import torch
import torch.distributed as dist

from ranklab.measure.clock import cores
from ranklab.torch_internals import (
    abort_process_groups,
    process_groups,
    settings_of_contexts,
    watching_new_groups,
)

from . import messages
from .asked import RankPlace
from .board import Board
from .calls import listening
from .checks import Checks
from .devices import CannotBeHad, make_group, take_device
from .links import enter_namespaces
from .output import Streams
from .reports import raised, thread_frames
from .scheduling import woken_threads_wait
from .started import below, keep_from_programs, keeping_from_programs, kill
from .stopping import (
    Stopped,
    abort_groups,
    adopt,
    cut_connections,
    end_group,
    end_with_parent,
    importing,
    let_the_server_go,
    raise_in,
    stands_still,
)
from .wire import RanksEnd

DEAF_SECONDS = 0.5  # after a rank was told to stop: a thread that has not heard it by then will not


@dataclass
class Job:
    """A piece of work with its number, and the thread that does it."""

    number: int
    can_be_stopped: bool = True
    answered: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)


@contextmanager
def making_a_group() -> Iterator[None]:
    with woken_threads_wait(), keeping_from_programs():
        yield


class Rank:
    def __init__(self, place: RankPlace, streams: Streams):
        self.place, self.streams, self.pid = place, streams, os.getpid()
        self.wire = RanksEnd(place.connection)
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.sending = threading.RLock()
        # the newest; that of the main thread
        self.job = self.main_job = Job(0, can_be_stopped=False)
        self.group, self.backend = None, ""
        # sets what the next job begins with, in any thread: what the last one that ended well left
        self.restore = settings_of_contexts()

    def serve(self):
        """The life of a rank, until it is told to quit."""
        enter_namespaces(self.place.host.namespaces)  # before there is a second thread
        let_the_server_go()
        keep_from_programs()
        end_with_parent(self.place.alive.fileno())
        adopt()
        # Ctrl-C reaches every process of a terminal: the parent decides
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda _, frame: self._raise_stopped(self.main_job, frame))
        faulthandler.enable(file=2)
        threading.Thread(target=self._listen, daemon=True).start()
        self.main = sys.modules["__main__"] = ModuleType("__main__")
        board = Board(self.place.board, self.place.asked.world_size)
        self.checks = Checks(board, self.place.rank)
        watched = watching_new_groups(self.checks.new_group, making_a_group)
        with listening(self.checks), watched:
            self.work(self.inbox)
        kill(below(self.pid))

    # --- work -------------------------------------------------------------------------------------

    def work(self, inbox: queue.SimpleQueue):
        """Perform the commands that come in, one after the other: for the main thread, and while
        that is stuck for another one."""
        while True:
            number, command = inbox.get()
            if isinstance(command, messages.Quit):
                return
            self.streams.restore()
            self.restore()
            self.restore = settings_of_contexts()  # what a fault leaves behind is not kept
            job = self.job = Job(number)
            if job.thread is threading.main_thread():
                self.main_job = job
            answer = self.perform(command, job)
            if os.getpid() != self.pid:  # the work has forked, and this is the child's end of it
                self.leave(answer)
            self.streams.flush()
            with self.sending:
                if not self._answer(job, answer):  # this thread was stuck, and is back
                    if job.thread is not threading.main_thread():
                        return
                    inbox.put((0, messages.Quit()))  # for the one that has worked since
                    inbox = self.inbox = queue.SimpleQueue()
                elif isinstance(answer, messages.Returned):
                    self.restore = settings_of_contexts()

    def leave(self, answer):
        """End a process that the work has forked: it is not a rank, and nobody waits for it."""
        if isinstance(answer, messages.Raised):
            print(f"in a forked process: {answer.error}: {answer.message}", file=sys.stderr)
        self.streams.flush()
        os._exit(0 if isinstance(answer, messages.Returned) else 1)

    def perform(self, command, job: Job):
        work = {messages.Call: self.call, messages.Cell: self.cell, messages.Regroup: self.regroup}[
            type(command)
        ]
        try:
            try:
                return messages.Returned(work(*command), self.is_ungrouped())
            except CannotBeHad as error:
                return messages.Refused(str(error))
            # SystemExit and KeyboardInterrupt too: a cell ends, not the rank
            except BaseException as error:
                job.can_be_stopped = False
                return self._raised(error, job)
            finally:
                job.can_be_stopped = False
        except Stopped as error:  # it came while an error was being handled
            return self._raised(error, job)

    def call(self, pickled: bytes, as_json: bool) -> bytes:
        function, args, kwargs = cloudpickle.loads(pickled)
        result = function(*args, **kwargs)
        try:
            return json.dumps(result).encode() if as_json else messages.dumps(result)
        except Exception as error:
            raise TypeError(
                f"what {messages.function_name(function)} returned, a {type(result).__name__},"
                f" cannot be sent to the parent ({error}): return numbers, tensors and containers"
                " of them."
            ) from None

    def cell(self, source: str, name: str) -> bytes:
        run_source(source, name, vars(self.main))
        return messages.dumps(None)

    def is_ungrouped(self) -> bool:
        """Has the work ended the process group, or made another?"""
        return not dist.is_initialized() or dist.group.WORLD is not self.group

    def regroup(self, generation: int) -> bytes:
        """The process group, for the first time or anew."""
        place, asked = self.place, self.place.asked
        if self.backend:
            broken, self.group = [*process_groups(), self.group], None
            with suppress(Exception):  # NCCL's end waits for its kernels: what is broken is aborted
                (abort_process_groups() if self.backend == "nccl" else dist.destroy_process_group())
            # the end of a group waits for what is stuck in it
            threading.Thread(target=broken.clear, daemon=True).start()
        else:
            self.device, self.backend = take_device(place.rank, asked.world_size, asked)
            loopback = "lo" if sys.platform == "linux" else "lo0"
            # gloo and NCCL can be told in no other way
            os.environ["GLOO_SOCKET_IFNAME"] = place.host.interface or loopback
            os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
            self.store = dist.FileStore(place.store.path, asked.world_size)
            self.store.set_timeout(timedelta(seconds=asked.patience_seconds))
            shared = cores() // asked.world_size if self.device.type == "cuda" else 1
            torch.set_num_threads(max(1, shared))  # beside a GPU the host may update states
            vars(self.main).update(
                __builtins__=builtins,
                torch=torch,
                dist=dist,
                device=self.device,
                rank=place.rank,
                world_size=asked.world_size,
            )
        self.checks.forget()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a thread's own
            # autograd's thread has no context before its first product, and gets one there
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current")
        store = dist.PrefixStore(str(generation), self.store)
        with making_a_group():
            make_group(self.backend, place.rank, asked, store)
        self.group = dist.group.WORLD
        return messages.dumps((str(self.device), self.backend))

    # --- failing ----------------------------------------------------------------------------------

    def _raised(self, error: BaseException, job: Job) -> messages.Raised:
        """Stamp the time, then cut the connections: whoever fails because of that has a later
        stamp."""
        seconds = time.monotonic()
        with self.sending:
            # else they are of the next process group, or of the rank that has forked this process
            if self.group is not None and not job.answered and os.getpid() == self.pid:
                cut_connections()
        return raised(error, seconds, Stopped)

    def _raise_stopped(self, job: Job, frame: FrameType):
        """Python handles the signal in the main thread, when that is not in C++. Not within an
        import: what is half imported would stay so, and every later cell that needs it would fail.
        The parent ends a rank that goes on."""
        if job.can_be_stopped:
            job.can_be_stopped = False
            if not importing(frame):
                raise Stopped

    def _leave_alone(self, job: Job):
        """gloo can lose what it was sending or receiving when a connection goes: who waits for it
        waits until gloo's own time is up, and hears no signal. Then another thread works on, until
        the first is back."""
        time.sleep(DEAF_SECONDS)
        is_main = job.thread is threading.main_thread()
        if self.backend != "gloo" or not (is_main or stands_still(job.thread)):
            return
        with self.sending:
            # a thread that does not respond counts as stopped
            stopped = messages.Raised("Stopped", "", (), time.monotonic(), echo=False, stopped=True)
            if job.can_be_stopped and self._answer(job, stopped):
                threading.Thread(target=self.work, args=(self.inbox,), daemon=True).start()

    def _listen(self):
        while True:
            try:
                number, message = self.wire.receive()
            except (EOFError, OSError):
                end_group()  # the parent is gone
            if isinstance(message, messages.Stop):
                self._stop()
            else:
                with self.sending:
                    self.inbox.put((number, message))

    def _stop(self):
        job = self.job
        self._send(job.number, messages.Seen(thread_frames(job.thread)))
        cut_connections()
        # a kernel on the GPU hears neither: aside, as this may take long
        if self.backend == "nccl":
            threading.Thread(target=abort_groups, daemon=True).start()
        if job.thread is threading.main_thread():
            signal.pthread_kill(job.thread.ident, signal.SIGUSR1)
        else:
            wanted = job.thread, lambda: job.can_be_stopped
            threading.Thread(target=raise_in, args=wanted, daemon=True).start()
        threading.Thread(target=self._leave_alone, args=(job,), daemon=True).start()

    def _answer(self, job: Job, message) -> bool:
        """Say how a job ended, once."""
        with self.sending:
            first, job.answered = not job.answered, True
            if first:
                self._send(job.number, message)
            return first

    def _send(self, number: int, message):
        with self.sending:
            try:
                self.wire.send(number, message)
            except OSError:
                end_group()


def run_source(source: str, name: str, variables: dict):
    """Run a cell as a notebook does; the last line's value is printed."""
    messages.keep_lines(name, source.splitlines(True))
    tree = ast.parse(source, name)
    ends_in_a_value = tree.body and isinstance(tree.body[-1], ast.Expr)
    last = ast.Expression(tree.body.pop().value) if ends_in_a_value else None
    exec(compile(tree, name, "exec"), variables)
    if last is not None:
        value = eval(compile(last, name, "eval"), variables)
        if value is not None:
            print(repr(value))
