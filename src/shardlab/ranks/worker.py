"""One rank: a process that does what its world sends, and says how it ended.

Two threads. The main thread works. The listening thread answers also while the main thread waits in
a collective: it ends the process when the parent is gone, and on Stop it says where the main thread
is, cuts its connections and interrupts it. A main thread that hears nothing of this is left to
itself, and another one works on.
"""

import ast
import builtins
import ctypes
import faulthandler
import linecache
import multiprocessing
import os
import queue
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing import forkserver
from types import ModuleType

import cloudpickle
import torch
import torch.distributed as dist

from . import messages
from .board import Board
from .calls import listening
from .checks import Checks
from .devices import CannotBeHad, choose
from .links import enter
from .server import Place

ECHOES = ("gloo", "NCCL", "peer", "Broken pipe", "Wait timeout", "Timed out")
IMPORTER = "<frozen importlib._bootstrap>"
STANDARD_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__))
NOT_THE_READERS = (os.path.dirname(os.path.abspath(__file__)), os.path.dirname(torch.__file__))
AGAIN_SECONDS = 0.02
DEAF_SECONDS = 0.5  # after a rank was told to stop: a thread that has not heard it by then will not


class Stopped(KeyboardInterrupt):
    """Raised in the main thread when the world told this rank to stop."""


class Job:
    """A piece of work, and the thread that does it."""

    def __init__(self, can_be_stopped=True):
        self.thread = threading.current_thread()
        self.can_be_stopped = can_be_stopped
        self.answered = False


