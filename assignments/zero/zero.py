"""Assignment: ZeRO, all three stages. README.md beside this file says what to build.

Try it with `python -m shardlab grade zero`.
"""

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor, nn

Group = dist.ProcessGroup | None  # None is the world
BUCKET_BYTES = 25 << 20


class ShardedStates:
    """Stage 1: an optimizer whose states are those of this rank's shard. `param_groups` are those
    of the optimizer inside, which knows the shards alone."""

    def __init__(
        self,
        params,
        optimizer_cls: type,
        group: Group = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        **settings,
    ):
        # TODO: refuse what cannot be; rank 0's values; flat buckets, of which the trained
        # parameters become views; an optimizer_cls of this rank's chunks of them
        raise NotImplementedError("ShardedStates is a TODO")

    def step(self):
        """Reduce-scatter the gradients, update the shards, all-gather the parameters."""
        raise NotImplementedError("step is a TODO")

    def zero_grad(self):
        """No gradient, of a parameter or of a shard."""
        raise NotImplementedError("zero_grad is a TODO")


class ShardedGradients(ShardedStates):
    """Stage 2: a bucket's gradients are reduce-scattered in backward, as soon as all of them have
    arrived, and freed."""

    # TODO: a hook for each parameter; what if a gradient does not arrive?

    def __init__(self, *args, **settings):
        raise NotImplementedError("ShardedGradients is a TODO")


def fully_shard(module: nn.Module, units: Iterable[nn.Module] = (), group: Group = None):
    """Stage 3, in place: module.parameters() are shards, flat tensors of one dtype. A unit is whole
    while its forward or its backward runs."""
    # TODO: which unit owns a parameter; gather before a unit's forward, free after it; gather when
    # the gradient of its output arrives; reduce-scatter its gradients, free
    raise NotImplementedError("fully_shard is a TODO")


def whole_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the plain module's named_parameters(), on every rank."""
    raise NotImplementedError("whole_parameters is a TODO")
