"""Buckets of parameters for stages 1 and 2: which travel together, and what cannot be sharded."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..torch_internals import storage_key
from .flat import Group, cut, filled, first_rank, own_chunk

# of parameters in one bucket: large enough for the link, small beside the model
BUCKET_BYTES = 25 << 20
# of torch.optim: they look at a whole matrix, or at all parameters
WHOLE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")


class Bucket:
    """Parameters moved into one flat tensor [E], in which they are views from now on. What the
    optimizer gets is `shards`, this rank's chunk of that tensor [about E/n] in the parts in which
    it travels, which are small enough for the cache: to update them is to update these elements of
    the parameters. All ranks begin with rank 0's values."""

    def __init__(self, parameters: list[nn.Parameter], group: Group):
        self.parameters, self.group = parameters, group
        self.flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        dist.broadcast(self.flat, first_rank(group), group=group)
        for parameter, part in zip(parameters, self.flat.split([p.numel() for p in parameters])):
            parameter.data = part.view(parameter.shape)
        sizes = [
            part.numel()
            for part in cut(parameters, dist.get_rank(group), dist.get_world_size(group))
        ] or [0]
        self.shards = [nn.Parameter(part) for part in own_chunk(self.flat, group).split(sizes)]

    def take_gradients(self) -> list[Tensor]:
        """This rank's gradients; the parameters have none any more."""
        gradients = filled(
            [p.grad for p in self.parameters], [p.shape for p in self.parameters], self.flat
        )
        for parameter in self.parameters:
            parameter.grad = None
        return gradients

    def add_to_shards(self, mean: list[Tensor]):
        """`mean` is the gradient of this rank's chunk [about E/n], in whatever parts, and becomes
        the shards' own."""
        sizes = [shard.numel() for shard in self.shards]
        if [part.numel() for part in mean] != sizes:
            mean = torch.cat(mean).split(sizes)
        for shard, part in zip(self.shards, mean):
            shard.grad = part if shard.grad is None else shard.grad.add_(part)

    def holds(self, parameter: nn.Parameter) -> bool:
        """Whether it still lies in the flat tensor."""
        return storage_key(parameter.untyped_storage()) == storage_key(self.flat.untyped_storage())

    def check(self):
        if not all(map(self.holds, self.parameters)):
            raise RuntimeError(
                "a parameter was moved after the sharded optimizer was made (by model.to, a new"
                " .data, or another sharded optimizer): move the model first, then make the one"
                " optimizer that steps."
            )


def into_buckets(
    parameters: Iterable[nn.Parameter], group: Group, bucket_bytes: int
) -> list[Bucket]:
    """Buckets of about bucket_bytes, each of one dtype and device, in the order of the parameters.
    Frozen parameters stay out, but they too get rank 0's values."""
    piles: dict[tuple, list[list[nn.Parameter]]] = {}
    for parameter in parameters:
        if parameter.is_meta:
            raise ValueError(
                "a parameter is on the meta device: fill the model (to_empty and its"
                " initialisation) before the sharded optimizer is made."
            )
        if not parameter.requires_grad:
            dist.broadcast(parameter.data, first_rank(group), group=group)
            continue
        pile = piles.setdefault((parameter.dtype, parameter.device), [[]])
        if pile[-1] and sum(p.nbytes for p in pile[-1]) + parameter.nbytes > bucket_bytes:
            pile.append([])
        pile[-1].append(parameter)
    return [Bucket(together, group) for pile in piles.values() for together in pile]


def check_arguments(optimizer_cls, bucket_bytes: int):
    if not (isinstance(optimizer_cls, type) and issubclass(optimizer_cls, torch.optim.Optimizer)):
        raise TypeError(
            f"optimizer_cls = {optimizer_cls!r}: it must be a class of optimizers, such as"
            " torch.optim.AdamW."
        )
    if optimizer_cls.__name__ in WHOLE:
        raise TypeError(
            f"optimizer_cls = {optimizer_cls.__name__}: it looks at more than one element at a"
            " time, and a shard is no matrix; take one that updates each element by itself, such"
            " as SGD or AdamW."
        )
    if not bucket_bytes > 0:
        raise ValueError(f"bucket_bytes = {bucket_bytes!r}: it must be above 0.")


def as_list(parameters: Tensor | Iterable) -> list[nn.Parameter]:
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p[1] if isinstance(p, tuple) else p for p in parameters]  # named_parameters() will do


def check_new(parameters: list[nn.Parameter], buckets: list[Bucket]):
    if not any(p.requires_grad for p in parameters):
        raise ValueError(
            f"a group of {len(parameters)} parameters of which none is trained: there is nothing to"
            " shard."
        )
    known = {id(p) for bucket in buckets for p in bucket.parameters}
    for parameter in parameters:
        if id(parameter) in known:
            raise ValueError(
                f"a parameter of shape {list(parameter.shape)} is given twice: each belongs to one"
                " group, once."
            )
        known.add(id(parameter))


def check_state(state_dict: dict, inner: torch.optim.Optimizer):
    """Each tensor of a shard's state is a number or has the shard's size."""
    shards = [shard for group in inner.param_groups for shard in group["params"]]
    for number, state in state_dict["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != shards[number].shape:
                raise ValueError(
                    f"{name} has {value.numel():,} elements, this rank's shard"
                    f" {shards[number].numel():,}: the state is another rank's, or of another"
                    " number of ranks; saving.resume takes any number."
                )
