"""The operators that run within a context, for tests that count them."""

from shardlab.common.torch_internals import TorchDispatchMode


class Operators(TorchDispatchMode):
    """`seen`: each operator that has run, and the number of elements of its result."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        self.seen.append((operator, getattr(result, "numel", int)()))
        return result

    def names(self) -> list[str]:
        return [operator.overloadpacket.__name__ for operator, _ in self.seen]
