"""A model in stage 3, whole for a while and under its own names: to look at, to load into, to
initialise unit by unit.

    with unsharded(model):                                      # all of it, on every rank
        print(model.head.weight)

    for unit in sharded_units(model):                           # a model from the meta device,
    # never whole
        with unsharded(unit, recurse=False, write=True):
            fill(unit)
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from .flat import first_rank, own_chunk
from .stage3 import Unit, sharded_units


@contextmanager
def unsharded(module: nn.Module, *, recurse: bool = True, write: bool = False):
    """Within, the units inside the module (without `recurse` the module only) have their parameters
    whole and under their own names, as in the plain model. With `write`, the shards take rank 0's
    values at the end. All ranks enter it."""
    units = [unit.sharded_unit for unit in (sharded_units(module) if recurse else [module])]
    try:
        for unit in units:
            expose(unit)
        yield module
        if write:
            for unit in units:
                keep(unit)
    finally:
        for unit in units:
            if unit.open:
                unit.close()


def expose(unit: Unit):
    """The plain module's parameters, in the place of the shards."""
    for name in unit.shards:
        del unit.module._parameters[name]
    unit.unshard()
    unit.place(
        [
            nn.Parameter(view, flat.shard.requires_grad)
            for flat in unit.flats
            for view in flat.views()
        ]
    )
    unit.open = True


@torch.no_grad()
def keep(unit: Unit):
    """The shards get what rank 0 has in the whole parameters."""
    for flat in unit.flats:
        dist.broadcast(flat.full, first_rank(flat.group), group=flat.group)
        flat.shard.copy_(own_chunk(flat.full, flat.group))
