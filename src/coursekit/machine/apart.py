"""Work in a process of its own, so that nothing outlasts the limit: not a loop in C that no thread
and no signal can stop, not a thread that swallows every exception, not an exit of the interpreter.

    apart(judge, exercise, solution, seconds=30)      # what judge(exercise, solution) returns
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait

import cloudpickle

from ranklab.ranks.messages import dumps
from ranklab.ranks.output import Progress, Streams, pipe
from ranklab.ranks.server import end, start_fork_server, without_main

PRINTED_CHARACTERS = 20_000  # of the work's stdout and of its stderr
DRAIN_SECONDS = 0.05  # work that prints without end is held up by its pipe until then
SILENT_SECONDS = 1.0  # the fork server imports torch in the first check
ARRIVAL_SECONDS = 300.0  # for the fork server to import torch, and the work to arrive
PR_SET_PDEATHSIG = 1


class CannotGoApart(RuntimeError):
    """The work or its arguments cannot be sent to another process, or no process can be started."""


class Ended(RuntimeError):
    """The process ended before the work did."""


def apart(work: Callable, *args, seconds: float):
    """The result of work(*args), whose output is printed here. Raises TimeoutError after so many
    seconds of work, Ended, CannotGoApart. The process is gone in any case."""
    if sys.platform != "linux":  # elsewhere a process costs seconds
        raise CannotGoApart("only a fork server starts a process in no time.")
    try:
        travelling = dumps((work, args))
        start_fork_server()
        here, there = multiprocessing.Pipe()
        printed, theirs = zip(pipe(), pipe())
        given = there, *theirs
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_live, args=(travelling, *given), daemon=True)
        with without_main():
            process.start()
        for end_of_pipe in given:
            end_of_pipe.close()
    except Exception as error:  # anything that a pickler can meet in a reader's code
        raise CannotGoApart(str(error)) from error

    def heard(limit: float) -> bool:
        """Whether the process has sent something, or ended, within the limit."""
        until = time.monotonic() + limit
        while not (found := wait([here, process.sentinel], DRAIN_SECONDS)):
            if time.monotonic() > until:
                break
            for one in printed:
                one.drain()
        return bool(found)

    try:
        try:
            if not heard(SILENT_SECONDS):
                progress = Progress([])
                progress.draw("PyTorch is imported once more, for all checks")
                heard(ARRIVAL_SECONDS)
                progress.draw("")
            for limit in (ARRIVAL_SECONDS, seconds):
                if not heard(limit):
                    raise TimeoutError(f"it had not ended after {limit:g} s.")
                sent = here.recv_bytes()
        except EOFError:
            process.join()
            raise Ended(f"it ended the process with exit code {process.exitcode}.") from None
    finally:
        end(process)  # with all processes that it has started
        process.join()
        here.close()
        for one, stream in zip(printed, (sys.stdout, sys.stderr)):
            print(one.take()[:PRINTED_CHARACTERS], end="", file=stream)
            one.close()
    result = cloudpickle.loads(sent)
    if isinstance(result, CannotGoApart):
        raise result
    return result


def _live(travelling: bytes, connection, out, err):
    """Live in the new process."""
    os.setsid()
    streams = Streams(out, err)
    # small work: threads that wait for each other cost more than they give
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # with the fork server
    try:
        work, args = cloudpickle.loads(travelling)
    except Exception as error:
        work, args = CannotGoApart, [f"{type(error).__name__}: {error}"]
    connection.send_bytes(b"the work begins")
    result = work(*args)
    streams.flush()
    connection.send_bytes(dumps(result))
    os._exit(0)  # running threads do not keep the process alive
