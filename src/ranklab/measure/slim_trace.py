"""A trace made small: what a picture and a step's budget need of it, in a few kilobytes of JSON.

trace = from_chrome(events)                     # of PyTorch's profiler, chrome_trace.py
path.write_text(trace.as_json())
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class SpanKind(StrEnum):
    """Why a lane was occupied."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    MESSAGE = "message"
    COPY = "copy"
    LAUNCH = "launch"
    WAIT = "wait"
    LOADER = "loader"


COMPUTES = (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.UPDATE)
ALL_KINDS = tuple(kind.value for kind in SpanKind)


class SlimSpan(NamedTuple):
    """Something that occupied a lane. Start and length are in units of the trace; the others are
    places in its lists. `launch` is the place of the span that launched this one, or -1."""

    lane: int
    start: int
    length: int
    name: int
    kind: int
    launch: int = -1

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass
class SlimTrace:
    title: str = ""
    machine: str = ""  # on which kind of machine the clock was read; "" in virtual time
    unit: float = 1e-6  # seconds
    lanes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    spans: list[SlimSpan] = field(default_factory=list)
    kinds: tuple[str, ...] = ALL_KINDS

    @property
    def end(self) -> int:
        return max((span.end for span in self.spans), default=0)

    @property
    def seconds(self) -> float:
        return self.end * self.unit

    def of(self, *kinds: str, lanes: Iterable[int] | None = None) -> list[SlimSpan]:
        """The spans of these kinds."""
        wanted = [self.kinds.index(kind) for kind in kinds]
        return [s for s in self.spans if s.kind in wanted and (lanes is None or s.lane in lanes)]

    def gpu_lanes(self) -> list[int]:
        """The lanes of GPUs; none in a trace of the CPU alone."""
        return [number for number, name in enumerate(self.lanes) if "GPU" in name]

    def as_json(self) -> str:
        spans = [list(span if span.launch >= 0 else span[:-1]) for span in self.spans]
        known = dict(title=self.title, machine=self.machine, unit=self.unit, lanes=self.lanes)
        known |= dict(kinds=self.kinds, names=self.names, spans=spans)
        return json.dumps(known, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "SlimTrace":
        known = json.loads(text)
        known["spans"] = [SlimSpan(*span) for span in known["spans"]]
        return cls(**known | dict(kinds=tuple(known["kinds"])))


def busy(spans: Iterable[tuple[float, float]], near: float = 0) -> list[tuple[float, float]]:
    """Where at least one of the spans (start, end) is, from left to right, without overlaps;
    neighbours that are no more than so far apart are one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= near:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def covered(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in busy(spans))
