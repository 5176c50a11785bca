"""Stage 3, one unit ahead: while a unit computes, the next one's parameters and the last one's
gradients travel.

    fully_shard(model, units, prefetch=True)

    compute    | forward 1 | forward 2 | forward 3 |      a unit asks for the next as soon as its
    messages   | gather 2  | gather 3  |                  own parameters are there

The next unit is the one that came next in the forward before, and in backward the one that came
before this one in forward. Where forward ends, its last unit is asked for again, so that the loss
hides its message: backward begins with it. A wrong guess costs a message and nothing else: units
that were asked for in vain are freed. At most two units are whole, beside the root. The gradients
of a unit are waited for when the next unit's are ready, and at the end of backward.

NCCL's messages run beside the kernels of a GPU. gloo's collectives of this package are done when
their call returns: then nothing overlaps, and all is as right.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from ...common.backward import when_backward_ends
from ...common.torch_internals import current_backward


class OnItsWay(NamedTuple):
    """Gradients that are being averaged."""

    wait: Callable[[], object]
    add: Callable[[object], None]  # takes what wait() has returned


class Ahead:
    """The order of a module's units. One of them is asked for early."""

    def __init__(self, root: nn.Module):
        self.root = root
        self.called, self.before = [], []  # units, as this forward and the last one called them
        self.in_forward = False
        self.asked = None  # the unit whose parameters are on their way
        self.late: OnItsWay | None = None
        root.register_forward_pre_hook(self.forward_begins)
        root.register_forward_hook(self.forward_ends, always_call=True)

    def forward_begins(self, *_):
        if current_backward() is None:  # no checkpoint that computes again
            self.let_go()
            self.before, self.called, self.in_forward = self.called, [], True

    def forward_ends(self, root, inputs, output):
        if current_backward() is None:
            self.in_forward = False
            self.free_asked()
            if torch.is_grad_enabled() and self.called and output is not None:
                self.ask(self.called[-1])

    def entered(self, unit):
        """The unit's parameters are there, and it is about to compute."""
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

    def reduces(self, late: OnItsWay):
        """A unit's gradients have left. Those of the unit before are waited for: one unit's are
        whole at a time."""
        self.arrive()
        self.late = late
        when_backward_ends(self.arrive)  # a unit may end after the others of this backward

    def arrive(self):
        late, self.late = self.late, None
        if late is not None:
            late.add(late.wait())

    def free_asked(self):
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.free()

    def let_go(self):
        """Free what a backward that raised has left behind. Its gradients belong to no step."""
        late, self.late = self.late, None
        if late is not None:
            late.wait()
        self.free_asked()
