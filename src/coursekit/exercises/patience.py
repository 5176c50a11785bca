"""A time limit for a reader's code, so that no check hangs and no code runs on during the next
cell.

    with at_most(30):
        solution(...)             # TimeoutError, one sentence, if it has not ended by then
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RunsOn(BaseException):
    """Raised in a thread to end it. The reader's `except Exception` does not catch it."""


def stop(thread: threading.Thread):
    """Raise RunsOn in the thread at its next line of Python. A thread that waits in C forever does
    not notice it."""
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(RunsOn)
        )


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError if the code within does not end after so many seconds, in this thread."""
    timer = threading.Timer(seconds, stop, (threading.current_thread(),))
    timer.daemon = True
    timer.start()
    try:
        yield
    except RunsOn:
        raise TimeoutError(f"it had not ended after {seconds:g} s.") from None
    finally:
        timer.cancel()
