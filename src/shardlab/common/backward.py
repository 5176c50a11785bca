"""The beginning of a backward, each gradient, the end: detected in one place for all techniques.

A technique that sends gradients listens to its parameters, by mine.listen_to(parameters):

    class Mine(BackwardListener):
        def backward_begins(self): ...             # before the first gradient of a backward
        def gradient_arrives(self, parameter): ... # whenever parameter.grad is complete
        def backward_ends(self): ...               # after the last gradient

Autograd does not report the beginning or the end. It calls a hook for each parameter whose gradient
is complete; the first call marks the beginning and asks autograd for a call at the end.

One listener owns a parameter: the newest. Each averages gradients, so two of them would average
twice. A listener that no longer exists, say because a cell ran again, is not called.
Stage 3 uses `when_gradient_comes` and `when_backward_ends`, a pipeline `as_one_backward`.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .torch_internals import (
    at_end_of_backward,
    current_backward,
    put_hook_last,
    when_outer_backward_goes_on,
)

# parameter -> a weak reference to its listener, outside of it: a copy has neither hook nor owner
owners = WeakTensorKeyDictionary()
handles = WeakTensorKeyDictionary()  # parameter -> of its hook, for all its owners


def averaged(module: nn.Module) -> set[nn.Parameter]:
    """The parameters whose gradients a technique averages, or PyTorch's DistributedDataParallel,
    which no parameter knows: it would leave out whatever takes their place."""
    theirs = (one for one in gc.get_objects() if type(one) is nn.parallel.DistributedDataParallel)
    known = {p for replicas in theirs for p in replicas.parameters()}
    known |= {p for p, owner in owners.items() if owner() is not None}
    return known.intersection(module.parameters())


class NotOurGradient(RuntimeError):
    """A gradient that a technique cannot average: one sentence."""


class NoSecondGradient(RuntimeError):
    """Gradients of gradients cannot pass something: one sentence."""


class BackwardListener:
    """Is called in each backward that reaches its parameters. A subclass defines the three methods;
    autograd records none of their operations."""

    listening = True  # False: gradients add up, and no method is called
    _running: "ReferenceType | None" = None  # the backward that this listener is in
    taken_by: str | None = None  # the class of the newer listener that has a parameter of this one

    def listen_to(self, parameters: Iterable[nn.Parameter]):
        """Own these parameters from now on."""
        for parameter in parameters:
            if parameter not in owners:
                handles[parameter] = parameter.register_post_accumulate_grad_hook(_tell_the_owner)
            elif (former := owners[parameter]()) not in (None, self):
                former.taken_by = type(self).__name__
            owners[parameter] = ref(self)

    def listen_last(self, parameters: Iterable[nn.Parameter]):
        """Hooks that others have registered since then see a gradient, and may change it, before
        this listener does. A backward that broke off is over now."""
        if current_backward() is None:
            self._running = None
        for parameter in parameters:
            if parameter in owners and owners[parameter]() is self:
                put_hook_last(parameter, handles[parameter])

    def check_hooks(self):
        """Raise an error unless the listener still listens to all that it should."""

    @contextmanager
    def no_sync(self):
        """Backward within it adds up gradients and sends nothing: all microbatches but the last."""
        before, self.listening = self.listening, False
        try:
            yield
        finally:
            self.listening = before

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
    check_gradient(parameter, type(listener).__name__)
    if not listener.in_backward:
        listener._running = when_all_of_backward_ends(listener._end)
        listener.backward_begins()
    listener.gradient_arrives(parameter)


def check_dense(gradient: Tensor):
    if gradient.layout is not torch.strided:
        raise NotOurGradient(
            f"a gradient is {gradient.layout}: only dense ones are averaged; build embeddings with"
            " sparse=False."
        )


def check_gradient(parameter: nn.Parameter, name: str):
    """Raise NotOurGradient for a gradient that is gone, is sparse or has a graph."""
    shape = list(parameter.shape)
    if parameter.grad is None:
        raise NotOurGradient(
            f"a hook took away the gradient of a parameter of shape {shape} before {name} averaged"
            " it, as an optimizer that steps within backward does: step after backward, or take"
            " ZeRO stage 3, where hooks of parameters find mean gradients."
        )
    check_dense(parameter.grad)
    if parameter.grad.requires_grad:
        raise NotOurGradient(
            f"backward(create_graph=True): {name} averages the gradient of a parameter of shape"
            f" {shape}, but not the graph behind it. For a penalty on gradients take"
            " torch.autograd.grad(loss, parameters, create_graph=True), and one backward."
        )


def when_backward_ends(function: Callable[[], None]) -> ReferenceType:
    """Calls the function after the last gradient of the running backward. Returns a weak reference
    that is empty once this backward is over. Autograd alone holds the object, and drops it when a
    backward raises, so an interrupted backward leaves nothing behind."""

    @torch.no_grad()
    def end():
        function()

    at_end_of_backward(end)
    return ref(end)


class AllOfBackward:
    """The end of the running backward; of one that runs inside of another, such as a reentrant
    checkpoint's, the end of the other."""

    def __init__(self, function: Callable[[], None]):
        self.function = function

    @torch.no_grad()
    def __call__(self):
        if not when_outer_backward_goes_on(partial(at_end_of_backward, self)):
            self.function()


def when_all_of_backward_ends(function: Callable[[], None]) -> ReferenceType:
    """Call back once no gradient can come any more, otherwise as when_backward_ends. Ranks may take
    different ways: on one the first gradient comes inside a checkpoint, on another before."""
    end = AllOfBackward(function)
    at_end_of_backward(end)
    return ref(end)


def when_gradient_comes(tensors: Sequence[Tensor], function: Callable[[], None]):
    """Calls the function when a backward has made the first gradient of one of these tensors,
    before the backward goes on."""
    if tensors:
        register_multi_grad_hook(tensors, lambda _: function(), mode="any")


@contextmanager
def as_one_backward(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """All backwards within, and gradients made without autograd, are one backward for the listeners
    of these parameters. The listeners are called at the end, the last parameter first, and within
    no_sync() or no_grad() not at all."""
    told: dict[BackwardListener, list[nn.Parameter]] = {}
    for parameter in parameters if torch.is_grad_enabled() else ():
        listener = owners[parameter]() if parameter in owners else None
        if listener is not None and listener.listening:
            told.setdefault(listener, []).append(parameter)
    for listener in told:
        listener.check_hooks()
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
                    check_gradient(parameter, type(listener).__name__)
                    listener.gradient_arrives(parameter)
            listener.backward_ends()
