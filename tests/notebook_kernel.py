"""A real notebook kernel for tests: what a reader's cell prints, shows and raises."""

import re
import signal
import time
from contextlib import ExitStack, contextmanager
from queue import Empty
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil
from jupyter_client.manager import KernelManager

CELL_SECONDS = 900  # against a cell that hangs: a busy machine has taken more than a third of it


class Shown(NamedTuple):
    """The output of a cell. `error` is empty if it raised nothing, else all that the notebook shows
    of the error."""

    out: str
    err: str
    error: str
    name: str = ""


class Kernel:
    def __init__(self, manager: KernelManager):
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=CELL_SECONDS)
        self.pid = manager.provisioner.process.pid

    def run(self, cell: str, interrupt_when=None) -> Shown:
        """Run a cell. `interrupt_when()` is asked now and then; when it is true, the stop button is
        pressed, once."""
        # after an error, a busy kernel is idle before it takes cells again, and drops the next one
        asked = self.client.execute(cell, stop_on_error=False)
        out, err, error, name = "", "", "", ""
        deadline = time.monotonic() + CELL_SECONDS
        while time.monotonic() < deadline:
            if interrupt_when is not None and interrupt_when():
                interrupt_when = None
                self.manager.interrupt_kernel()
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue  # the kernel still answers whoever asked whether it was ready
            content = message["content"]
            if message["msg_type"] == "stream":
                out, err = (
                    (out + content["text"], err)
                    if content["name"] == "stdout"
                    else (out, err + content["text"])
                )
            elif message["msg_type"] == "error":
                error, name = (
                    re.sub(r"\x1b\[[\d;]*m", "", "\n".join(content["traceback"])),
                    content["ename"],
                )
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return Shown(out, err, error, name)
        raise AssertionError(
            f"the cell did not end within {CELL_SECONDS} s; so far: {out}{err}{error}"
        )

    def kill(self):
        """Kill the rank as the system does: no handler runs, the process group lives on."""
        import os

        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def notebook(first_cell="%load_ext ranklab.ranks"):
    """A kernel of its own; nothing of it is left afterwards. It listens at files: of two kernels
    that look for a free port at one time, one may find it taken."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        manager.start_kernel()
        stack.callback(manager.shutdown_kernel, now=False)
        kernel = Kernel(manager)
        stack.callback(kernel.client.stop_channels)
        assert not kernel.run(first_cell).error
        yield kernel


def gone(pids, seconds=180) -> bool:
    """Have all these processes ended, soon at least?"""

    def alive(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [psutil.Process(pid) for pid in pids if alive(pid)]
    for process in left:  # shown when the test fails: which of them it was, and whose child
        print(
            f"still there: {process.pid}, child of {process.ppid()}, {process.status()}:"
            f" {' '.join(process.cmdline())[:200]}"
        )
    return not left


def descendants(pid) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
