"""Tensors on their way. In stages 1 and 2 step() returns while others' parameters still travel;
in stage 3 backward() does, while the gradients of its last unit are averaged.

    step       | update | gather 1 | gather 2 | gather 3 |
    forward             |          | layer 1  | layer 2  | layer 3  |

    backward   | unit 2 | unit 1   | average 1       |
    step                           | update 2 |      | update 1 |

Whatever uses such a tensor first waits for it: a layer, state_dict(), a copy, a line of the
reader's. Until then the tensor has a class of its own, and PyTorch asks the class before any
function reads or writes the tensor. On a GPU the stream waits, not the host: so whoever uses
parameters on several streams lets these wait for the first one.

TorchScript and torch.func do not ask, so all tensors arrive before they begin. So they do before
os.fork: a child has none of the threads that carry messages, and would wait forever. Nothing asks,
and old or partial values are read, where zero.shard says it of an alias, where a tensor is made by
new_tensor(p), torch.Tensor(p) or nested_tensor([p]), and where code uses a pointer from before
step(), as a CUDA graph does.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from threading import RLock
from weakref import WeakKeyDictionary

from torch import Tensor

from ...common.torch_internals import READ_NO_VALUES, step_without_hooks, tree_leaves, watch_blind


class UnderWay:
    """Messages that have begun, each a function that waits for it and does what comes then."""

    def __init__(self):
        self.waits: deque[Callable[[], object]] = deque()

    def arrive(self):
        while self.waits:
            self.waits.popleft()()


class Arrival:
    """Tensors of which none is used before `wait` has returned, in any thread."""

    def __init__(self, tensors: Iterable[Tensor], wait: Callable[[], object]):
        self.wait, self.lock, self.kinds = wait, RLock(), [(one, type(one)) for one in tensors]
        for tensor, kind in self.kinds:
            tensor.arrival = self
            tensor.__class__ = still_coming(kind)
        coming[self] = None
        watch_blind_readers()

    def arrive(self):
        with self.lock:
            kinds, self.kinds = self.kinds, []
            try:
                if kinds:
                    self.wait()
            finally:
                coming.pop(self, None)
                for tensor, kind in kinds:
                    tensor.__class__ = kind
                    del tensor.arrival


coming: WeakKeyDictionary[Arrival, None] = WeakKeyDictionary()  # in the order of beginning


@cache
def watch_blind_readers():
    def arrive():
        for arrival in list(coming):
            arrival.arrive()

    watch_blind(arrive)
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(before=arrive)


def wait_for(tensor: Tensor):
    if arrival := getattr(tensor, "arrival", None):  # another thread may have waited meanwhile
        arrival.arrive()


def after_arrival(name: str) -> Callable:
    return lambda self, *args: wait_for(self) or getattr(self, name)(*args)


class ChunkOfSum:
    """Waits for a chunk of a sum of other tensors when it is called. The chunk has its memory from
    the beginning."""

    def __init__(self, chunk: Tensor, source: Tensor, wait: Callable[[], object]):
        self.chunk, self.source, self.wait = chunk, source, wait

    def __call__(self) -> list[Tensor]:
        self.wait()
        self.source = None
        return [self.chunk]


def as_gradients(
    tensors: list[Tensor], gradients: list[Tensor], wait: Callable[[], object]
) -> Arrival:
    """The tensors' .grad from now on. None of them is used before `wait` has returned."""

    def arrived():
        for hook in hooks:
            hook.remove()
        wait()

    for tensor, gradient in zip(tensors, gradients):
        tensor.grad = gradient
    arrival = Arrival([tensor.grad for tensor in tensors], arrived)
    # autograd adds to a gradient without asking it
    hooks = [tensor.register_hook(lambda _: arrival.arrive()) for tensor in tensors]
    return arrival


class StillComing:
    """The class of a tensor on its way, beside the one that it had and will have again."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), named=None):
        named = named or {}
        if function in READ_NO_VALUES or function == Tensor.grad.__set__:
            return super().__torch_function__(function, types, args, named)
        for used in tree_leaves((args, named)):
            if isinstance(used, StillComing):
                wait_for(used)
        return function(*args, **named)

    # PyTorch does not ask before these three
    __deepcopy__, __reduce_ex__ = after_arrival("__deepcopy__"), after_arrival("__reduce_ex__")
    as_subclass = after_arrival("as_subclass")


@cache
def still_coming(kind: type) -> type:
    return type(f"{kind.__name__}StillComing", (StillComing, kind), {})


def late_last(optimizer_cls: type) -> type:
    """The optimizer, whose step updates last what waits for its gradient. PyTorch's own update the
    parameters of their groups and no others. Another optimizer may do anything, so it stays as
    it is."""
    if not optimizer_cls.__module__.startswith("torch.optim."):
        return optimizer_cls

    class LateLast(optimizer_cls):
        def step(self):
            given = [(group, group["params"]) for group in self.param_groups]
            late = {p for _, parameters in given for p in parameters if is_coming(p.grad)}
            try:
                for now in [False, True] if late else [False]:
                    for group, parameters in given:
                        group["params"] = [p for p in parameters if (p in late) == now]
                    step_without_hooks(self, optimizer_cls)
            finally:
                for group, parameters in given:
                    group["params"] = parameters

    LateLast.__name__ = LateLast.__qualname__ = optimizer_cls.__name__
    return LateLast


def is_coming(tensor: Tensor | None) -> bool:
    return isinstance(tensor, StillComing)
