"""torch.amp.GradScaler, made to ask all ranks; the core says what a scale is for.

    scaler.unscale_(optimizer)         # only where somebody looks at the gradients: clips, logs

The events are PyTorch's own, and so is the kernel that looks at a gradient and unscales it in one
pass. Beside it are one message between ranks, a floor, and an end to a run in which every step
overflows.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ...common.shards import cut_among
from ...common.torch_internals import ScalerThatAsks


class CannotScale(ValueError):
    """A scale, a loss or a gradient with which scaling does not do what it is for."""


class OverflowEveryStep(OverflowError):
    """More steps in a row have overflowed than the scaler was given."""


class LossScaler(ScalerThatAsks):
    """The factor that keeps small gradients above zero, and what to do when large ones overflow.

    init_scale        a power of two divides without rounding
    growth_factor     of the scale, after growth_interval steps in a row without an overflow
    backoff_factor    of the scale, after a step with one, which is skipped. Both 1: a static scale
    floor             the scale never falls below it; 0 is GradScaler's
    most_skips        so many steps in a row may overflow; one more raises OverflowEveryStep
    group             the ranks that train one model, along all axes of the mesh; by default the
                      world
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        *,
        floor: float = 0.0,
        most_skips: int = 50,
        group: dist.ProcessGroup | None = None,
    ):
        if not (
            0 <= floor <= init_scale < float("inf")
            and init_scale
            and 0 < backoff_factor <= 1 <= growth_factor
            and growth_interval >= 1
        ):
            raise CannotScale(
                f"{init_scale = }, {growth_factor = }, {backoff_factor = }, {growth_interval = },"
                f" {floor = }: a scale is above 0 and finite, grows by at least 1 after at least 1"
                " step, and backs off by at most 1, to a floor that is not above it."
            )
        super().__init__("cpu", init_scale, growth_interval=growth_interval)
        self.set_growth_factor(growth_factor)
        self.set_backoff_factor(backoff_factor)
        self.floor, self.most_skips, self.skips, self.group = floor, most_skips, 0, group
        self.loss: Tensor | None = None  # the last one, for a message
        self.scaled = self.overflow = False  # since update()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, for backward."""
        if isinstance(loss, Tensor) and loss.dtype is torch.float16:
            raise CannotScale(
                f"the loss is fp16, and so would be the gradient it begins with, the scale"
                f" {self.get_scale():g}: fp16 ends at 65,504. Compute the loss in fp32, from"
                " logits.float()."
            )
        self.loss, self.scaled = loss.detach() if isinstance(loss, Tensor) else None, True
        return super().scale(loss)

    def asked(self, optimizer: torch.optim.Optimizer, found: bool | None) -> bool:
        """Whether any rank has found an overflow; None: this rank has no gradients. One message,
        which raises its errors on all ranks or on none."""
        together = dist.is_available() and dist.is_initialized()
        on_gpu = together and dist.get_backend(self.group) == "nccl"
        flags = torch.tensor(
            [bool(found), found is not None, self.scaled],
            dtype=torch.float32,
            device="cuda" if on_gpu else "cpu",
        )
        if together:
            self.check_group(optimizer)
            dist.all_reduce(flags, dist.ReduceOp.MAX, group=self.group)
        overflow, any_gradient, any_scaled = (flag > 0 for flag in flags.tolist())
        if not any_gradient:
            raise CannotScale("no parameter of this optimizer has a gradient: run backward first.")
        if not any_scaled and self.get_scale() != 1:  # in a pipeline the last stage alone scales
            raise CannotScale(
                "no loss was scaled since the last update(), and the gradients would be divided by"
                f" {self.get_scale():g}: call scaler.scale(loss).backward()."
            )
        self.overflow |= overflow
        if overflow:
            self.first_bad = first_bad(optimizer) or "the message of another rank names a gradient"
        return overflow

    def check_group(self, optimizer: torch.optim.Optimizer):
        """A rank outside of the group would not hear of an overflow, and go on with another
        scale."""
        members = dist.get_process_group_ranks(self.group or dist.group.WORLD)
        for other in {other for tensor in updated(optimizer) for other in cut_among(tensor)}:
            if outside := sorted({*dist.get_process_group_ranks(other)}.difference(members)):
                raise CannotScale(
                    f"the scaler's group has the ranks {members}, and ranks {outside} have other"
                    " parts of the model: give it all ranks that train one model, as by default."
                )

    def update(self):
        """Sets the scale of the next step. Call it once, after the steps of all optimizers."""
        super().update()
        if self.overflow and self.floor:
            super().update(max(self.get_scale(), self.floor))
        self.skips = self.skips + 1 if self.overflow else 0
        self.scaled = self.overflow = False
        if self.skips > self.most_skips:
            skips, self.skips = self.skips, 0
            bad = self.first_bad
            if self.loss is not None and not self.loss.isfinite().all():
                bad = f"the loss itself is {self.loss.item():g}"
            raise OverflowEveryStep(
                f"{skips} steps in a row overflowed, and the scale is {self.get_scale():.3g}:"
                f" {bad}. A smaller scale is of no use, or a static one is too large."
            )


def updated(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for param_group in optimizer.param_groups for p in param_group["params"]]


def first_bad(optimizer: torch.optim.Optimizer) -> str:
    """The first tensor that is not finite, or whose gradient is not, in words."""
    names = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    original = {copy: p for p, copy in getattr(optimizer, "pairs", ())}
    for number, tensor in enumerate(updated(optimizer)):
        name = names[number] if number < len(names) else f"parameter {number}"
        what = f"{name} of shape {list(tensor.shape)}"
        if not tensor.isfinite().all():
            return f"{what} is not finite itself"
        for one in (tensor.grad, original.get(tensor, tensor).grad):
            if one is not None and not one.isfinite().all():
                return f"the gradient of {what} is not finite"
    return ""
