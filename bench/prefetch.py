"""Prefetch for stage 3, on CPU ranks: the next unit's parameters travel while this one computes.

    prefetch = Prefetch(model)          # after fully_shard
    ...
    prefetch.close()

A thread gathers the unit that came after this one in the step before, over connections of its own.
The time of the link hides behind computing, at the price of the memory of one more unit. It is here
because the bench `exposed` holds the formula of a unit gathered ahead against it, and because on
CUDA it would need a stream of its own.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch.distributed as dist
from torch import nn

from shardlab.common.torch_internals import version
from shardlab.zero.hardened.stage3 import sharded_units
from shardlab.zero.hardened.unit import Unit


class Prefetch:
    """On CPU ranks. On CUDA gathering would need a stream of its own, which is untested and
    therefore refused. `close()` ends it."""

    def __init__(self, module: nn.Module):
        self.units = [unit.sharded_unit for unit in sharded_units(module)]
        if not self.units:
            raise ValueError(f"{type(module).__name__} is not sharded: call fully_shard first.")
        if any("gather" in vars(unit) for unit in self.units):
            raise ValueError(f"{type(module).__name__} is prefetched already: close() that first.")
        if any(flat.full.is_cuda for unit in self.units for flat in unit.flats):
            raise ValueError("the units are on CUDA: prefetching is made for CPU ranks.")
        self.group = dist.new_group(
            dist.get_process_group_ranks(self.units[0].group or dist.group.WORLD)
        )
        self.thread = ThreadPoolExecutor(1)
        self.after: dict[tuple, Unit] = {}  # (in backward?, a unit) -> the one that came next
        self.last = None  # the key of the unit gathered last
        self.under_way: tuple[Unit, list[int], Future] | None = None
        for unit in self.units:
            unit.gather, unit.free = partial(self.gather, unit), partial(self.free, unit)

    def gather(self, unit: Unit):
        """Instead of Unit.gather."""
        if unit.whole:
            return
        key = (unit.in_backward, unit)
        if self.last is not None and self.last[0] == key[0]:
            self.after[self.last] = unit
        expected = self.take()
        if expected is not None and expected is not unit:  # it will be needed again
            Unit.free(expected)
        Unit.gather(unit)
        self.last, following = key, self.after.get(key)
        # a unit that follows itself is in use, and cannot be filled meanwhile
        if following is not None and not following.whole:
            for flat in following.flats:
                flat.allocate()
            filling = self.thread.submit(fill, following, self.group)
            self.under_way = following, versions(following), filling

    def free(self, unit: Unit):
        """Instead of Unit.free: not while the thread gathers the unit."""
        if self.under_way is not None and self.under_way[0] is unit:
            self.take()
        Unit.free(unit)

    def take(self) -> Unit | None:
        """The prefetched unit, once it has arrived and is whole; None if its shards have changed
        since."""
        if self.under_way is None:
            return None
        (unit, before, filling), self.under_way = self.under_way, None
        filling.result()
        for flat in unit.flats:
            flat.whole = True
        if versions(unit) == before:
            return unit
        Unit.free(unit)

    def close(self):
        if (unit := self.take()) is not None:
            Unit.free(unit)
        for unit in self.units:
            del unit.gather, unit.free
        self.thread.shutdown()
        dist.destroy_process_group(self.group)


def fill(unit: Unit, group):
    for flat in unit.flats:
        flat.fill(group)


def versions(unit: Unit) -> list[int]:
    """The versions of its shards: each change of a tensor in place counts one up."""
    return [version(shard) for shard in unit.shards]
