"""A model in stage 3, whole for a while and under its own names: to look at, to load into, to
initialise unit by unit.

    with unsharded(model):                                      # all of it, on every rank
        print(model.head.weight)

    for unit in sharded_units(model):                           # a model from the meta device,
        with unsharded(unit, recurse=False, write=True):        # never whole
            fill(unit)

Parameters have the dtype of the shards, not the compute dtype. They are copies: a value that was
read stays valid after the block, and only `write` changes a shard.
"""

from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...collectives import scatter
from .flat import own_chunk
from .stage3 import Flat, Unit, sharded_units


@contextmanager
def unsharded(module: nn.Module, *, recurse: bool = True, write: bool = False):
    """A context in which the units inside the module (without `recurse` only the module) have their
    parameters whole and under their own names, as in the plain model. With `write`, the shards take
    rank 0's values at the end. A hook on a whole parameter ends with the block: register hooks on
    shards. All ranks enter it."""
    units = [unit.sharded_unit for unit in (sharded_units(module) if recurse else [module])]
    opened = []
    try:
        for unit in units:
            if not unit.exposed:
                unit.exposed = [full_copy(flat) for flat in unit.flats]
                views = zip(unit.views(unit.exposed), unit.shards)
                unit.fill([parameter(view, shard, unit) for view, shard in views])
                opened.append(unit)
        yield module
        if write:
            for unit in units:
                keep(unit)
    finally:
        for unit in opened:
            unit.close()
            unit.exposed = None


@torch.no_grad()
def full_copy(flat: Flat) -> Tensor:
    """[E], in memory of its own and in the dtype of the shard. Its storage grows like the storage
    of gathered parameters, by which the ledger recognises it."""
    storage = torch.UntypedStorage(0, device=flat.full.device)
    storage.resize_(flat.full.numel() * flat.chunk.element_size())
    full = flat.chunk.new_empty(0, device=flat.full.device).set_(storage)
    own_chunk(full, flat.group).copy_(flat.chunk)
    flat.collectives.all_gather(full, flat.group)
    return full


def parameter(view: Tensor, shard: nn.Parameter, unit: Unit) -> nn.Parameter:
    def refuse(_):
        raise RuntimeError(
            f"backward within `with unsharded(...)`: the gradient of a parameter of {unit.name}"
            " would be lost at its end. Run forward and backward outside."
        )

    whole = nn.Parameter(view, shard.requires_grad)
    if shard.requires_grad:
        whole.register_hook(refuse)
    return whole


@torch.no_grad()
def keep(unit: Unit):
    """The shards get the values of rank 0's whole parameters."""
    numbers = {id(whole): number for number, whole in enumerate(unit.content)}
    views = unit.views(unit.exposed)
    for module, name, number in unit.sites:
        now = getattr(module, name)
        if numbers.get(id(now), number) != number:
            raise ValueError(
                f"{type(module).__name__}.{name} was tied within `with unsharded(...)`: the shards"
                " are cut, so tie parameters before fully_shard."
            )
        if now.data_ptr() != views[number].data_ptr():  # assigned, and not written to
            views[number].copy_(now)
    for flat, full in zip(unit.flats, unit.exposed):
        own = own_chunk(full, flat.group).clone()
        scatter(own, full, group=flat.group)  # rank 0's
        for shard, part in zip(flat.shards, flat.parts(own)):
            shard.copy_(part)
