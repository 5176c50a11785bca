"""What ranks print: kept by rank, and shown in rank order, so that the same run shows the same."""

import sys
from contextlib import suppress

from .shared import SharedFile

LONG_SECONDS = 3.0  # work of this length gets a line of progress
BETWEEN_SECONDS = 1.0


class Printed:
    """What has come out of one rank's stdout or stderr, and how much of it was shown."""

    def __init__(self):
        self.file, self.shown = SharedFile(), 0

    def take(self) -> str:
        data = self.file.read_from(self.shown)
        self.shown += len(data)
        return data.decode(errors="replace")

    def last_line(self) -> str:
        lines = self.file.read_from(self.shown)[-2000:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def show(printed: list[Printed], stream):
    """Each rank's lines with its name before them, rank after rank."""
    for rank, one in enumerate(printed):
        for line in one.take().splitlines():
            stream.write(f"[rank {rank}] {line}\n")
    stream.flush()


class Progress:
    """One line while work is long: how long it has run, and the last that each rank printed. It
    goes when the work has ended."""

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
        self._draw(
            " | ".join([f"{seconds:.0f} s", *(said or [f"{len(self.printed)} ranks are at work"])])
        )

    def _draw(self, text: str):
        if (
            "IPython" in sys.modules
            and (shell := sys.modules["IPython"].get_ipython()) is not None
            and hasattr(shell, "kernel")
        ):
            from IPython.display import display

            if self.display is None:
                self.display = display({"text/plain": text}, raw=True, display_id=True)
            else:
                self.display.update({"text/plain": text}, raw=True)
        elif sys.stderr.isatty():
            with suppress(OSError):
                sys.stderr.write(f"\r\x1b[K{text}")
                sys.stderr.flush()
                self.display = None

    def end(self):
        if self.drawn_at >= LONG_SECONDS:
            self._draw("")
