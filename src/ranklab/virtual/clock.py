"""The clock of one virtual rank: a host that launches, and streams that work in order.

Every time is a whole number of nanoseconds since the clock began. A stream starts what it is given
when three things have come: the launch, the end of what it was given before, and whatever it was
told to wait for.

    clock = VirtualClock()
    clock.launch(5_000)                                 # the host pays
    end = clock.work("compute", "mm", 80_000)           # a kernel on a stream
    clock.wait("compute", other_end, MESSAGE)           # a stream waits for a point of another
    clock.synchronize("compute")                        # the host waits
"""

from collections import defaultdict
from collections.abc import Hashable
from typing import NamedTuple

MAIN = "compute"

# why a stream has nothing to do
MESSAGE, OTHER_RANKS, STREAM, HOST = "message", "other ranks", "other stream", "host"
LATE_BATCH = "data"
SLOWED = "slowed"


class StreamSpan(NamedTuple):
    """Something that occupied a stream; or nothing did, and the name is the reason."""

    stream: Hashable
    name: str
    phase: str  # forward, backward, update
    start: int
    end: int

    def earlier(self, by: int) -> "StreamSpan":
        return self._replace(start=self.start - by, end=self.end - by)


class VirtualClock:
    def __init__(self):
        self.host = 0
        # (share, start, end) of what slows MAIN and may end after what MAIN has been given
        self.slowing: list[tuple[float, int, int]] = []
        self.free: dict[Hashable, int] = defaultdict(int)  # stream -> when its last work ends
        self.spans: list[StreamSpan] = []
        self.gaps: list[StreamSpan] = []
        self.launches = self.waits = 0  # of the host

    def launch(self, nanoseconds: int):
        self.host += nanoseconds
        self.launches += 1

    def now(self, stream: Hashable) -> int:
        """The earliest start of what is put into the stream now."""
        return max(self.host, self.free[stream])

    def work(self, stream: Hashable, name: str, nanoseconds: int, phase: str = "") -> int:
        """Occupy the stream; returns the end."""
        self._idle_until(stream, self.host, HOST)
        start = self.free[stream]
        if stream == MAIN and self.slowing:
            self.slowing = [one for one in self.slowing if one[-1] > start]
            own = start, start + nanoseconds
            nanoseconds += round(sum(share * shared(*own, *at) for share, *at in self.slowing))
        end = self.free[stream] = start + nanoseconds
        self.spans.append(StreamSpan(stream, name, phase, start, end))
        return end

    def slow(self, share: float, start: int, end: int, phase: str = ""):
        """A message or a kernel of another stream, of which the end is known now, slows the kernels
        that MAIN was given before, and those that come: by this share of the time that both run."""
        if not share:
            return
        hidden = 0
        for span in reversed(self.spans):
            if span.stream == MAIN:
                if span.end <= start:
                    break
                hidden += shared(span.start, span.end, start, end)
        if longer := round(share * hidden):
            self.work(MAIN, SLOWED, longer, phase)
        self.slowing.append((share, start, end))

    def wait(self, stream: Hashable, until: int, reason: str = STREAM, others: int = 0):
        """Let the stream start nothing new before `until`. Before `others` it waits for other
        ranks."""
        self._idle_until(stream, min(others, until), OTHER_RANKS)
        self._idle_until(stream, until, reason)

    def synchronize(self, *streams: Hashable):
        """The host waits for these streams, or for all."""
        self.wait_for(max((self.free[stream] for stream in streams or list(self.free)), default=0))

    def wait_for(self, time: int):
        """The host waits."""
        self.waits += 1
        self.host = max(self.host, time)

    def wait_for_data(self, time: int):
        """The host waits for a batch. What the GPU has been given goes on meanwhile."""
        self._idle_until(MAIN, self.host, HOST)
        self.host = max(self.host, time)
        self._idle_until(MAIN, self.host, LATE_BATCH)

    def end(self) -> int:
        return max(self.host, *self.free.values(), 0)

    def meet(self, time: int) -> int:
        """Host and streams go on together, at this time."""
        self._idle_until(MAIN, max(self.free.values(), default=0), MESSAGE)
        self._idle_until(MAIN, self.host, HOST)
        self._idle_until(MAIN, time, OTHER_RANKS)
        self.host = time
        self.free = defaultdict(int, dict.fromkeys(self.free, time))
        return time

    def _idle_until(self, stream: Hashable, until: int, reason: str):
        if until > self.free[stream]:
            self.gaps.append(StreamSpan(stream, reason, "", self.free[stream], until))
            self.free[stream] = until


def shared(start: int, end: int, other_start: int, other_end: int) -> int:
    """The time that both spans have."""
    return max(0, min(end, other_end) - max(start, other_start))
