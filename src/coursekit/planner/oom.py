"""PyTorch's out-of-memory message in plain words: what each number is, whether gaps or bytes are
missing, at which point of the step, and the nearest fixes with their bytes.

    print(explain_oom(Path("train.log").read_text()))
"""

import re
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from coursekit.formulas.presets import GPUS
from coursekit.sentences import data_text, sentences
from coursekit.show.format import format_bytes, parse_number

SIZE = r"([\d.]+ (?:bytes|KiB|MiB|GiB|TiB))"
# PyTorch to 2.0; before 1.4 the last number was what is cached beyond what is allocated
OLDER = re.compile(
    rf"{SIZE} \(GPU (\d+); {SIZE} total capacity; {SIZE} already allocated; {SIZE} free;"
    rf"(?: {SIZE} allowed;)? {SIZE} (reserved in total|cached)"
)
NEWER = re.compile(rf"{SIZE}\. GPU (\d*) has a total capaci?ty of {SIZE} of \w+ {SIZE} is free\.")
PROCESS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
THIS_PROCESS = re.compile(rf"this process has {SIZE} memory in use")
ALLOWED = re.compile(rf"{SIZE} allowed")
OF_PYTORCH = re.compile(rf"{SIZE} is allocated by PyTorch")
UNALLOCATED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
ASKS = re.compile(r"Tried\s+to\s+allocate\s+")
TRACEBACK = "Traceback (most recent call last)"
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
LIBRARY_PATHS = ("site-packages", "dist-packages", "lib/python3", "torchinductor", "<frozen")
NEAREST_LINES = 12  # of a log that has no traceback's first line
GAP_SHARE = 0.05  # of a card: gaps that are nothing unusual
CONTEXT_BYTES = 3 * 2**28  # of CUDA, in each process
CAPACITY_SHARE = 0.01  # of a card: sizes that are one card's


_TEXT = data_text("oom.md")


class Cause(NamedTuple):
    """Why an allocation failed: what is said of it, and the first fix."""

    name: str
    said: str
    fix: str


@dataclass(frozen=True)
class FailurePoint:
    """A moment of a step; `fixes` have the names of bytes in braces."""

    name: str
    why: str
    pattern: str
    fixes: tuple


@cache
def points() -> tuple[FailurePoint, ...]:
    parts = _TEXT.split("\n## ")[2:]
    return tuple(
        FailurePoint(name, why, pattern.strip("`"), tuple(re.findall(r"(?m)^- (.+)", fixes)))
        for name, why, pattern, fixes in (part.split("\n\n", 3) for part in parts)
    )