class Rank:
    def __init__(self, place: Place):
        self.place = place
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.sending = threading.RLock()
        self.job = self.main_job = Job(can_be_stopped=False)  # the newest; that of the main thread
        self.group_exists, self.backend = False, ""

    def serve(self):
        """The life of a rank, until it is told to quit."""
        enter(self.place.namespaces)  # before there is a second thread
        let_the_server_go()
        # forked by the server, which ends with the parent
        if os.getppid() != multiprocessing.parent_process().pid:
            # PR_SET_PDEATHSIG: end with the server, whatever this process does then
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        # Ctrl-C reaches every process of a terminal: the parent decides
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, self._interrupt)
        self._redirect()
        threading.Thread(target=self._listen, daemon=True).start()
        self.main = sys.modules["__main__"] = ModuleType("__main__")
        self.checks = Checks(
            Board(self.place.board, self.place.world_size), self.place.rank, self.place.forbid_nan
        )
        with listening(self.checks):
            self.work(self.inbox)

    # --- work -------------------------------------------------------------------------------------

    def work(self, inbox: queue.SimpleQueue):
        """What comes in, one after the other: for the main thread, and while that is stuck for
        another one."""
        while not isinstance(command := inbox.get(), messages.Quit):
            job = self.job = Job()
            if job.thread is threading.main_thread():
                self.main_job = job
            answer = self.perform(command, job)
            with self.sending:
                if not self._answer(job, answer):  # this thread was stuck, and is back
                    inbox.put(messages.Quit())  # for the one that has worked since
                    inbox = self.inbox = queue.SimpleQueue()

    def perform(self, command, job: Job):
        work = {messages.Call: self.call, messages.Cell: self.cell, messages.Regroup: self.regroup}[
            type(command)
        ]
        try:
            try:
                return messages.Returned(work(*command))
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

    def call(self, pickled: bytes) -> bytes:
        function, args, kwargs = cloudpickle.loads(pickled)
        result = function(*args, **kwargs)
        try:
            return cloudpickle.dumps(result)
        except Exception as error:
            name = getattr(function, "__name__", "the function")
            raise TypeError(
                f"what {name} returned, a {type(result).__name__}, cannot be sent to the parent"
                f" ({error}): return numbers, tensors and containers of them."
            ) from None

    def cell(self, source: str, name: str) -> bytes:
        """As in a notebook: the last line's value is shown, here printed."""
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        tree, value = ast.parse(source, name), None
        last = (
            ast.Expression(tree.body.pop().value)
            if tree.body and isinstance(tree.body[-1], ast.Expr)
            else None
        )
        exec(compile(tree, name, "exec"), vars(self.main))
        if (
            last is not None
            and (value := eval(compile(last, name, "eval"), vars(self.main))) is not None
        ):
            print(repr(value))
        return cloudpickle.dumps(None)

    def regroup(self, generation: int) -> bytes:
        """The process group, for the first time or anew."""
        place = self.place
        if self.group_exists:
            broken = list(dist.distributed_c10d._world.pg_map)
            with suppress(Exception):  # NCCL's end waits for its kernels: what is broken is aborted
                (
                    dist.distributed_c10d._abort_process_group()
                    if self.backend == "nccl"
                    else dist.destroy_process_group()
                )
            # the end of a group waits for what is stuck in it
            threading.Thread(target=broken.clear, daemon=True).start()
        else:
            gpus = torch.cuda.device_count()
            self.device, self.backend = choose(
                place.rank, place.world_size, gpus, place.device, place.backend, place.share_gpus
            )
            loopback = "lo" if sys.platform == "linux" else "lo0"
            # gloo can be told in no other way
            os.environ["GLOO_SOCKET_IFNAME"] = place.interface or loopback
            self.store = dist.FileStore(place.store.path, place.world_size)
            self.store.set_timeout(timedelta(seconds=place.patience_seconds))
            vars(self.main).update(
                __builtins__=builtins,
                torch=torch,
                dist=dist,
                device=self.device,
                rank=place.rank,
                world_size=place.world_size,
            )
        self.checks.forget()
        torch.set_num_threads(place.threads)  # this and the device are a thread's own
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.backend == "nccl" else self.backend
        # The parent notices a collective that waits too long, and knows for whom. The backend's own
        # limit is for when it cannot.
        dist.init_process_group(
            backend,
            store=dist.PrefixStore(str(generation), self.store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=2 * place.patience_seconds + 30),
        )
        self.group_exists = True
        return cloudpickle.dumps((str(self.device), self.backend))

    # --- failing ----------------------------------------------------------------------------------

    def _raised(self, error: BaseException, job: Job) -> messages.Raised:
        """Stamp the time, then cut the connections: whoever fails because of that has a later
        stamp."""
        seconds = time.monotonic()
        with self.sending:
            if self.group_exists and not job.answered:  # else they are of the next process group
                cut_connections()
        chain = [error]
        while (
            before := chain[-1].__cause__
            or (None if chain[-1].__suppress_context__ else chain[-1].__context__)
        ) is not None:
            chain.append(before)
        cause = (
            "".join(traceback.format_exception_only(chain[-1])).strip() if len(chain) > 1 else ""
        )
        return messages.Raised(
            type(error).__name__,
            str(error),
            readers_frames(traceback.walk_tb(error.__traceback__)),
            seconds,
            is_echo(chain[-1]),
            isinstance(chain[-1], Stopped),
            cause,
        )

    def _interrupt(self, _, frame):
        """The handler of the signal: Python runs it in the main thread, when that is not in C++.
        Not within an import: what is half imported would stay so, and every later cell that needs
        it would fail. It is tried again until that is done."""
        job = self.main_job
        if job.can_be_stopped and is_importing(frame):
            again = threading.Timer(AGAIN_SECONDS, self._interrupt_again, (job,))
            again.daemon = True
            again.start()
        elif job.can_be_stopped:
            job.can_be_stopped = False
            raise Stopped

    def _interrupt_again(self, job: Job):
        if job is self.main_job and job.can_be_stopped:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def _leave_alone(self, job: Job):
        """gloo can lose what it was sending or receiving when a connection goes: who waits for it
        waits until gloo's own time is up, and hears no signal. Then another thread works on, until
        the first is back."""
        time.sleep(DEAF_SECONDS)
        with self.sending:
            if (
                job.can_be_stopped
                and job.thread is threading.main_thread()
                and self.backend == "gloo"
            ):
                if self._answer(
                    job,
                    messages.Raised("Stopped", "", (), time.monotonic(), echo=False, stopped=True),
                ):
                    threading.Thread(target=self.work, args=(self.inbox,), daemon=True).start()

    def _listen(self):
        while True:
            try:
                message = self.place.connection.recv()
            except (EOFError, OSError):
                os._exit(1)  # the parent is gone
            if isinstance(message, messages.Stop):
                frame = sys._current_frames().get(self.job.thread.ident)
                self._send(
                    messages.Seen(readers_frames(reversed(list(traceback.walk_stack(frame)))))
                )
                cut_connections()
                # a kernel on the GPU hears neither: aside, as this may take long
                if self.backend == "nccl":
                    threading.Thread(target=abort_groups, daemon=True).start()
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                threading.Thread(target=self._leave_alone, args=(self.job,), daemon=True).start()
            else:
                with self.sending:
                    self.inbox.put(message)

    def _answer(self, job: Job, message) -> bool:
        """Say how a job ended, once."""
        with self.sending:
            first, job.answered = not job.answered, True
            if first:
                self._send(message)
            return first

    def _send(self, message):
        with self.sending:
            try:
                self.place.connection.send(message)
            except OSError:
                os._exit(1)

    def _redirect(self):
        """What is printed, also by C++, goes into files that the parent reads."""
        for number, file, name in ((1, self.place.out, "stdout"), (2, self.place.err, "stderr")):
            os.dup2(file.fd, number)
            setattr(
                sys,
                name,
                open(
                    number,
                    "w",
                    buffering=1,
                    encoding="utf-8",
                    errors="backslashreplace",
                    closefd=False,
                ),
            )
        faulthandler.enable(file=2)


