"""Between backward and step: checks of an optimizer when it steps, and PyTorch's functions made
aware of the shards on other ranks. An earlier check is impossible: optimizers are PyTorch's or a
user's, made from model.parameters().

    watch_steps()                          from now on optimizers are looked at when they step
    replaced(parameters, "fully_shard")    the model has parts instead of them
    watch(shard, landing)                  a flat shard of stage 3; before steps, landing.check()
    note(parameters, optimizer)            the optimizer takes the gradients of these parameters

Shards and parts of tensor parallelism are updated by each rank alone: an optimizer that looks at
rows, norms of a layer or a line search is found by trial.

    torch.amp.GradScaler()                                    no rank steps where a shard, a part or
                                                              a stage has an infinite gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   the norm of all shards, in stage 3
    torch.nn.utils.get_total_norm(gradients)                  the same, or a refusal where some are
                                                              not among them
    torch.nn.parallel.DistributedDataParallel(model)          refused over ranks with other parts

Stages 1 and 2 refuse clip_grad_norm_ and clip_grad_value_, because a parameter has the gradient of
this rank alone, or none. Pipelines refuse the first: each rank has parameters of its own. A norm
that you make by hand of gradients, or of their copies, is this rank's alone, and nothing raises.
FSDP2 has the first two by DTensor. All stay as they are for tensors that are not shards.
"""

import functools
import sys
from collections.abc import Callable, Iterable
from inspect import signature
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .backward import BackwardListener, owners
from .shards import (
    CannotShard,
    Groups,
    groups_of,
    groups_of_shards,
    stages_of,
    stages_of_parameters,
    take_place,
    updated_by,
    would_mix,
)
from .torch_internals import watch_clipping, watch_fsdp, watch_unscaling, watch_value_clipping

# each element by itself, as the tests of stage 1 show; others are tried
ELEMENTWISE = "SGD Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop ASGD Rprop"
KNOWN = {getattr(torch.optim, name) for name in ELEMENTWISE.split()}
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


# --- PyTorch's own functions ---------------------------------------------------------------------


def watch_steps():
    """Watch steps from the first shard of this process on; what has stepped is looked at once
    more."""
    looked_at.clear()
    watch_once()
    if "torch.distributed.fsdp" in sys.modules:  # to import it takes a second
        watch_fsdp(take_places)


def take_places(modules, parameters: list[Tensor], groups, shards: list[Tensor]):
    """A shard that fully_shard makes of a part is cut as the part is."""
    for parameter, shard in zip(parameters, shards):
        take_place(shard, [parameter])


def note(parameters: list[Tensor], optimizer: torch.optim.Optimizer):
    """This optimizer takes the gradients of these parameters, and why_not_clip(parameter) says why
    they cannot be clipped by PyTorch's function, or nothing."""
    watch_steps()
    for parameter in parameters:
        gradient_is_with[parameter] = ref(optimizer)


@functools.cache
def watch_once():
    register_optimizer_step_pre_hook(look)
    watch_unscaling(updated_in_order, agree_on_infinities, loss_is_elsewhere)
    watch_clipping(norm_over_ranks, refuse_clipping, refuse_norm)
    watch_value_clipping(refuse_taken)
    watch_torch_replicas()


@functools.cache
def watch_torch_replicas():
    """PyTorch's DistributedDataParallel refuses parts where it would write rank 0's over those of
    other ranks, and replicas, whose sums it would overwrite before they are divided."""
    make = torch.nn.parallel.DistributedDataParallel.__init__

    @functools.wraps(make)
    def refuse_first(self, module, *args, **named):
        mesh = named.get("device_mesh")
        group = mesh.get_group(0) if mesh else named.get("process_group")
        why = would_mix(module.named_parameters(), group)
        if any(isinstance(one, BackwardListener) for one in module.modules()):
            why = "the module has replicas in it already: make new ones of their .module."
        if why:
            raise CannotShard(f"rank {dist.get_rank()}: {why}")
        make(self, module, *args, **named)

    torch.nn.parallel.DistributedDataParallel.__init__ = refuse_first