@dataclass(frozen=True)
class MemoryMessage:
    """Bytes of one message. `processes` are those of others; `own` is what this process has with
    its context, where the message says it."""

    gpu: str
    asked: int
    total: int
    free: int
    allocated: int
    unallocated: int
    own: int | None = None
    allowed: int | None = None
    processes: dict = field(default_factory=dict)
    frames: str = ""
    more: int = 0  # messages behind it in the same log

    @property
    def reserved(self) -> int:
        return self.allocated + self.unallocated

    @property
    def missing(self) -> int:
        return max(0, self.asked - self.free)

    @property
    def room(self) -> int:
        """Bytes that are left once the tensor has all gaps; negative where these do not hold it."""
        return self.free + self.unallocated - self.asked

    @property
    def others(self) -> int:
        """Bytes of other processes, with all contexts where the message does not say more."""
        own = self.reserved if self.own is None else self.own
        return sum(self.processes.values()) or max(0, self.total - self.free - own)

    @property
    def held_by_others(self) -> int:
        """These bytes without a context of this process."""
        own = self.own is not None or self.processes  # else the context is among them
        return self.others - (0 if own else CONTEXT_BYTES)

    @property
    def cause(self) -> Cause:
        known = self._shown | dict(message=self, GAP_SHARE=GAP_SHARE)
        name, words = next(sentences("oom.md", "why an allocation failed", known))
        return Cause(name, *words.split(" → "))

    @property
    def point(self) -> FailurePoint | None:
        """The point of the step by the traceback; an optimizer calls a closure before
        its step begins."""
        frames = self.frames.rpartition("closure()")[2]
        return next((one for one in points() if re.search(one.pattern, frames, re.M)), None)

    @property
    def line(self) -> str:
        """The innermost line of the traceback that is in no library."""
        own = [f"{path}:{n}" for path, n in FRAME.findall(self.frames) if not _in_library(path)]
        return own[-1] if own else ""

    @property
    def presets(self) -> list[str]:
        """The GPUs of the book that report about this capacity, the nearest first."""
        off = lambda name: abs(GPUS[name].quantities["gpu_memory_bytes"] - self.total)
        return sorted((name for name in GPUS if off(name) <= CAPACITY_SHARE * self.total), key=off)

    @property
    def _shown(self) -> dict:
        sizes = ("asked", "total", "free", "allocated", "unallocated", "others", "missing")
        shown = {name: format_bytes(getattr(self, name)) for name in sizes}
        shown |= dict(half=format_bytes(self.asked // 2), eighth=format_bytes(self.asked // 8))
        held = ", ".join(f"{pid} with {format_bytes(has)}" for pid, has in self.processes.items())
        shown["process"] = f"processes: {held}" if held else "process (nvidia-smi names it)"
        room, allowed = format_bytes(abs(self.room)), format_bytes(self.allowed or 0)
        return shown | dict(room=room, allowed=allowed)

    @property
    def fixes(self) -> list[str]:
        """The nearest first."""
        found = [fix.format_map(self._shown) for fix in (self.point.fixes if self.point else ())]
        by_point = self.point and self.cause.name in ("NEED", "TOO_LARGE")
        return found if by_point else [self.cause.fix, *found]

    @property
    def rows(self) -> list[tuple[int, str]]:
        """Each part of the card, and what it is."""
        rows = [
            (self.allocated, "allocated: tensors that are alive"),
            (self.unallocated, "reserved, not allocated: gaps that the allocator holds"),
        ]
        if self.own is not None:
            rows += [(max(0, self.own - self.reserved), "this process beside it: context, NCCL")]
        rows += [(has, f"process {pid}") for pid, has in self.processes.items()]
        rest = self.total - self.free - sum(nbytes for nbytes, _ in rows)
        if rest > 0.001 * self.total:
            rows.append((rest, "contexts, and other processes that the message does not name"))
        return [*rows, (self.free, "free")]

    def __str__(self) -> str:
        return "\n".join(self._texts())

    def _texts(self):
        gpu = f"GPU {self.gpu or '?'}"
        card = f", as {' and '.join(self.presets)} have" if self.presets else ""
        lack = f": {format_bytes(self.missing)} missing" if self.missing else ""
        asked, free = format_bytes(self.asked), format_bytes(self.free)
        yield f"{gpu} has {format_bytes(self.total)}{card}. Asked for: {asked}. Free: {free}{lack}."
        yield ""
        yield from (f"{format_bytes(nbytes):>12}  {words}" for nbytes, words in self.rows)
        if self.reserved > self.total:
            yield "More than the card has: the driver pages to the host's memory, as on Windows."
        yield ""
        yield self.cause.said
        where = f", at {self.line}" if self.line else ""
        if self.point:
            yield f"Where: {self.point.name}{where}. {self.point.why}"
        else:
            yield f"Where: the traceback is not here{where}."
        yield "What helps, the nearest first:"
        yield from (f"  - {fix}" for fix in self.fixes)
        room = format_bytes(abs(self.room))
        if self.cause.name != "GAPS" and self.room < 0:
            yield f"expandable_segments:True does not help: with all gaps {room} lack."
        elif self.cause.name == "NEED":
            yield f"expandable_segments:True may let this tensor pass, with {room} left: no cure."
        if self.more:
            yield f"{self.more} more of these messages follow; the first is nearest to the cause."

    def as_json(self) -> dict:
        sizes = ("asked", "total", "free", "allocated", "unallocated", "own", "others", "missing")
        return {f"{name}_bytes": getattr(self, name) for name in sizes} | dict(
            gpu=self.gpu,
            cause=self.cause.name.lower(),
            point=self.point and self.point.name,
            line=self.line,
            fixes=self.fixes,
        )


def explain_oom(text: str) -> MemoryMessage:
    """The first out-of-memory message of a log. Raises ValueError with one sentence for a text that
    has none with PyTorch's numbers."""
    parts = ASKS.split(text)
    found = [(left, _parsed(" ".join(right.split()))) for left, right in pairwise(parts)]
    parsed = [(left, message) for left, message in found if message]
    if not parsed:
        known = re.findall(r"(?m)^`(.+)`\n: +(.+)", _TEXT.partition("\n## ")[0])
        raise ValueError(next(said for pattern, said in known if re.search(pattern, text)))
    frames, message = parsed[0]
    _, begins, frames = frames.rpartition(TRACEBACK)
    if not begins:
        frames = "\n".join(frames.splitlines()[-NEAREST_LINES:])
    return MemoryMessage(**message, frames=frames, more=len(parsed) - 1)


def _parsed(message) -> dict | None:
    if found := OLDER.match(message):
        asked, gpu, total, allocated, free, allowed, held, words = found.groups()
        asked, total, allocated, free, held = map(_bytes, (asked, total, allocated, free, held))
        unallocated = held if words == "cached" else max(0, held - allocated)
        given = dict(allowed=_bytes(allowed))
    elif found := NEWER.match(message):
        asked, gpu, total, free = found.groups()
        asked, total, free = map(_bytes, (asked, total, free))
        allocated, unallocated, own, allowed = (
            _bytes(one[1]) if (one := pattern.search(message)) else None
            for pattern in (OF_PYTORCH, UNALLOCATED, THIS_PROCESS, ALLOWED)
        )
        allocated, unallocated = allocated or 0, unallocated or 0
        others = {pid: _bytes(has) for pid, has in PROCESS.findall(message)}
        if own is None:  # in a container it is one of those that are named
            large = [pid for pid, has in others.items() if has >= allocated + unallocated]
            own = others.pop(min(large, key=others.get)) if large else None
        if not allocated + unallocated <= (own or 0) <= total:  # as drivers of Windows say it
            own = None
        given = dict(own=own, allowed=allowed, processes=others)
    else:
        return None
    given |= dict(gpu=gpu, asked=asked, total=total, free=free)
    return given | dict(allocated=allocated, unallocated=unallocated)


def _bytes(text) -> int | None:
    return text and round(parse_number(text.replace("bytes", "B"), "bytes"))


def _in_library(path) -> bool:
    return any(part in path for part in LIBRARY_PATHS)
