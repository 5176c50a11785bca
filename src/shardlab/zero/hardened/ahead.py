"""Stage 3, one unit ahead: while a unit computes, the next one's parameters and the last one's
gradients travel.

    fully_shard(model, units, prefetch=True)

    compute    | forward 1 | forward 2 | forward 3 |      a unit asks for the next as soon as its
    messages   | gather 2  | gather 3  |                  own parameters are there

The next unit is the one that came next in the forward before, and in backward the one that came
before this one in forward. A wrong guess costs a message and nothing else: units that were asked
for in vain are freed. At most two units are whole, beside the root. The gradients of a unit are
waited for when the next unit's are ready. The last unit's become the shards' .grad while they
travel, and whoever uses them waits: see arriving.py.

Parameters are asked for in a stream of their own. Backward's first unit is asked for when the loss
has a gradient and has let go of its memory; the host is far ahead then, so the message runs under
the loss. It must not run in memory that the loss still uses: whole parameters have that of the
stream, about two units, which PyTorch's allocator lends to no kernel of the model, as FSDP2's. gloo
overlaps nothing: its collectives are done when their call returns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ...common.backward import when_backward_ends
from ...common.torch_internals import current_backward
from ...recompute.host_copies import streams_of
from .arriving import UnderWay


class Ahead:
    """The order of a model's units. One of them is asked for early. `forward_begins` and
    `forward_ends` are hooks of the model."""

    def __init__(self):
        self.root: nn.Module | None = None  # of the model, once its forward has begun
        self.called, self.before = [], []  # units, as this forward and the last one called them
        self.in_forward = False
        self.asked = None  # the unit whose parameters are on their way
        # a flat tensor whose gradients are being averaged, and a function that waits for the mean
        self.late: tuple[object, Callable[[], list[Tensor]]] | None = None
        self.last = UnderWay()  # gradients of a backward that is over
        self.stream = self.used = None

    def forward_begins(self, root: nn.Module, _):
        self.root = root
        if current_backward() is None:  # no checkpoint that recomputes
            self.let_go()
            self.before, self.called, self.in_forward = self.called, [], True

    def forward_ends(self, *_):
        if current_backward() is None:
            self.in_forward = False
            self.free_asked()

    def entered(self, unit):
        """The unit's parameters are there, and it is about to compute."""
        self.last.arrive()
        if unit is self.asked:
            self.asked = None
        following = None if unit.module is self.root else self.after(unit)
        if following is not None:
            self.ask(following)

    def ask(self, unit):
        """The unit's parameters leave for this rank, unless they are there."""
        if not unit.whole:
            self.free_asked()
            for flat in unit.flats:
                flat.ask()
            self.asked = unit

    @contextmanager
    def beside(self, device: torch.device) -> Iterator[None]:
        """A stream for asking, which waits until whatever used its free memory has ended."""
        streams = streams_of(device)
        if streams:
            self.stream = self.stream or streams.Stream(device, priority=-1)
            if self.used and current_backward() is not None:
                self.stream.wait_event(self.used)
            else:  # also for an update of the shards
                self.stream.wait_stream(streams.current_stream(device))
        with streams.stream(self.stream) if streams else nullcontext():
            yield

    def uses(self, device: torch.device):
        """Until now gathered memory is in use that may be free."""
        if streams := streams_of(device):
            self.used = streams.current_stream(device).record_event()

    def after(self, unit):
        """The unit that is expected next, or None."""
        if current_backward() is not None:
            when_backward_ends(self.free_asked)
            places = [place for place, one in enumerate(self.called) if one is unit]
            return self.called[places[-1] - 1] if places and places[-1] else None
        if not self.in_forward:
            return None
        place = len(self.called)
        self.called.append(unit)
        expected = self.before[place : place + 2]
        return expected[1] if len(expected) == 2 and expected[0] is unit else None

    def reduces(self, flat, mean: Callable[[], list[Tensor]]):
        """A unit's gradients have left. Those of the unit before are waited for: one unit's are
        whole at a time."""
        self.arrive()
        self.late = flat, mean
        when_backward_ends(self.backward_ends)  # a unit may end after the others

    def arrive(self):
        late, self.late = self.late, None
        if late is not None:
            flat, mean = late
            flat.take_mean(mean())

    def backward_ends(self):
        if self.late is not None:
            flat, mean = self.late
            if arrival := flat.expect(mean):
                self.late = None
                self.last.waits.append(arrival.arrive)
        self.arrive()

    def free_asked(self):
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.free()

    def let_go(self):
        """Free what a backward that raised has left behind."""
        late, self.late = self.late, None
        if late is not None:
            late[1]()
        self.last.arrive()
        self.free_asked()
