"""A rank's output, also from C++ and from programs that it starts, goes to its parent."""

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection


class Streams:
    """The two pipes to the parent, and the streams that write into them."""

    def __init__(self, out: Connection, err: Connection):
        self.pipes = {1: out, 2: err}
        self.opened: dict[int, object] = {}
        for number in self.pipes:
            self._open(number)

    def _open(self, number: int):
        os.dup2(self.pipes[number].fileno(), number)
        stream = open(
            number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        self.opened[number] = stream
        setattr(sys, {1: "stdout", 2: "stderr"}[number], stream)

    def restore(self):
        """Open the streams again that earlier work has closed."""
        for number, pipe in self.pipes.items():
            ours = self.opened[number]
            shown = sys.stdout if number == 1 else sys.stderr
            if not _same_file(number, pipe.fileno()) or ours.closed or _is_closed(shown):
                self._open(number)

    def flush(self):
        """Flush also incomplete lines."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the reader's own stream, or a closed one
                stream.flush()


def _is_closed(stream) -> bool:
    return stream is None or getattr(stream, "closed", False) is True


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:  # not open
        return False
