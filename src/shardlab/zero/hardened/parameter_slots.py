"""The attributes of a module of stage 3 that hold its parameters: what stands there while they are
gone, and what may not be done with it.

    slots = ParameterSlots(unit, sites, parameters, shards)
    slots.fill(gathered)        # while the unit computes
    slots.close()               # placeholders as attributes, shards as parameters()

Units of stage 3 use it, and it knows nothing of them. A placeholder has the parameter's shape and
dtype, and no values. Computing with it would give garbage, so it refuses, in a sentence that says
when the parameter is there. FSDP2 allows to write to it, as initialisation does: here the model is
initialised before fully_shard, or within `with unsharded(model, write=True)`.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ...common.optimizer_checks import replaced
from ...common.optimizer_checks import shards as known
from ...common.torch_internals import (
    READ_NO_VALUES,
    disable_modes,
    own_parameters,
    set_own_parameters,
    tree_leaves,
    version,
)
from ..core_stage3 import Site


class NotGathered(RuntimeError):
    """A parameter is used while it is not gathered."""


class ParameterSlots:
    """`sites` are (module, name, number) of each slot; numbers are those of the unit's shards.
    `content` is what the slots have."""

    def __init__(
        self,
        unit: nn.Module,
        sites: list[list[Site]],
        parameters: list[Tensor],
        shards: list[nn.Parameter],
    ):
        self.unit, self.shards = type(unit).__name__, shards
        self.sites = [(*site, number) for number, own in enumerate(sites) for site in own]
        paths = {module: path for path, module in unit.named_modules()}
        self.placeholders = [
            Placeholder(".".join(filter(None, (paths[module], name))), self.unit, like, shard)
            for ((module, name), *_), like, shard in zip(sites, parameters, shards)
        ]
        for module, *_ in self.sites:
            set_own_parameters(module, BesideAttributes(own_parameters(module)))
        self.close()

    def fill(self, tensors: Sequence[Tensor]):
        self.content = tensors
        for module, name, number in self.sites:
            setattr(module, name, tensors[number])

    def close(self):
        """Shards as parameters(), and placeholders as attributes."""
        for module, name, number in self.sites:
            own_parameters(module)[name] = self.shards[number]
        self.fill(self.placeholders)

    def check_closed(self):
        """Raise an error unless the slots have what close() has put there."""
        for module, name, number in self.sites:
            shard, attribute = own_parameters(module).get(name), vars(module).get(name)
            if shard is not self.shards[number] or attribute is not self.placeholders[number]:
                raise RuntimeError(
                    f"{type(module).__name__}.{name} was assigned after fully_shard, which has no"
                    " effect on the shards: tie and replace parameters before sharding, write to"
                    " them in place, and load a state without assign=True."
                )

    def check_unchanged(self):
        """A gathered parameter is given back, and a change of it would be lost."""
        for module, name, number in self.sites:
            if version(self.content[number]):
                raise RuntimeError(
                    f"{type(module).__name__}.{name} was changed in place while {self.unit}"
                    " computed, and its shards would not know: write to parameters between steps,"
                    " outside of forward."
                )


class BesideAttributes(dict):
    """A module's parameters by name, of which the module's `setattr` does not find the shards: the
    attribute of that name is another tensor, a placeholder or the gathered parameter."""

    def __contains__(self, name) -> bool:
        return super().__contains__(name) and self[name] not in known


class Gone(Tensor):
    """A parameter without values: `where` says how its values are had."""

    may_be_set = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in READ_NO_VALUES or function == cls.may_be_set:
            return super().__torch_function__(function, types, args, kwargs or {})
        here = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise NotGathered(f"{operation_of(function)} of {here.where()}")


class Placeholder(Gone):
    """A parameter that is gone. `path` is its name in the unit."""

    @staticmethod
    def __new__(cls, path: str, unit: str, like: Tensor, shard: nn.Parameter):
        with disable_modes():  # a fake tensor cannot be anything else besides
            nothing = torch.empty((), dtype=like.dtype, device="meta").expand(like.shape)
            self = nothing.requires_grad_(shard.requires_grad).as_subclass(cls)
        self.path, self.unit = path, unit
        return self

    def where(self) -> str:
        return (
            f"{self.path} {list(self.shape)}: stage 3 gathers this parameter only while {self.unit}"
            f" computes. Call the {self.unit} itself, read the parameter within `with"
            " unsharded(model)`, or write to it within `with unsharded(model, write=True)`."
        )

    def __repr__(self):
        return f"Placeholder(shape={list(self.shape)}, dtype={self.dtype})"

    def __reduce_ex__(self, protocol):
        raise TypeError(NO_COPY.format(self.unit))

    __deepcopy__ = __reduce_ex__


NO_COPY = (
    "{} is sharded, and neither copied nor pickled: copy the model before fully_shard, and shard"
    " the copy as well; save with shardlab.saving, or state_dict() within `with unsharded(model)`."
)


def operation_of(function) -> str:
    """A function's name, or that of the attribute that it reads or sets."""
    name = getattr(function, "__name__", str(function))
    return function.__self__.__name__ if name in ("__get__", "__set__") else name


class Dissolved(Gone, nn.Parameter):
    """A parameter as it was before fully_shard, which a list or a closure has kept. An optimizer
    that has it is refused when it steps."""

    may_be_set = Tensor.grad.__set__

    def where(self) -> str:
        return (
            "a parameter that was kept from before fully_shard: the model has shards instead. Read"
            " the parameter from its module, while its unit computes or within `with"
            " unsharded(model)`, or take model.parameters() anew."
        )

    def __repr__(self):
        return "Dissolved()"


def dissolve(parameters: Iterable[nn.Parameter]):
    """Give their memory back, and let nobody use them."""
    for parameter in parameters:
        replaced([parameter], by="fully_shard")
        parameter.grad = None
        if type(parameter) is nn.Parameter:
            parameter.data = parameter.data.new_empty(0)
            parameter.__class__ = Dissolved
