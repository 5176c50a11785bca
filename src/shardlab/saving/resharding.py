"""A saved run in other shards: which rank holds which of its elements now. checkpoint.py writes and
reads the files.

A rank holds chunks of flat tensors: buckets in stages 1 and 2, units in stage 3 (see zero/flat.py).
Some tensors are whole on all ranks: every parameter of a plain model, and the frozen parameters in
stages 1 and 2. Each flat tensor is cut into chunks as in flat.py, one for each rank that holds the
same (see parts.py). The chunks of the optimizer's states belong to the parameters' chunk.

A save lists the parameters of its flat tensors by name, in order. An element is therefore found in
three steps:

    in my flat tensor  ->  in which parameter  ->  in which flat tensor of the save  ->  in whose
                       chunk

for any number of ranks, any stages, units and buckets. If both runs are cut alike, my chunk is one
piece of one file.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..common.collective_wire import place
from ..experts.core import Experts
from ..zero.hardened.flat import chunk_of
from ..zero.hardened.stage3 import sharded_units
from .durable import Damaged
from .parts import plain_names

VALUE = "value"  # the key of the parameters; the other keys are their states


class FlatParameters(NamedTuple):
    """Parameters one after the other, as [name in the plain model, shape]. Of all their elements,
    `tensors`, one after the other, hold the range `held`. `numbers` are the parameters' places in
    the optimizer, if they have any, and `groups` their parameter groups. `zeros` elements were
    behind the parameters when all was cut. `places` says which of the tensors has a parameter.

    Each expert is a parameter of its own, so that its name does not depend on who has it. `homes`
    are the ranks that have these experts, None: all that hold the same; `elsewhere` says that this
    rank is none of them."""

    parameters: list
    tensors: list[Tensor]
    held: range
    numbers: list[int]
    groups: list[int | None]
    zeros: int = 0
    places: list[int] = []
    homes: list[int] | None = None
    elsewhere: bool = False

    @property
    def cut(self) -> list:
        """All that was cut, as a save lists it: zeros have the name of no parameter."""
        name, _ = self.parameters[0]
        return [*self.parameters, *[[f"{name}, zeros", [self.zeros]]] * bool(self.zeros)]


def flats_of(model: nn.Module, optimizer) -> Iterator[FlatParameters]:
    """All parameters, in the same order on all ranks. ValueError if the optimizer has other
    parameters."""
    if any(module.sharded_unit.exposed for module in sharded_units(model)):
        raise ValueError(
            "the model is unsharded: save and resume outside of `with unsharded(...)`."
        )
    names = {id(p): name for name, p in model.named_parameters()}
    buckets = getattr(optimizer, "buckets", [])
    shards = [shard for bucket in buckets for shard in bucket.shards]
    copied = {id(copy): parameter for parameter, copy in getattr(optimizer, "pairs", [])}
    updated = [
        (copied.get(id(p), p), number)
        for number, each in enumerate(optimizer.param_groups)
        for p in each["params"]
    ]
    places = {
        id(tensor): (number, updated[number][1])
        for number, tensor in enumerate(shards or [p for p, _ in updated])
    }
    known = {*names, *map(id, shards)}
    if not known.issuperset([*places, *(id(p) for bucket in buckets for p in bucket.parameters)]):
        raise ValueError(
            "the optimizer has parameters that are not the model's: give the model that it was made"
            " for."
        )

    def flat(parameters, *tensors, group=None, whole=False, zeros=0):
        (n, me), every = place(group), range(size_of(parameters))
        held = every if whole else common(every, chunk_of(me, len(every) + zeros, n))
        numbers, groups = zip(*(places.get(id(tensor), (None, None)) for tensor in tensors))
        return FlatParameters(
            parameters,
            list(tensors),
            held,
            [number for number in numbers if number is not None],
            list(groups),
            zeros,
            [number if len(tensors) == len(parameters) else 0 for number in range(len(parameters))],
        )

    for bucket in buckets:  # stages 1 and 2
        parameters = [[names.pop(id(p)), list(p.shape)] for p in bucket.parameters]
        zeros = bucket.flat.numel() - size_of(parameters)
        yield flat(parameters, *bucket.shards, group=bucket.group, zeros=zeros)
    paths = {module: f"{path}." * bool(path) for path, module in model.named_modules()}
    for unit in (module.sharded_unit for module in sharded_units(model)):  # stage 3
        # a tied parameter by its first name
        called = {number: f"{paths[place]}{name}" for place, name, number in reversed(unit.sites)}
        parameters = iter(
            [called[number], list(shape)]
            for number, shape in enumerate(s for f in unit.flats for s in f.shapes)
        )
        for each in unit.flats:
            for shard in each.shards:
                names.pop(id(shard))
            zeros = each.zeros.numel()
            own = [next(parameters) for _ in each.shapes]
            yield flat(own, *each.shards, group=each.group, zeros=zeros)
    for name, p in model.named_parameters():  # parameters that all ranks hold whole
        if id(p) in names:
            yield flat([[name, list(p.shape)]], p, whole=True)


def by_expert(flat: FlatParameters, experts: dict[str, Experts]) -> Iterator[FlatParameters]:
    """The flat tensor, and those that ranks with other experts have instead. `experts` are the
    modules that have the parameters of these names."""
    first = experts.get(flat.parameters[0][0])
    homes = first.axes.homes if hasattr(first, "axes") else [None]
    for number, ranks in enumerate(homes):
        parameters, places = [], []
        for index, (name, shape) in zip(flat.places, flat.parameters):
            each, own = shape[0], name in experts
            begin = number * each
            names = [f"{name}[{begin + k}]" for k in range(each)] if own else [name]
            parameters += [[one, shape[1:] if own else shape] for one in names]
            places += [index] * len(names)
        elsewhere = ranks is not None and first.axes.divide.rank != number
        held = range(0) if elsewhere else flat.held
        yield flat._replace(
            parameters=parameters, places=places, homes=ranks, elsewhere=elsewhere, held=held
        )


def flats_buffers(model: nn.Module, optimizer) -> tuple[list[FlatParameters], dict[str, Tensor]]:
    """(the flat tensors, the buffers), under the names that the plain model has."""
    experts = {
        f"{path}.{name}": module
        for path, module in model.named_modules()
        if isinstance(module, Experts)
        for name in module.NAMES
    }
    flats = [one for flat in flats_of(model, optimizer) for one in by_expert(flat, experts)]
    plain = plain_names(name for flat in flats for name, _ in flat.parameters)
    return [
        flat._replace(parameters=[[plain(name), shape] for name, shape in flat.parameters])
        for flat in flats
    ], {
        plain(name): value
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
    }


# --- to the files ---------------------------------------------------------------------------------


def own_parts(flat: FlatParameters, states: dict, rank: int, n: int) -> dict[str, Tensor]:
    """Copies of the data that this rank writes, of n that hold the same: its chunk of the
    parameters, and of each state that has an element for each of their elements."""
    part = common(flat.held, chunk_of(rank, size_of(flat.cut), n))
    cut = slice(part.start - flat.held.start, part.stop - flat.held.start)
    chunks = {
        key: [states[number][key] for number in flat.numbers]
        for key, kind in state_types(flat, states).items()
        if is_in_chunks(kind)
    }
    return {
        key: torch.cat([tensor.detach().cpu().reshape(-1) for tensor in tensors])[cut].clone()
        for key, tensors in {VALUE: flat.tensors, **chunks}.items()
    }


def state_types(flat: FlatParameters, states: dict) -> dict:
    """The states of a flat tensor: an empty tensor of the same type for a state in chunks, the
    value itself for other states, such as a step counter. Its tensors share them."""
    each = [
        types_of(flat, tensor, states.get(number, {}))
        for tensor, number in zip(flat.tensors, flat.numbers)
    ]
    if any(str(types) != str(each[0]) for types in each) or 0 < len(each) < len(flat.tensors):
        raise ValueError(
            f"{flat.parameters[0][0]} and others travel together, and some of them were updated in"
            " other steps or with other states, as frozen ones are: freeze parameters before"
            " fully_shard, and give the optimizer all that are trained."
        )
    return each[0] if each else {}


def types_of(flat: FlatParameters, tensor: Tensor, states: dict) -> dict:
    found = {}
    for key, state in states.items():
        chunk = is_chunk(key, state, tensor)
        if not chunk and len(flat.held) < size_of(flat.parameters) and is_large(state):
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


def is_in_chunks(kind) -> bool:
    """Whether this is what state_types has for a state in chunks."""
    return isinstance(kind, Tensor) and not kind.numel()


def is_chunk(key: str, state, tensor: Tensor) -> bool:
    return (
        isinstance(state, Tensor)
        and state.shape == tensor.shape
        and (state.dim() > 0 or key != "step")
    )


# --- and back -------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Adjacent elements: from `begin` in the rank's chunk of flat tensor `number`, to `to` in the
    elements held here."""

    rank: int
    number: int
    begin: int
    to: int
    elements: int


