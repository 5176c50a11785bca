"""The streams and events of a virtual GPU, under the names that torch.cuda's have, in torch.cpu.

Code that asks torch.get_device_module(tensor.device) for its streams runs on a real GPU and here.
Outside of virtual time those of torch.cpu do nothing.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import torch

from .clock import MAIN, VirtualClock
from .hardware import SECOND


class VirtualStreams:
    """The streams of one GPU. One of them is current."""

    def __init__(self, clock: VirtualClock):
        self.clock, self.made = clock, 0
        self.main = self.now = VirtualStream(self, MAIN)

    @property
    def current(self) -> str:
        return self.now.name

    def seconds(self) -> float:
        """The time at which the current stream has done everything that it was given."""
        return self.clock.now(self.current) / SECOND

    @contextmanager
    def use(self, stream: "VirtualStream | None") -> Iterator["VirtualStream"]:
        before, self.now = self.now, stream or self.now
        try:
            yield self.now
        finally:
            self.now = before

    def instead_of_torchs(self) -> AbstractContextManager:
        return patch.multiple(
            torch.cpu,
            Stream=lambda device=None, priority=0: VirtualStream(self),
            Event=lambda **settings: VirtualEvent(self),
            stream=self.use,
            current_stream=lambda device=None: self.now,
            synchronize=lambda device=None: self.clock.synchronize(),
        )


class VirtualStream:
    def __init__(self, streams: VirtualStreams, name: str = ""):
        streams.made += not name
        self.streams, self.clock = streams, streams.clock
        self.name = name or f"stream {streams.made}"

    def wait_stream(self, other: "VirtualStream"):
        self.clock.wait(self.name, self.clock.now(other.name))

    def wait_event(self, event: "VirtualEvent"):
        event.wait(self)

    def record_event(self, event: "VirtualEvent | None" = None) -> "VirtualEvent":
        event = event or VirtualEvent(self.streams)
        event.record(self)
        return event

    def synchronize(self):
        self.clock.synchronize(self.name)


class VirtualEvent:
    """A point of a stream."""

    def __init__(self, streams: VirtualStreams):
        self.streams, self.clock, self.time = streams, streams.clock, 0

    def record(self, stream: VirtualStream | None = None):
        self.time = self.clock.now((stream or self.streams.now).name)

    def wait(self, stream: VirtualStream | None = None):
        self.clock.wait((stream or self.streams.now).name, self.time)

    def synchronize(self):
        self.clock.wait_for(self.time)

    def query(self) -> bool:
        return self.time <= self.clock.host

    def elapsed_time(self, end: "VirtualEvent") -> float:
        return (end.time - self.time) / 1e6  # milliseconds
