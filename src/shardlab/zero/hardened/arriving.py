"""Parameters on their way: step() returns while other ranks' chunks still travel.

    step       | update | gather 1 | gather 2 | gather 3 |
    forward             |          | layer 1  | layer 2  | layer 3  |

Whatever uses such a parameter first waits for it: a layer, state_dict(), a copy, a line of the
reader's. Until then the parameter has a class of its own, and PyTorch asks the class before any
function reads or writes the parameter. On a GPU the stream waits, not the host: so whoever uses
parameters on several streams lets these wait for the first one.

PyTorch does not ask where its functions are not called: a CUDA graph that is replayed, and code
that takes a pointer before. Call optimizer.arrive() there.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import cache

from torch import Tensor

from ...common.torch_internals import READ_NO_VALUES, tree_leaves


class UnderWay:
    """Messages that have begun, each a function that waits for it and does what comes then."""

    def __init__(self):
        self.waits: deque[Callable[[], object]] = deque()

    def arrive(self):
        while self.waits:
            self.waits.popleft()()


class Arrival:
    """Tensors of which none is used before `wait` has returned."""

    def __init__(self, tensors: Iterable[Tensor], wait: Callable[[], object]):
        self.wait, self.kinds = wait, [(tensor, type(tensor)) for tensor in tensors]
        for tensor, kind in self.kinds:
            tensor.arrival = self
            tensor.__class__ = still_coming(kind)

    def arrive(self):
        kinds, self.kinds = self.kinds, []
        for tensor, kind in kinds:
            tensor.__class__ = kind
            del tensor.arrival
        if kinds:
            self.wait()


class StillComing:
    """The class of a tensor on its way, beside the one that it had and will have again."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), named=None):
        named = named or {}
        if function in READ_NO_VALUES:
            return super().__torch_function__(function, types, args, named)
        for used in tree_leaves((args, named)):
            if isinstance(used, StillComing):
                used.arrival.arrive()
        return function(*args, **named)

    # PyTorch does not ask before these two
    def __deepcopy__(self, memo: dict):
        self.arrival.arrive()
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: int):
        self.arrival.arrive()
        return self.__reduce_ex__(protocol)


@cache
def still_coming(kind: type) -> type:
    return type(f"{kind.__name__}StillComing", (StillComing, kind), {})
