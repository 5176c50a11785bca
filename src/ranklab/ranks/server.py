"""Starting the process of a rank.

A kernel that has used CUDA must not fork: CUDA does not survive it. So ranks are forked by a
server, a process that imports torch once, never touches a GPU and has one thread. A fork takes
milliseconds and shares the memory of the import. Where there is no safe fork (macOS), ranks are
spawned: each imports torch for itself. That way was tried on Linux only. Windows has neither the
files without a name nor the descriptors that ranks are handed here; WSL or a hosted notebook is the
way to run ranks from there.
"""

import multiprocessing
import os
import signal
import sys
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from types import ModuleType

from .asked import RankPlace
from .output import Streams
from .started import below, kill

# what a rank needs, and what is often the name of somebody's own file
IMPORTED = ("torch", "numpy", "cloudpickle")
NO_MEMORY = "Memory is the probable reason: importing PyTorch takes a GB (see ulimit -v)."


def start_method() -> str:
    if sys.platform == "win32":
        raise OSError(
            "ranks need Linux or macOS: on Windows run this in WSL 2 or in a hosted notebook."
        )
    return "forkserver" if sys.platform == "linux" else "spawn"


def start_fork_server():
    """Start the fork server, if it does not run yet. It imports torch while we go on."""
    if start_method() == "forkserver":
        multiprocessing.set_forkserver_preload(["ranklab.ranks.preload"])
        forkserver.ensure_running()


def start(place: RankPlace, method: str) -> multiprocessing.Process:
    process = multiprocessing.get_context(method).Process(
        target=serve, args=(place,), name=f"rank {place.rank}"
    )
    with without_main():
        process.start()
    return process


def serve(place: RankPlace):
    """Serve in the new process."""
    # A group of processes of its own: what the rank starts can be ended with it. A session would be
    # a group too, but Linux then schedules ranks as if each had its own terminal: an all-reduce of
    # four ranks takes a tenth longer.
    os.setpgid(0, 0)
    streams = Streams(place.out, place.err)
    os.environ.clear()
    os.environ.update(place.environment)  # the server's are from the time of its start
    try:
        from .worker import Rank  # here, so that the parent does not import torch
    except ImportError as error:
        # PyTorch 2.15 says the second, as the import of the server had said the first
        if any(said in str(error) for said in ("failed to map segment", "initialized once")):
            sys.exit(NO_MEMORY)
        raise

    Rank(place, streams).serve()


def end(process: multiprocessing.Process):
    """End a rank, and every process that it has started: in its group, or in a session of its own
    as long as the rank lives. A process that left the session asked to outlive the rank, and does
    where the rank died by itself or its parent was killed."""
    started = below(process.pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # where it has not come to make its group yet
    kill(started)


def why_not(error: BaseException) -> str:
    """A likely reason why ranks did not start: a sentence, or nothing."""
    if "Unable to find address for" in str(error):
        return "This interface has no address: bring it up (ip link set lo up)."
    for name in (*IMPORTED, *sys.stdlib_module_names):
        path = os.path.join(sys.path[0] or os.curdir, f"{name}.py")
        if os.path.exists(path) and not path.startswith(os.path.dirname(os.__file__)):
            return f"{os.path.abspath(path)} hides the module {name} that ranks import: rename it."
    if isinstance(error, FileNotFoundError):
        try:
            os.getcwd()
        except OSError:
            return "The current folder was deleted: change to one that is there."
        return "There must be a folder for temporary files: set TMPDIR to one."
    if isinstance(error, OSError) and error.errno == 24:
        return "More open files must be allowed: raise the limit with ulimit -n."
    if isinstance(error, (EOFError, ConnectionError)):  # the server has ended
        return NO_MEMORY
    return ""


@contextmanager
def without_main():
    """multiprocessing runs the parent's script again in each child. A rank gets its functions by
    value and has no need of it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
