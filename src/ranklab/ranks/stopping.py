"""How a rank is made to leave what it is doing."""

import ctypes
import fcntl
import os
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver
from traceback import walk_stack
from types import FrameType

from ranklab.torch_internals import process_groups

SECOND_LOOK_SECONDS = 0.05
IMPORTER = "<frozen importlib._bootstrap>"


class Stopped(KeyboardInterrupt):
    """Raised in the main thread when the world told this rank to stop."""


def end_with_parent(alive: int):
    """Let the system kill this rank and its group when nobody holds the other end of the pipe
    `alive`, whatever the rank does then: a thread that never lets go of the interpreter would hear
    nothing."""
    if sys.platform == "linux":
        fcntl.fcntl(alive, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(alive, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(alive, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)


def adopt():
    """PR_SET_CHILD_SUBREAPER: processes whose parents end stay below this rank, so that whoever
    ends the rank finds them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1)


def end_group():
    """The parent is gone: end this rank and all that it has started."""
    if os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def let_the_server_go():
    """The fork server lives as long as a process holds its pipe, and hands it to each rank: one
    that never lets go of the interpreter's lock would outlive its parent, with the server."""
    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def importing(frame: FrameType | None) -> bool:
    """Whether an import is under way in this stack of calls."""
    return frame is not None and any(
        one.f_code.co_filename == IMPORTER for one, _ in walk_stack(frame)
    )


def raise_in(thread: threading.Thread, wanted: Callable[[], bool]):
    """Raise Stopped in a thread that is not the main one, which hears no signal. Not within an
    import: a thread torn away while it waits for another's import of a module leaves that module's
    lock broken, and whoever imports the module later waits forever."""
    while wanted():
        if not importing(sys._current_frames().get(thread.ident)):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped)
            )
            return
        time.sleep(SECOND_LOOK_SECONDS)


def stands_still(thread: threading.Thread) -> bool:
    """Is this thread outside of Python, as far as two looks can tell?"""

    def place():
        frame = sys._current_frames().get(thread.ident)
        return frame and (id(frame), frame.f_lasti)

    before = place()
    time.sleep(SECOND_LOOK_SECONDS)
    return place() == before


def abort_groups():
    """Make NCCL's kernels return. A thread that waits for one goes on, and hears the signal."""
    for group in process_groups():
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
                # gloo dies when its listener is shut
                and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            ):
                connection.shutdown(socket.SHUT_WR)
