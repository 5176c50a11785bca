"""A step in virtual time: where it went, and a trace of it.

print(step)
step.save_trace("step.json")        # to open at https://ui.perfetto.dev
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from .clock import HOST, LATE_BATCH, MAIN, MESSAGE, OTHER_RANKS, STREAM, StreamSpan
from .hardware import SECOND


@dataclass
class VirtualStep:
    """One step of a rank. Spans are what occupied a stream, gaps what did not, by reason; times are
    nanoseconds since the step began."""

    end: int = 0
    spans: list[StreamSpan] = field(default_factory=list)
    gaps: list[StreamSpan] = field(default_factory=list)
    launches: int = 0
    host_waits: int = 0  # for the GPU
    peak_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.end / SECOND

    @property
    def computing_seconds(self) -> float:
        """The stream on which the model computes was occupied."""
        return length(span for span in self.spans if span.stream == MAIN)

    @property
    def exposed_seconds(self) -> float:
        """It waited for a message under way."""
        return self.idle_seconds(MESSAGE)

    def idle_seconds(self, *reasons: str) -> float:
        """It had nothing to do, for one of these reasons or for any."""
        own = (gap for gap in self.gaps if gap.stream == MAIN)
        return length(gap for gap in own if not reasons or gap.name in reasons)

    def rows(self) -> list[tuple[str, float]]:
        return [
            ("computing", self.computing_seconds),
            ("waiting for a message", self.exposed_seconds),
            ("waiting for other ranks", self.idle_seconds(OTHER_RANKS)),
            ("waiting for the host's launches", self.idle_seconds(HOST)),
            ("waiting for data", self.idle_seconds(LATE_BATCH)),
            ("waiting for another stream", self.idle_seconds(STREAM)),
            ("the step, in virtual time", self.seconds),
        ]

    def __str__(self):
        lines = [
            f"{name:32}{1e3 * seconds:10.3f} ms{100 * seconds / (self.seconds or 1):7.1f}%"
            for name, seconds in self.rows()
            if seconds
        ]
        return "\n".join([*lines, f"{self.launches} launches, {self.host_waits} waits of the host"])

    def trace(self) -> list[dict]:
        """Events of the format of Chrome's traces, which Perfetto opens too: microseconds."""
        lanes = {MAIN: 0}
        for lane in map(lane_of, self.spans):
            lanes.setdefault(lane, len(lanes))
        names = [
            dict(ph="M", name="thread_name", pid=0, tid=tid, args=dict(name=lane))
            for lane, tid in lanes.items()
        ]
        return names + [
            dict(
                ph="X",
                name=span.name,
                cat=span.phase,
                pid=0,
                tid=lanes[lane_of(span)],
                ts=span.start / 1000,
                dur=(span.end - span.start) / 1000,
            )
            for span in self.spans
        ]

    def save_trace(self, path: str | Path):
        Path(path).write_text(json.dumps(self.trace()), encoding="utf-8")


def lane_of(span: StreamSpan) -> str:
    return span.stream if isinstance(span.stream, str) else "messages of group " + span.stream[0]


def length(spans) -> float:
    return sum(span.end - span.start for span in spans) / SECOND
