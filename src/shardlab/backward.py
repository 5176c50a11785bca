"""When a backward begins, which gradient came, when it ends: once, for all techniques.

A technique that sends gradients listens to its parameters:

    class Mine(BackwardListener):
        def backward_begins(self): ...             # before the first gradient of a backward
        def gradient_arrives(self, parameter): ... # whenever parameter.grad is complete
        def backward_ends(self): ...               # after the last gradient

    mine.listen_to(parameters)

Autograd tells none of this by itself. It calls a hook for each parameter whose gradient is
complete; the first call is the begin, and that call asks autograd for another one at the end.

One listener owns a parameter: the newest. Each averages gradients, so two of them would average
twice. A listener that is gone, say because a cell ran again, is told nothing.

A technique that must act before the gradients of its parameters are made (stage 3 gathers them
first) uses two functions below: `when_gradient_comes` calls at the first gradient of some tensors,
`when_backward_ends` at the end. `torch_internals.current_backward` tells whether one is running.

A pipeline runs a backward for each microbatch, and makes gradients beside autograd too, so it says
itself when they are complete: `as_one_backward`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .torch_internals import at_end_of_backward

# parameter -> a weak reference to the listener that owns it. Beside the parameter and not in it:
# a copied or saved parameter has neither a hook nor an owner
owners = WeakTensorKeyDictionary()


class BackwardListener:
    """Is told of each backward that comes to its parameters. A subclass says what to do at the
    three moments; autograd records nothing of it."""

    listening = True  # False: gradients add up, and nothing is told
    _running: "ReferenceType | None" = None  # the backward that this listener is in
    taken_by: str | None = None  # the class of the newer listener that has a parameter of this one

    def listen_to(self, parameters: Iterable[nn.Parameter]):
        """Own these parameters from now on."""
        for parameter in parameters:
            if parameter not in owners:
                parameter.register_post_accumulate_grad_hook(_tell_the_owner)
            elif (former := owners[parameter]()) not in (None, self):
                former.taken_by = type(self).__name__
            owners[parameter] = ref(self)

    @property
    def in_backward(self) -> bool:
        return self._running is not None and self._running() is not None

    def backward_begins(self):
        """Before the first gradient of a backward."""

    def gradient_arrives(self, parameter: nn.Parameter):
        """Whenever parameter.grad is complete."""

    def backward_ends(self):
        """After the last gradient, before backward() returns."""

    def _end(self):
        self._running = None
        self.backward_ends()


@torch.no_grad()
def _tell_the_owner(parameter: nn.Parameter):
    """Autograd calls this with the parameter, not with its gradient."""
    listener = owners[parameter]()
    if listener is None or not listener.listening:
        return
    if not listener.in_backward:
        listener._running = when_backward_ends(listener._end)
        listener.backward_begins()
    listener.gradient_arrives(parameter)


def when_backward_ends(function: Callable[[], None]) -> ReferenceType:
    """Calls the function after the last gradient of the backward that is running. Returns a weak
    reference that is empty once this backward is over. Autograd alone holds what it refers to, and
    drops it too when a backward raises, so nobody has to tidy up after one that broke off."""

    @torch.no_grad()
    def end():
        function()

    at_end_of_backward(end)
    return ref(end)


def when_gradient_comes(tensors: Sequence[Tensor], function: Callable[[], None]):
    """Calls the function when a backward has the first gradient of one of these tensors, before it
    goes on from there."""
    if tensors:
        register_multi_grad_hook(tensors, lambda _: function(), mode="any")


@contextmanager
def as_one_backward(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """All backwards within, and gradients that autograd does not make, are one backward to those
    who listen to these parameters: they are told of it at the end, the last parameter first. Within
    no_sync() they are told nothing, as of any backward."""
    told: dict[BackwardListener, list[nn.Parameter]] = {}
    for parameter in parameters:
        listener = owners[parameter]() if parameter in owners else None
        if listener is not None and listener.listening:
            told.setdefault(listener, []).append(parameter)
    for listener in told:
        listener.listening = False
    try:
        yield
    finally:
        for listener in told:
            listener.listening = True
    with torch.no_grad():
        for listener, own in told.items():
            listener.backward_begins()
            for parameter in reversed(own):
                if parameter.grad is not None:
                    listener.gradient_arrives(parameter)
            listener.backward_ends()
