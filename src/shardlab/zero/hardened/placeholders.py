"""The object under a parameter's name in a module of stage 3 while the parameter is gone.

A placeholder has the parameter's name, shape and dtype, and no values. Computing with it would give
garbage, so it refuses, in a sentence that says when the parameter is available. Writing to it, as
initialisation does, is allowed, as in FSDP2.

    nn.init.zeros_(model.head.weight); model.apply(initialise); block.reset_parameters()

All ranks call these. The parameter is gathered, written and sharded again; rank 0's values count.
"""

import torch
from torch import Tensor, nn

from ...common.torch_internals import disable_modes, tree_leaves, tree_map


class NotGathered(RuntimeError):
    """A parameter is used while it is not gathered."""


class Placeholder(Tensor):
    @staticmethod
    def __new__(cls, unit, number: int, shape: torch.Size, dtype: torch.dtype, trained: bool):
        with disable_modes():  # a fake tensor cannot be anything else besides
            nothing = torch.empty((), dtype=dtype, device="meta").expand(shape)
            self = (nothing.requires_grad_() if trained else nothing).as_subclass(cls)
        self.unit, self.number = unit, number
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in READS_NO_VALUE:
            return super().__torch_function__(function, types, args, kwargs)
        if function == Tensor.data.__get__:  # `weight.data.normal_()`
            return args[0]
        here = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)]
        first = args[0] if args else (kwargs or {}).get("tensor")
        if here and writes(function) and all(leaf is first for leaf in here):
            return here[0].written(function, args, kwargs or {})
        raise here[0].refusal(function)

    def written(self, function, args, kwargs):
        """The placeholder itself, after the function has changed the whole parameter and its shards
        have the new values."""
        from .full_parameters import unsharded  # which needs units, which have placeholders

        module, name = self.site
        with torch.no_grad(), unsharded(self.unit.module, recurse=False, write=True):
            whole = getattr(module, name)
            args, kwargs = tree_map(lambda leaf: whole if leaf is self else leaf, (args, kwargs))
            function(*args, **kwargs)
        return self

    @property
    def site(self):
        return next((place, name) for place, name, n in self.unit.sites if n == self.number)

    def refusal(self, function) -> NotGathered:
        module, name = self.site
        path = next(p for p, m in self.unit.module.named_modules() if m is module)
        unit = type(self.unit.module).__name__
        return NotGathered(
            f"{getattr(function, '__name__', function)} of {path}{'.' * bool(path)}{name}"
            f" {list(self.shape)}: stage 3 gathers this parameter only while {unit} computes. Call"
            f" the {unit} itself, name another method of it, gather_in({unit}, 'method'), or read"
            " the parameter within `with unsharded(model)`."
        )

    def __repr__(self):
        return f"Placeholder(shape={list(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo):
        """A copy that belongs to the copy of its unit."""
        from copy import deepcopy

        twin = memo[id(self)] = Placeholder(
            None, self.number, self.shape, self.dtype, self.requires_grad
        )
        twin.unit = deepcopy(self.unit, memo)
        return twin

    def __reduce_ex__(self, protocol):
        return self.unit.__reduce__()


def writes(function) -> bool:
    """Whether it is an operation in place: zero_, nn.init.normal_, `*=`, `[...] =`, `.data =`."""
    name = getattr(function, "__name__", "")
    if function == Tensor.data.__set__:
        return True
    return (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE


IN_PLACE = {
    f"__{name}__"
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "setitem")
}
READS_NO_VALUE = {
    *(
        getattr(Tensor, name).__get__
        for name in (
            "shape",
            "dtype",
            "device",
            "layout",
            "ndim",
            "requires_grad",
            "is_leaf",
            "grad",
            "grad_fn",
            "nbytes",
            "itemsize",
            "is_meta",
            "is_cpu",
            "is_cuda",
            "is_sparse",
            "is_quantized",
            "is_nested",
            "names",
        )
        if hasattr(Tensor, name)
    ),
    *(
        getattr(Tensor, name)
        for name in (
            "size",
            "stride",
            "dim",
            "ndimension",
            "numel",
            "nelement",
            "element_size",
            "is_floating_point",
            "is_complex",
            "is_signed",
            "is_contiguous",
            "__len__",
            "__hash__",
            "get_device",
        )
    ),
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}


class Dissolved(nn.Parameter):
    """A parameter as it was before fully_shard, which a list or a closure has kept. It has no
    values any more; an optimizer that has it is refused when it steps."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in READS_NO_VALUE or function == Tensor.grad.__set__:
            return super().__torch_function__(function, types, args, kwargs or {})
        raise NotGathered(
            f"{getattr(function, '__name__', function)} of a parameter that was kept from before"
            " fully_shard: the model has shards instead. Read the parameter from its module, while"
            " its unit computes or within `with unsharded(model)`, or take model.parameters() anew."
        )

    def __repr__(self):
        return "Dissolved()"


def dissolve(parameters: list[nn.Parameter]):
    """Give their memory back, and let nobody use them."""
    for parameter in parameters:
        parameter.grad = None
        if type(parameter) is nn.Parameter:
            parameter.data = parameter.data.new_empty(0)
            parameter.__class__ = Dissolved


def of(unit) -> list[Placeholder]:
    slots = [
        (shape, flat.full.dtype, shard.requires_grad)
        for flat in unit.flats
        for shape, shard in zip(flat.shapes, flat.shards)
    ]
    return [Placeholder(unit, number, *slot) for number, slot in enumerate(slots)]
