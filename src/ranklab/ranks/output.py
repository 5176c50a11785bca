"""The output of ranks: kept by rank, and shown in rank order, so that equal runs show equal output.

A rank, its C++ and the programs that it starts print into a pipe that its parent empties while it
waits. A rank that prints without end is therefore held up by the pipe and fills no memory; the
beginning and the end of its output are kept.
"""

import os
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

LONG_SECONDS = 10.0  # work of this length gets a line of progress
BETWEEN_SECONDS = 1.0
KEPT_BYTES = 500_000  # of the beginning and of the end, of a rank's stdout and of its stderr
MOST_BYTES = 64_000_000  # that a rank may print in one piece of work
PIPE_BYTES = 1 << 20  # that a rank may print before its parent looks
CHUNK_BYTES = 1 << 20
CHUNKS_AT_ONCE = 16
OF_GLOO = "[Gloo] Rank "  # torch 2.8 prints a line for each group that is made


class Printed:
    """The output of one rank's stdout or stderr that was not shown yet. The parent reads from
    `fd`."""

    def __init__(self, fd: int):
        self.fd = fd
        os.set_blocking(fd, False)
        self.ended = False  # nothing can be printed there any more
        self._forget()

    def _forget(self):
        self.nbytes, self.head, self.tail = 0, bytearray(), bytearray()

    def drain(self):
        """Read the current content of the pipe."""
        with suppress(BlockingIOError):
            for _ in range(CHUNKS_AT_ONCE):
                if not (chunk := os.read(self.fd, CHUNK_BYTES)):
                    self.ended = True
                    break
                room = KEPT_BYTES - len(self.head)
                self.head += chunk[:room]
                self.tail += chunk[room:]
                if len(self.tail) > 2 * KEPT_BYTES:
                    del self.tail[:-KEPT_BYTES]
                self.nbytes += len(chunk)

    def take(self) -> str:
        """The output to show; it is removed here."""
        self.drain()
        head, tail = bytes(self.head), bytes(self.tail[-KEPT_BYTES:])
        left_out = self.nbytes - len(head) - len(tail)
        self._forget()
        if left_out:
            head = head[: head.rfind(b"\n") + 1 or None]
            tail = tail[tail.find(b"\n") + 1 :]
            notice = f"... about {left_out:,} bytes are left out here ...\n"
            head = head + b"\n" * (not head.endswith(b"\n")) + notice.encode()
        return (head + tail).decode(errors="replace")

    def last_line(self) -> str:
        said = (self.tail or self.head)[-2000:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(said) if line.strip()), "")

    def close(self):
        os.close(self.fd)


def pipe() -> tuple[Printed, Connection]:
    """A pipe for a rank's output: the parent's end and the rank's end."""
    ours, theirs = os.pipe()
    with suppress(ImportError, AttributeError, OSError):  # no such call, or a lower limit
        import fcntl

        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return Printed(ours), Connection(theirs, readable=False)


def show_printed(printed: list[Printed], stream):
    """Each rank's lines with its name before them, rank after rank."""
    for rank, one in enumerate(printed):
        lines = [line for line in one.take().splitlines() if not line.startswith(OF_GLOO)]
        if lines and stream is not None:  # a program without a console has none
            write_escaped(stream, "".join(f"[rank {rank}] {line}\n" for line in lines))
    if stream is not None:
        stream.flush()


def write_escaped(stream, text: str):
    """Characters that the stream's encoding lacks are written as escapes."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


PROGRESS = {"shardlab": "progress"}  # tells programs that this output does not stay


class Progress:
    """One line of progress for long work: its duration so far and the last line of each rank. The
    line disappears when the work has ended."""

    def __init__(self, printed: list[Printed]):
        self.printed, self.drawn_at, self.display = printed, LONG_SECONDS - BETWEEN_SECONDS, None

    def __call__(self, seconds: float):
        if seconds < self.drawn_at + BETWEEN_SECONDS:
            return
        self.drawn_at = seconds
        said = [
            f"rank {rank}: {line[:60]}"
            for rank, one in enumerate(self.printed)
            if (line := one.last_line())
        ]
        self.draw(
            " | ".join([f"{seconds:.0f} s", *(said or [f"{len(self.printed)} ranks are at work"])])
        )

    def draw(self, text: str):
        if (
            "IPython" in sys.modules
            and (shell := sys.modules["IPython"].get_ipython()) is not None
            and hasattr(shell, "kernel")
        ):
            from IPython.display import display

            if self.display is None:
                self.display = display(
                    {"text/plain": text}, raw=True, display_id=True, metadata=PROGRESS
                )
            else:
                self.display.update({"text/plain": text}, raw=True, metadata=PROGRESS)
        elif sys.stderr is not None and sys.stderr.isatty():
            with suppress(OSError):
                write_escaped(sys.stderr, f"\r\x1b[K{text}")
                sys.stderr.flush()
                self.display = None

    def end(self):
        if self.drawn_at >= LONG_SECONDS:
            self.draw("")


# --- at the rank's end ----------------------------------------------------------------------------


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
