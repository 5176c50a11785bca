"""Refusals of a LossScaler, each with the sentence that says why."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from ...common.optimizer_checks import look
from ...common.shards import cut_among, updated_by


class WrongOrder(RuntimeError):
    """A call of a scaler that comes too early, too late or twice."""


class CannotScale(ValueError):
    """A scale, a loss or a gradient with which scaling does not do what it is for."""


class OverflowEveryStep(OverflowError):
    """More steps in a row have overflowed than the scaler was given."""


def check_scaler(init_scale, growth_factor, backoff_factor, growth_interval, floor):
    rules = (
        ("init_scale", init_scale, 0 < init_scale < float("inf"), "above 0 and finite"),
        ("growth_factor", growth_factor, growth_factor >= 1, "at least 1"),
        ("backoff_factor", backoff_factor, 0 < backoff_factor <= 1, "above 0 and at most 1"),
        (
            "growth_interval",
            growth_interval,
            isinstance(growth_interval, int) and growth_interval >= 1,
            "a whole number of at least 1",
        ),
        ("floor", floor, 0 <= floor <= init_scale, f"at least 0 and at most {init_scale = :g}"),
    )
    for name, value, holds, rule in rules:
        if not holds:
            raise CannotScale(f"{name} = {value!r}: it must be {rule}.")


def check_loss(loss: Tensor, factor: Tensor):
    if not isinstance(loss, Tensor):
        raise CannotScale(f"the loss is a {type(loss).__name__}: scale one tensor at a time.")
    if loss.dtype is torch.float16:
        raise CannotScale(
            f"the loss is fp16, and so would be the gradient it begins with, the scale"
            f" {factor.item():g}: fp16 ends at 65,504. Compute the loss in fp32, from"
            " logits.float()."
        )


def check_group(updated: list[Tensor], group: dist.ProcessGroup | None):
    """Raise CannotScale if a part of what this optimizer updates is on a rank outside of the group:
    that rank would not hear of an overflow, and go on with another scale."""
    if group is None:
        return
    members = dist.get_process_group_ranks(group)
    for other in {other for tensor in updated for other in cut_among(tensor)}:
        if outside := sorted(set(dist.get_process_group_ranks(other)).difference(members)):
            raise CannotScale(
                f"the scaler's group has the ranks {members}, and ranks {outside} have other parts"
                " of the model: give it all ranks that train one model, as by default."
            )


def complaint_of(gradients: Iterable[Tensor]) -> str:
    """The problem of this rank's gradients, or an empty string."""
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            return (
                f"a gradient is {gradient.layout}: only dense ones are unscaled; build embeddings"
                " with sparse=False."
            )
        if gradient.dtype is torch.float16:
            return (
                "the optimizer has fp16 gradients: divided by the scale in fp16 they are zero"
                " again. Give it fp32 parameters, or MasterWeights(parameters, AdamW, ...)."
            )
    return ""


def agreed(scaler, overflow: bool, gradients: list[Tensor], complaint: str) -> bool:
    """Whether any rank has found an overflow; errors are raised on all ranks or on none. One
    message of four numbers: flags, and not the largest gradient, for what MAX makes of NaN is
    the backend's business."""
    together = dist.is_available() and dist.is_initialized()
    on_gpu = together and dist.get_backend(scaler.group) == "nccl"
    flags = torch.tensor(
        [overflow, bool(gradients), bool(complaint), scaler.scaled],
        dtype=torch.float32,
        device="cuda" if on_gpu else "cpu",
    )
    if together:
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=scaler.group)
    found, any_gradient, any_complaint, any_scaled = (flag > 0 for flag in flags.tolist())
    if any_complaint:
        raise CannotScale(complaint or "another rank has gradients that cannot be unscaled.")
    if not any_gradient:
        raise WrongOrder(
            "no parameter of this optimizer has a gradient, so there is nothing to unscale: run"
            " backward first."
        )
    if not any_scaled and scaler.factor != 1:  # in a pipeline the last stage alone scales
        raise WrongOrder(
            "no loss was scaled since the last update(), and the gradients would be divided by"
            f" {scaler.factor.item():g}: call scaler.scale(loss).backward()."
        )
    return found


def check_not_unscaled(scaler, optimizer: torch.optim.Optimizer):
    if optimizer in scaler.stepped:
        raise WrongOrder("unscale_() after step(): look at gradients before the step.")
    look(optimizer)
    if optimizer in scaler.overflown:
        raise WrongOrder(
            "unscale_() a second time since the last update(): the gradients would be divided by"
            " the scale twice. Call it once a step, after the last microbatch."
        )


def check_not_stepped(scaler, optimizer: torch.optim.Optimizer):
    if optimizer in scaler.stepped:
        raise WrongOrder("step() a second time since the last update(): call update() after each.")


def check_no_closure(arguments: list):
    if any(map(callable, arguments)):
        raise CannotScale(
            "step() with a closure: its gradients would still have the scale when the optimizer"
            " takes them; run backward first, and step without a closure."
        )


def check_unscaled(scaler):
    if not scaler.overflown:
        raise WrongOrder("update() without step() or unscale_(): no gradient has been looked at.")


def check_skips(scaler):
    """Raise OverflowEveryStep, on all ranks, once more steps in a row were skipped than may be."""
    if scaler.skips > scaler.most_skips:
        skips, scaler.skips = scaler.skips, 0
        raise OverflowEveryStep(
            f"{skips} steps in a row overflowed, and the scale is {scaler.factor.item():.3g}:"
            f" {cause_of(scaler)}"
        )


def cause_of(scaler) -> str:
    if scaler.loss is not None and not scaler.loss.isfinite().all():
        return (
            f"the loss itself is {scaler.loss.flatten()[0].item()}, so no scale helps. Look at the"
            " batch and at the first activation that is not finite."
        )
    if scaler.backoff_factor == 1:
        return "it is static: take a smaller one, or let it back off by backoff_factor=0.5."
    for optimizer in scaler.overflown:
        for name, parameter in names_of(optimizer):
            if not parameter.isfinite().all():
                return (
                    f"{name} is not finite itself, so no scale helps. Go back to the last"
                    " checkpoint."
                )
        for name, parameter in names_of(optimizer):
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return (
                    f"the loss and the weights are finite, and the gradient of {name} is not. Look"
                    " at what it comes through: a division by zero, a root or a logarithm of zero."
                )
    return "the gradients that overflow are on another rank, whose message names the first."


def names_of(optimizer: torch.optim.Optimizer) -> Iterable[tuple[str, Tensor]]:
    """(name, tensor) of all that the optimizer updates."""
    names = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    for number, tensor in enumerate(updated_by(optimizer)):
        name = names[number] if number < len(names) else f"parameter {number}"
        yield f"{name} of shape {list(tensor.shape)}", tensor
