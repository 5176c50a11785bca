"""Buckets of parameters for stages 1 and 2.

A bucket has the methods of the core's, and no more of it: its collectives say whether it has zeros
at its end, and any collectives reduce it, in several parts.

Gradients are copied into a flat tensor when all of a bucket are there. Views of it from the first
one on would move the same bytes, and the whole bucket would take its memory beside gradients that
are still to come.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from ...common.agreement import hand_out
from ...common.backward import check_gradient
from ...common.shards import CannotShard, as_shard, groups_of, replicas_of, stages_of
from ...common.torch_internals import current_backward, storage_key, version
from .arriving import Arrival, UnderWay
from .flat import Group, Ring, filled, flattened, own_chunk

# of parameters in one bucket: large enough for the link, small beside the model
BUCKET_BYTES = 25 << 20


class Bucket:
    """Parameters moved into one flat tensor [E], of which they are views from now on. The optimizer
    gets `shards`: this rank's chunk of that tensor [about E/n], in the parts that the collectives
    reduce. An update of the shards updates these elements of the parameters. All ranks begin with
    rank 0's values. `late` has means on their way; with `prefetch` updated parameters may be
    under way when the step is over."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        group: Group,
        collectives: Ring,
        late: UnderWay,
        prefetch: bool,
    ):
        group = replicas_of(parameters[0], group)
        self.parameters, self.group, self.collectives = parameters, group, collectives
        self.late, self.prefetch, self.gathering = late, prefetch, UnderWay()
        self.host = None  # an optimizer there, which wants gradients as soon as they are means
        sizes = [parameter.numel() for parameter in parameters]
        count = collectives.zeros_behind(sum(sizes), group)
        self.zeros = [parameters[0].detach().new_zeros(count)] * bool(count)
        self.flat = flattened([*parameters, *self.zeros])
        hand_out([self.flat], group)
        for parameter, part in zip(parameters, self.flat.split([*sizes, count])):
            parameter.data = part.view(parameter.shape)
        parts = own_chunk(self.flat, group).split(
            collectives.parts_of_a_shard([*parameters, *self.zeros], group)
        )
        self.shards = [as_shard(part, group, of=parameters) for part in parts]
        self.note_versions()

    def reduce_scatter(self):
        """The parameters' gradients are gone. The shards' grow by the mean over ranks, at the
        latest in late.arrive()."""
        share = 1 / dist.get_world_size(self.group)
        begin = getattr(self.collectives, "begin_reduce_scatter", None)
        if begin:
            # where nothing computes meanwhile, and beside gradients that are copied: one at a time
            if current_backward() is None or len(self.parameters) > 1:
                self.late.arrive()
            mean = begin(self.take_gradients(), self.group, share)
            self.late.waits.append(lambda: self.add(mean()))
        else:
            self.add(self.collectives.reduce_scatter(self.take_gradients(), self.group, share))

    @torch.no_grad()
    def add(self, mean: list[Tensor]):
        for shard, part in zip(self.shards, mean):
            part = part.to(shard.dtype)  # fp32 where 16-bit gradients were added in fp32
            shard.grad = part if shard.grad is None else shard.grad.add_(part)
        if self.host:
            self.host.leave(self.shards)

    def take_gradients(self) -> list[Tensor]:
        """Take this rank's gradients away from the parameters."""
        given, shapes = zip(*((parameter.grad, parameter.shape) for parameter in self.parameters))
        for parameter in self.parameters:
            if parameter.grad is not None:
                check_gradient(parameter, "a sharded optimizer")
            parameter.grad = None
        return [*filled(given, shapes, self.flat), *self.zeros]

    @torch.no_grad()
    def all_gather(self):
        if self.host:
            self.host.arrive(self.shards)
        begin = getattr(self.collectives, "begin_all_gather", None)
        early = self.prefetch and begin is not None
        gather = begin if early else self.collectives.all_gather
        wait = gather(self.flat, self.group)
        increment_version(self.parameters)  # a graph from before the step notices
        self.note_versions()
        if self.host:
            self.host.note_versions(self.shards)  # gathering leaves its copies alone
        if early:
            self.gathering.waits.append(Arrival([*self.parameters, *self.shards], wait).arrive)

    def note_versions(self):
        """All writes into the parameters until now are known."""
        self.versions = [version(parameter) for parameter in self.parameters]

    def pass_writes_on(self):
        """Somebody may have written into the parameters, as load_state_dict does: the shards are
        the same memory, and whoever keeps copies of shards looks at their versions."""
        if self.versions != [version(parameter) for parameter in self.parameters]:
            increment_version(self.shards)
            self.note_versions()

    @property
    def has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.parameters)

    def check(self):
        memory = storage_key(self.flat.untyped_storage())
        for parameter in self.parameters:
            if storage_key(parameter.untyped_storage()) != memory:
                raise CannotShard(
                    "a parameter was moved after the sharded optimizer was made (by model.to, a new"
                    " .data, or another sharded optimizer): move the model first, then make the one"
                    " optimizer that steps."
                )


def into_buckets(
    parameters: Iterable[nn.Parameter], group: Group, bucket_bytes: int, *messages
) -> list[Bucket]:
    """Buckets of about bucket_bytes, each of one dtype and device, in the order of their first
    parameters: forward needs a bucket when it comes to its first one, and backward has completed it
    then. A parameter of more than half a bucket is alone, so that its gradient needs no copy where
    the backend makes means; its bias travels with others'. The parameters of a bucket are parts of
    the same groups, and the same stages of a pipeline count them in a norm. Frozen parameters stay
    out, but get rank 0's values as well."""
    piles: list[list[nn.Parameter]] = []
    open_piles: dict[tuple, list[nn.Parameter]] = {}
    frozen = []
    for parameter in parameters:
        if not parameter.requires_grad:
            frozen.append(parameter)
            continue
        if parameter.nbytes > bucket_bytes // 2:
            piles.append([parameter])
            continue
        kind = parameter.dtype, parameter.device, groups_of(parameter), stages_of(parameter)
        kind += (replicas_of(parameter, group),)
        pile = open_piles.get(kind)
        if pile is None or sum(p.nbytes for p in pile) + parameter.nbytes > bucket_bytes:
            pile = open_piles[kind] = []
            piles.append(pile)
        pile.append(parameter)
    hand_out(frozen, group)
    return [Bucket(pile, group, *messages) for pile in piles]