class Layout:
    """The layout of a save: its flat tensors, each as [[name, shape], ...], and the ranks among
    which each was cut, by their numbers among those that hold the same."""

    def __init__(self, flats: list[list], homes: list[list[int]]):
        self.homes, self.places = homes, {}
        self.sizes = [size_of(parameters) for parameters in flats]
        for number, parameters in enumerate(flats):
            begins = accumulate((prod(shape) for _, shape in parameters), initial=0)
            self.places |= {name: (number, begin) for (name, _), begin in zip(parameters, begins)}

    def pieces(self, flat: FlatParameters) -> Iterator[Piece]:
        """The places of the elements held here."""
        begin = 0
        for name, shape in flat.parameters:
            number, begin_there = self.places[name]
            ahead, end = begin_there - begin, begin + prod(shape)
            mine = common(flat.held, range(begin, end))
            homes = self.homes[number]
            for index, rank in enumerate(homes if mine else ()):
                chunk = chunk_of(index, self.sizes[number], len(homes))
                if both := common(chunk, range(mine.start + ahead, mine.stop + ahead)):
                    yield Piece(
                        rank,
                        number,
                        both.start - chunk.start,
                        both.start - ahead - flat.held.start,
                        len(both),
                    )
            begin = end

    def restored(
        self, flat: FlatParameters, files: dict[int, list], kinds: list[dict]
    ) -> tuple[list[Tensor], list[dict]]:
        """(parameters, states) held here, of each tensor. `files` has the result of own_parts on
        each rank, `kinds` the result of state_types."""
        numbers = sorted({self.places[name][0] for name, _ in flat.parameters})
        first, *others = [kinds[number] for number in numbers]
        if any(str(other) != str(first) for other in others):
            raise ValueError(
                f"{flat.parameters[0][0]} and others were not updated in the same steps, and share"
                " a step counter here: resume with the stage, units and bucket_bytes that were"
                " saved."
            )
        states = {
            key: (
                self._joined(flat, files, key, kind.dtype)
                if is_in_chunks(kind)
                else [deepcopy(kind) for _ in flat.tensors]
            )
            for key, kind in first.items()
        }
        return self._joined(flat, files, VALUE, flat.tensors[0].dtype), [
            {key: values[place] for key, values in states.items()}
            for place in range(len(flat.tensors))
        ]

    def _joined(self, flat, files, key, dtype):
        sizes, found = [tensor.numel() for tensor in flat.tensors], 0
        result = torch.zeros(sum(sizes), dtype=dtype)
        for rank, number, begin, to, elements in self.pieces(flat):
            result[to : to + elements] = files[rank][number][key][begin : begin + elements]
            found += elements
        if missing := len(flat.held) - found:
            raise Damaged(f"{flat.parameters[0][0]}: {missing:,} elements are nowhere.")
        return [part.view(t.shape) for part, t in zip(result.split(sizes), flat.tensors)]


def size_of(parameters: Iterable) -> int:
    return sum(prod(shape) for _, shape in parameters)


def common(a: range, b: range) -> range:
    start = max(a.start, b.start)
    return range(start, max(start, min(a.stop, b.stop)))
