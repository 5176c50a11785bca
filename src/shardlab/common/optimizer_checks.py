"""Checks of an optimizer when it steps: one of PyTorch's or a user's, made from model.parameters(),
so an earlier check is impossible.

    replaced(parameters, "fully_shard")    the model has parts instead of them; an optimizer that
                                           was made before would update nothing, or nothing but the
                                           parameters that are left
    watch(shard, landing)                  a flat shard of stage 3; before steps, landing.check()

Shards and parts of tensor parallelism are updated by each rank alone: an optimizer that looks at
rows, norms of a layer or a line search is found by trial.

Callers call torch_clip_and_scale.watch_steps(), from when on optimizers are looked at.
"""

from collections.abc import Iterable
from inspect import signature
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from .backward import owners
from .shards import CannotShard, groups_of, stages_of

# each element by itself, as the tests of stage 1 show; others are tried
KNOWN = {
    getattr(torch.optim, name)
    for name in ("SGD Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop ASGD Rprop".split())
}
tried: WeakSet = WeakSet()  # optimizers of shards that were tried with their own settings
shards = WeakTensorKeyDictionary()  # of stage 3 -> a weak reference to its model's landing
gone = WeakTensorKeyDictionary()  # parameter that a model no longer has -> its shape, what cut it
# parameter -> a weak reference to the optimizer that has its gradient: one of stage 1 or 2, or one
# of copies
gradient_is_with = WeakTensorKeyDictionary()
# optimizer -> how many parameters it had, the landings of their models
looked_at: WeakKeyDictionary = WeakKeyDictionary()


def watch(shard: nn.Parameter, landing):
    shards[shard] = ref(landing)


def replaced(parameters: Iterable[Tensor], by: str):
    """An optimizer that has these parameters refuses to step."""
    for parameter in parameters:
        gone[parameter] = list(parameter.shape), by


def holder_of(parameter: Tensor) -> torch.optim.Optimizer | None:
    return gradient_is_with[parameter]() if parameter in gradient_is_with else None


def look(optimizer: torch.optim.Optimizer, *_):
    """Called before each step of any optimizer, and before a scaler unscales its gradients."""
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    known, landings = looked_at.get(optimizer, (None, ()))
    if known != count:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        look_at_order(optimizer, parameters)
        landings = {shards[parameter] for parameter in parameters if parameter in shards}
        if landings:
            look_at_shards(optimizer, parameters)
        if any(map(is_cut, parameters)) and not hasattr(optimizer, "inner"):
            look_at_rule(optimizer, parameters[0])
        looked_at[optimizer] = count, landings
    for landing in filter(None, (weakly() for weakly in landings)):
        landing.check()


def look_at_order(optimizer: torch.optim.Optimizer, parameters: list):
    """Whether the model was cut after the optimizer was made, and whether another optimizer has the
    gradients."""
    name = type(optimizer).__name__
    buckets = getattr(optimizer, "buckets", ())
    copied = [*getattr(optimizer, "pairs", ())]
    copied += [(p, bucket.shards[0]) for bucket in buckets for p in bucket.parameters]
    for parameter in [*parameters, *(original for original, _ in copied)]:
        if parameter in gone:
            shape, by = gone[parameter]
            raise CannotShard(
                f"{name} was made before {by}: its parameter of shape {shape} is no longer the"
                f" model's, which this step would not move; make the optimizer after {by}."
            )
        holder = None if buckets else holder_of(parameter)
        if holder not in (None, optimizer):
            raise CannotShard(
                f"{name} steps with a parameter of shape {list(parameter.shape)} whose gradient"
                f" {type(holder).__name__} takes: of these two optimizers let that one step alone."
            )
    counted_in_norms = copied if buckets or hasattr(optimizer, "take_gradients") else ()
    if any(stages_of(original) and not stages_of(copy) for original, copy in counted_in_norms):
        raise CannotShard(
            f"{name} was made before Pipeline, and would clip by the norm of this rank's stages"
            " alone: make the optimizer of pipeline.parameters() afterwards."
        )


def look_at_shards(optimizer: torch.optim.Optimizer, parameters: list):
    for number, group in enumerate(optimizer.param_groups):
        if not group["params"]:
            raise CannotShard(
                f"parameter group {number} of {type(optimizer).__name__} is empty: a shard has the"
                " name of its parameter and as many dims, but another shape; choose groups by these"
                " two, and leave out an empty one."
            )
    for parameter in parameters:
        if parameter.requires_grad and not groups_of(parameter) and parameter not in owners:
            raise CannotShard(
                f"a parameter of shape {list(parameter.shape)} is trained beside shards, and its"
                " gradient is this rank's own: add parameters to a model before fully_shard, or"
                " make replicas of the module that has them, by DistributedDataParallel."
            )


def is_cut(parameter: Tensor) -> bool:
    return parameter in shards or any(dist.get_world_size(g) > 1 for g in groups_of(parameter))


def look_at_rule(optimizer: torch.optim.Optimizer, like: Tensor):
    if type(optimizer) not in KNOWN and optimizer not in tried:
        takes = signature(type(optimizer)).parameters  # AdamW has a default that it does not take
        settings = {name: value for name, value in optimizer.defaults.items() if name in takes}
        check_elementwise(type(optimizer), settings, like)


def check_elementwise(optimizer_cls: type, settings: dict, like: Tensor):
    """Raise TypeError unless the optimizer treats each element by itself. This is tried with two
    steps of a matrix, and of the same elements as two runs of unequal length."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(3, 6, 5, generator=draw) * torch.logspace(-2, 2, 6).view(6, 1)
    settings = {**settings, "lr": 0.1} if "lr" in settings else settings

    def updated(cut) -> Tensor:
        matrix, *gradients = values.to(like.device)
        tensors = [nn.Parameter(part.clone()) for part in cut(matrix)]
        optimizer = optimizer_cls([{"params": tensors}], **settings)
        for gradient in gradients:
            for tensor, part in zip(tensors, cut(gradient)):
                tensor.grad = part.clone()
            optimizer.step()
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    if not isinstance(optimizer_cls, type):
        raise TypeError(f"optimizer_cls = {optimizer_cls!r}: a class, such as torch.optim.AdamW.")
    name = optimizer_cls.__name__
    try:
        whole = updated(lambda matrix: [matrix])
        runs = updated(lambda matrix: matrix.view(-1).split([11, 19]))
    except Exception as error:
        raise TypeError(
            f"optimizer_cls = {name}: it does not step with plain gradients of a shard"
            f" ({type(error).__name__}: {str(error).splitlines()[0]}); take one that updates each"
            " element by itself, such as SGD or AdamW."
        ) from error
    if not torch.allclose(whole, runs, rtol=1e-4, atol=1e-6):
        raise TypeError(
            f"optimizer_cls = {name}: it looks at more than one element at a time, and a shard or a"
            " part is not the whole matrix; take one that updates each element by itself, such as"
            " SGD or AdamW."
        )