def updated_in_order(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """updated_by(optimizer), which was made after the model was cut."""
    look(optimizer)
    return updated_by(optimizer)


@torch.no_grad()
def agree_on_infinities(updated: list[Tensor], found: dict[torch.device, Tensor]):
    """`found` has a scaler's result for this rank's gradients, afterwards the result for the
    gradients of all ranks."""
    groups = dict.fromkeys(group for p in updated for group in groups_of(p))
    # stages last: by then the ranks that share a stage agree, whatever each stage is cut into
    groups |= dict.fromkeys(stages.group for p in updated if (stages := stages_of(p)))
    if not groups:
        return
    worst = torch.zeros((), dtype=torch.float32, device=updated[0].device)
    for infinite in found.values():
        worst = worst.maximum(infinite.to(worst.device))
    for group in groups:
        dist.all_reduce(worst, dist.ReduceOp.MAX, group=group)
    for device in {*found, worst.device}:
        found[device] = worst.to(device)


def loss_is_elsewhere(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this rank's stages of a pipeline are not the last, so that no loss is scaled here."""
    tensors = [p for param_group in optimizer.param_groups for p in param_group["params"]]
    return any((stages := stages_of(p)) and not stages.has_loss for p in tensors)


def norm_over_ranks(
    gradients: list[Tensor], norm_type: float, norm: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    """The norm of all these gradients: shards count over the ranks of their groups, whole gradients
    count once."""
    of_shards = {id(shard.grad): groups for shard, groups in groups_of_shards.items()}
    of_shards.pop(id(None), None)
    piles: dict[Groups, list[Tensor]] = {}
    for gradient in gradients:
        piles.setdefault(of_shards.get(id(gradient), ()), []).append(gradient)
    if set(piles) <= {()}:
        return norm(gradients)
    if not norm_type > 0:
        raise CannotShard(
            f"torch.nn.utils.clip_grad_norm_(norm_type={norm_type}) of shards: ranks add up powers"
            " of their norms, so norm_type must be above 0."
        )
    norms = [
        over_ranks(pile, groups, norm_type, norm) if groups else whole_norm(norm(pile))
        for groups, pile in piles.items()
    ]
    device = gradients[0].device
    return torch.linalg.vector_norm(torch.stack([one.to(device) for one in norms]), norm_type)


def over_ranks(pile: list[Tensor], groups: Groups, norm_type: float, norm) -> Tensor:
    first = pile[0]
    wide = torch.promote_types(first.dtype.to_real(), torch.float32)
    one = whole_norm(norm([gradient for gradient in pile if gradient.numel()])).to(
        first.device, wide
    )
    if norm_type == float("inf"):
        for group in groups:
            dist.all_reduce(one, dist.ReduceOp.MAX, group=group)
        return one
    one = one**norm_type
    for group in groups:
        dist.all_reduce(one, group=group)
    return one ** (1 / norm_type)


def whole_norm(norm: Tensor) -> Tensor:
    """The norm of DTensors is one, whose ranks have shares."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def refuse_norm(gradients: list[Tensor]):
    """Raise CannotShard where get_total_norm is given gradients that are not yet averaged, those of
    some stages, or nothing where an optimizer takes gradients."""
    given = {id(gradient) for gradient in gradients}
    of_stages = any(id(parameter.grad) in given for parameter in stages_of_parameters)
    why_not = "are of this rank's stages of a pipeline alone" if of_stages else ""
    for parameter in gradient_is_with if not why_not else ():
        optimizer = holder_of(parameter)
        asked = not given or id(parameter.grad) in given
        if asked and optimizer is not None and optimizer.why_not_clip(parameter):
            why_not = f"{type(optimizer).__name__} averages or has taken"
    if why_not:
        raise CannotShard(
            f"torch.nn.utils.get_total_norm of gradients that {why_not}: the norm of all is what"
            ' gradient_clipping.clip_gradients(optimizer, float("inf")) returns, which clips'
            " nothing."
        )


def refuse_clipping(parameters: list[Tensor]):
    if any(map(stages_of, parameters)):
        raise CannotShard(
            "torch.nn.utils.clip_grad_norm_ knows the gradients of this rank's stages alone: call"
            " gradient_clipping.clip_gradients(optimizer, max_norm) on all ranks of the pipeline."
        )
    refuse_taken(parameters)


def refuse_taken(parameters: list[Tensor]):
    for parameter in parameters:
        optimizer = holder_of(parameter)
        if optimizer is not None and (why_not := optimizer.why_not_clip(parameter)):
            raise CannotShard(why_not)
