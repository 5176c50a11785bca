"""A saved run in other shards: which rank holds which of its elements now. checkpoint.py writes and
reads the files.

A rank holds adjacent elements of a parameter: all of them in a plain model, those that are in its
chunk of a bucket or of a unit in ZeRO, its own experts where ranks divide these. Optimizer states
have an element for each of them, or are numbers such as a step counter.

A save lists for each file which elements of which parameter are in it. An element is therefore
found by its parameter's name and its place in the parameter laid flat, for any number of ranks, any
stages, units and buckets.
"""

from collections.abc import Iterator
from copy import deepcopy
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..experts.core import Experts
from ..zero.hardened.flat import own_range, places_in
from ..zero.hardened.stage3 import sharded_units
from .durable import Damaged
from .parts import ElementRange, plain_names

VALUE = "value"  # the key of the parameters; the other keys are their states


class HeldElements(NamedTuple):
    """Elements `places` of the parameter of this name and shape in the plain model, laid flat. They
    begin at element `begin` of the tensor. `number` is its place in the optimizer and `group` its
    parameter group, if it has any."""

    name: str
    shape: list[int]
    places: range
    tensor: Tensor
    begin: int = 0
    number: int | None = None
    group: int | None = None


def holds_of(model: nn.Module, optimizer) -> Iterator[HeldElements]:
    """All that this rank holds: every parameter, if only with no elements. ValueError if the
    optimizer has other parameters."""
    if any(module.sharded_unit.exposed for module in sharded_units(model)):
        raise ValueError(
            "the model is unsharded: save and resume outside of `with unsharded(...)`."
        )
    names = {id(p): name for name, p in model.named_parameters()}  # a tied one's is its first
    buckets = getattr(optimizer, "buckets", [])
    pairs = getattr(optimizer.inner if buckets else optimizer, "pairs", [])
    copied = {id(copy): id(tensor) for tensor, copy in pairs}
    updated = [
        (copied.get(id(p), id(p)), group)
        for group, each in enumerate(optimizer.param_groups)
        for p in each["params"]
    ]
    numbers = {tensor: (number, group) for number, (tensor, group) in enumerate(updated)}
    known = {*names, *(id(shard) for bucket in buckets for shard in bucket.shards)}
    if not known.issuperset([*numbers, *(id(p) for bucket in buckets for p in bucket.parameters)]):
        raise ValueError(
            "the optimizer has parameters that are not the model's: give the model that it was made"
            " for."
        )
    plain, whole = plain_names(names.values()), dict.fromkeys(model.parameters())
    divided = {
        f"{path}.{name}": module.axes.divide
        for path, module in model.named_modules()
        if hasattr(module, "axes") and isinstance(module, Experts)
        for name in module.NAMES
    }

    def hold(p, shape, places, tensor, begin=0):
        name, shape = names[id(p)], list(shape)
        if ranks := divided.get(name):  # this rank's experts are adjacent among all
            ahead, shape = ranks.rank * prod(shape), [shape[0] * ranks.size, *shape[1:]]
            places = range(places.start + ahead, places.stop + ahead)
        return HeldElements(plain(name), shape, places, tensor, begin, *numbers.get(id(tensor), ()))

    for bucket in buckets:  # stages 1 and 2
        start = own_range(bucket.flat.numel(), bucket.group).start
        sizes = [p.numel() for p in bucket.parameters]
        for shard in bucket.shards:
            begin, here = 0, places_in(range(start, start + len(shard)), sizes)
            for p, places in zip(bucket.parameters, here):
                if places or shard is bucket.shards[0]:
                    yield hold(p, p.shape, places, shard, begin)
                begin += len(places)
                whole.pop(p, None)
            start += len(shard)
    for unit in (module.sharded_unit for module in sharded_units(model)):  # stage 3
        for flat in unit.flats:
            for shard, shape, places in zip(flat.shards, flat.shapes, flat.places):
                yield hold(shard, shape, places, shard)
                whole.pop(shard)
    for p in whole:  # on all ranks
        yield hold(p, p.shape, range(p.numel()), p)


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers, under the names that the plain model has."""
    plain = plain_names(name for name, _ in model.named_parameters())
    return {
        plain(name): value
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    }


# --- to the files ---------------------------------------------------------------------------------


def own_parts(
    held: list[HeldElements], states: dict, written: list[ElementRange]
) -> list[dict[str, Tensor]]:
    """Copies of the data that this rank writes: of these places the values, and of each state that
    has an element for each of them."""
    parts, layout = [{} for _ in written], Layout([written])
    for one in held:
        tensors = {VALUE: one.tensor, **states.get(one.number, {})}
        for _, chunk, _, here in layout.sources(one):
            parts[chunk] = {
                key: tensor.detach().reshape(-1)[here].to("cpu", copy=True)
                for key, tensor in tensors.items()
                if is_chunk(key, tensor, one.tensor)
            }
    return parts


def state_types(held: list[HeldElements], states: dict) -> dict[str, dict]:
    """The states of each parameter: an empty tensor of the same type for a state that has an
    element for each of its elements, the value itself for others, such as a step counter."""
    return {one.name: types_of(one, states.get(one.number, {})) for one in held}


def types_of(one: HeldElements, states: dict) -> dict:
    found = {}
    for key, state in states.items():
        chunk = is_chunk(key, state, one.tensor)
        if not chunk and one.tensor.numel() != prod(one.shape) and is_large(state):
            raise ValueError(
                f"the optimizer's state {key!r} does not go with its parameters element by element,"
                " so shards of it cannot be saved: take an optimizer such as Adam or SGD."
            )
        found[key] = torch.empty(0, dtype=state.dtype) if chunk else state
    return found


def is_large(state) -> bool:
    """Whether a state holds several numbers, such as the directions that LBFGS remembers."""
    if isinstance(state, Tensor):
        return state.numel() > 1
    return isinstance(state, list | tuple) and any(isinstance(each, Tensor) for each in state)


def is_chunk(key: str, state, tensor: Tensor) -> bool:
    return (
        isinstance(state, Tensor)
        and state.shape == tensor.shape
        and (state.dim() > 0 or key != "step")
    )


# --- and back -------------------------------------------------------------------------------------


class Layout:
    """The places of each parameter in the files of a save, of which `written` is the manifest's
    list for each."""

    def __init__(self, written: list[list[ElementRange]]):
        self.chunks: dict[str, list[tuple[int, int, range]]] = {}
        for file, places in enumerate(written):
            for chunk, (name, start, stop) in enumerate(places):
                self.chunks.setdefault(name, []).append((file, chunk, range(start, stop)))

    def sources(self, one: HeldElements) -> Iterator[tuple[int, int, slice, slice]]:
        """(file, number of a chunk in it, elements of the chunk, elements of the tensor) for all
        that is held here."""
        for file, chunk, places in self.chunks.get(one.name, ()):
            if both := common(one.places, places):
                there = slice(both.start - places.start, both.stop - places.start)
                ahead = one.begin - one.places.start
                yield file, chunk, there, slice(both.start + ahead, both.stop + ahead)

    def restored(
        self, held: list[HeldElements], files: dict[int, list], kinds: dict[str, dict]
    ) -> Iterator[tuple[Tensor, int | None, Tensor, dict]]:
        """(tensor, its place in the optimizer, its values, its states). `files` has the result of
        own_parts on each rank, `kinds` the result of state_types."""
        together: dict[int, list[HeldElements]] = {}
        for one in held:
            together.setdefault(id(one.tensor), []).append(one)
        for own in together.values():
            first = own[0]
            if any(str(kinds[one.name]) != str(kinds[first.name]) for one in own):
                raise ValueError(
                    f"{first.name} and others were not updated in the same steps, and share a step"
                    " counter here: resume with the stage, units and bucket_bytes that were saved."
                )
            states = {
                key: self._joined(own, files, key, kind.dtype)
                if isinstance(kind, Tensor) and not kind.numel()
                else deepcopy(kind)
                for key, kind in kinds[first.name].items()
            }
            values = self._joined(own, files, VALUE, first.tensor.dtype)
            yield first.tensor, first.number, values, states

    def _joined(self, own: list[HeldElements], files, key, dtype) -> Tensor:
        result = torch.zeros(own[0].tensor.numel(), dtype=dtype)
        for one in own:
            found = torch.zeros(len(result), dtype=torch.bool)  # an element may be in two files
            for file, chunk, there, here in self.sources(one):
                result[here] = files[file][chunk][key][there]
                found[here] = True
            if missing := len(one.places) - int(found.sum()):
                raise Damaged(f"{one.name}: {missing:,} elements are nowhere.")
        return result.view(own[0].tensor.shape)


def common(a: range, b: range) -> range:
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))