def is_importing(frame) -> bool:
    """Is a module being imported in this stack of calls?"""
    while frame is not None and frame.f_code.co_filename != IMPORTER:
        frame = frame.f_back
    return frame is not None


def let_the_server_go():
    """The fork server lives as long as a process holds its pipe, and hands it to each rank: one
    that never lets go of the interpreter's lock would outlive its parent, with the server."""
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def abort_groups():
    """Make NCCL's kernels return. Whoever waits for one goes on, and hears the signal."""
    for group in list(dist.distributed_c10d._world.pg_map):
        with suppress(Exception):
            group.abort()


def cut_connections():
    """End what this process says on its TCP connections, so that every rank that waits for it fails
    now, and in turn ends what it says. That is the end of the process group.

    It still hears the others: if what they send came back as an error, gloo would forget the
    message and let its sender wait. Destroying the group would end it too, but not while another
    thread waits in it, nor while a model or a traceback holds it.
    """
    for number in range(3, 4096):
        try:
            copy = os.dup(number)  # gloo may close its own at any moment
        except OSError:  # not open
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as connection, suppress(OSError):
            if (
                connection.family in (socket.AF_INET, socket.AF_INET6)
                and connection.type == socket.SOCK_STREAM
            ):
                # gloo dies when its listener is shut
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_WR)


def is_echo(error: BaseException) -> bool:
    """Is this what a collective raises when another rank has left it?"""
    return (
        type(error) is RuntimeError
        and any(word in str(error) for word in ECHOES)
        or isinstance(error, dist.DistError)
    )


def readers_frames(frames) -> tuple[messages.Frame, ...]:
    """(file, line, function), outermost first, without the frames of this package and of torch."""
    found = ((frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames)
    return tuple(
        f
        for f in found
        if not f[0].startswith((*NOT_THE_READERS, "<frozen", "<string>"))
        and (not f[0].startswith(STANDARD_LIBRARY) or "site-packages" in f[0])
    )
