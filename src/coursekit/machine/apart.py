"""Work in a process of its own, so that nothing outlasts the limit: not a loop in C that no thread
and no signal can stop, not a thread that swallows every exception, not an exit of the interpreter.

    apart(judge, exercise, solution, seconds=30)      # what judge(exercise, solution) returns
"""

import contextlib
import ctypes
import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import wait

import cloudpickle

from ranklab.ranks.messages import dumps
from ranklab.ranks.output import Progress
from ranklab.ranks.server import end, start_fork_server, without_main

PRINTED_CHARACTERS = 20_000  # of the work's output
SILENT_SECONDS = 1.0  # the fork server imports torch in the first check
ARRIVAL_SECONDS = 300.0  # for the fork server to import torch, and the work to arrive
PR_SET_PDEATHSIG = 1


class CannotGoApart(RuntimeError):
    """The work or its arguments cannot be sent to another process, or no process can be started."""


class Ended(RuntimeError):
    """The process ended before the work did."""


class Beginning(io.StringIO):
    """Keeps the first characters alone: work may print without end."""

    def write(self, text: str) -> int:
        return super().write(text[: PRINTED_CHARACTERS - self.tell()])


def apart(work: Callable, *args, seconds: float):
    """The result of work(*args), whose output is printed here. Raises TimeoutError after so many
    seconds of work, Ended, CannotGoApart. The process is gone in any case."""
    if sys.platform != "linux":  # elsewhere a process costs seconds
        raise CannotGoApart("only a fork server starts a process in no time.")
    try:
        travelling = dumps((work, args))
        start_fork_server()
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_live, args=(there, travelling), daemon=True)
        with without_main():
            process.start()
        there.close()
    except Exception as error:  # anything that a pickler can meet in a reader's code
        raise CannotGoApart(str(error)) from error
    try:
        try:
            if not wait([here, process.sentinel], SILENT_SECONDS):
                progress = Progress([])
                progress.draw("PyTorch is imported once more, for all checks")
                wait([here, process.sentinel], ARRIVAL_SECONDS)
                progress.draw("")
            for limit in (ARRIVAL_SECONDS, seconds):
                if not wait([here, process.sentinel], limit):
                    raise TimeoutError(f"it had not ended after {limit:g} s.")
                sent = here.recv_bytes()
            printed, result = cloudpickle.loads(sent)
        except EOFError:
            process.join()
            raise Ended(f"it ended the process with exit code {process.exitcode}.") from None
    finally:
        end(process)  # with all processes that it has started
        process.join()
        here.close()
    print(printed, end="")
    if isinstance(result, CannotGoApart):
        raise result
    return result


def _live(connection, travelling: bytes):
    """Live in the new process."""
    os.setsid()
    # small work: threads that wait for each other cost more than they give
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # this process ends with the fork server
    printed, work = Beginning(), None
    try:
        work, args = cloudpickle.loads(travelling)
    except Exception as error:
        result = CannotGoApart(f"{type(error).__name__}: {error}")
    connection.send_bytes(b"the work begins")
    if work is not None:
        with contextlib.redirect_stdout(printed):
            result = work(*args)
    connection.send_bytes(dumps((printed.getvalue(), result)))
    sys.stderr.flush()
    os._exit(0)  # running threads do not keep the process alive
