"""16 bits compute, 32 bits remember: master weights, and a scale that keeps gradients in range.

    model.half()
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    scaler = LossScaler()
    scaler.scale(loss).backward()      # gradients are too large by the scale, but not zero
    scaler.unscale_(optimizer)         # only where somebody looks at them: clips, logs
    scaler.step(optimizer)             # unscales if nobody has, and skips a step that overflowed
    scaler.update()                    # halves the scale then, doubles it after 2,000 good steps

A 16-bit weight loses an update that is smaller than half of its spacing, at every step anew. The
fp32 copy takes it, and the weight is the rounding of the copy. bf16 has the range of fp32 and needs
no scale.

Both compose with techniques that send. Make MasterWeights after DistributedDataParallel and tensor
parallelism. Stages 1 and 2 of ZeRO make it of their shards: zero.shard(model, MasterWeights,
stage=1, of=AdamW). In stage 3 the shards are fp32 already. All ranks agree on an overflow.

Micikevicius et al. 2018. The scaler's events are those of torch.amp.GradScaler.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import mixed_precision_checks as checks
from .optimizer_of_copies import OptimizerOfCopies
from .shards import updated_by
from .torch_internals import version


class MasterWeights(OptimizerOfCopies):
    """Any optimizer that updates one parameter after the other, on fp32 copies of 16-bit
    parameters.

    params          parameters, or groups of them, as torch.optim takes them
    of              torch.optim.AdamW, ...; **settings are its arguments
    at_once_bytes   so many bytes of fp32 gradients are made at a time; by default 8 MiB, and at
                    most a third of all

    A scaler or a norm that looks at all gradients finds them in fp32, and the 16-bit ones are
    gone. fp32 parameters are their own masters; frozen ones have none. The param_groups are those
    of the optimizer inside, which knows the masters alone."""

    @torch.no_grad()
    def take_gradients(self):
        """The masters get all gradients, in fp32, and the parameters lose them. Called after each
        microbatch, it adds them up in fp32."""
        for parameter, master in self.pairs:
            if parameter is not master and parameter.grad is not None:
                gradient, parameter.grad = self.in_fp32(parameter), None
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None):
        """PyTorch's optimizers skip a parameter without a gradient. So the inner optimizer updates
        one pile of masters after another, and few gradients exist twice at a time."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        taken = {master: master.grad for _, master in self.pairs}
        for master in taken:
            master.grad = None
        for pile in self.piles():
            for parameter, master in pile:
                self.before_update(parameter, master)
                master.grad = taken[master]
                if master.grad is None and parameter.grad is not None:
                    master.grad = self.in_fp32(parameter)
            self.inner.step()
            for parameter, master in pile:
                self.after_update(parameter, master)
                master.grad = None
        for master, gradient in taken.items():
            master.grad = gradient
        return loss

    def in_fp32(self, parameter: nn.Parameter) -> Tensor:
        return parameter.grad.float()

    def copy_of(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype in (torch.float32, torch.float64):
            return parameter
        return nn.Parameter(parameter.detach().float())

    def before_update(self, parameter: nn.Parameter, master: nn.Parameter):
        """Somebody may have written into the parameter: a checkpoint, ranks that begin alike. Where
        it still is the rounding of its master, the master keeps what rounding takes away."""
        if version(parameter) != self.versions[parameter]:
            same = master.to(parameter.dtype) == parameter
            master.copy_(torch.where(same, master, parameter))

    def after_update(self, parameter: nn.Parameter, master: nn.Parameter):
        if parameter is not master:
            parameter.copy_(master)
        self.versions[parameter] = version(parameter)


class LossScaler:
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
        checks.check_scaler(init_scale, growth_factor, backoff_factor, growth_interval, floor)
        self.factor = torch.tensor(init_scale, dtype=torch.float32)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.good_steps = growth_interval, 0
        self.floor, self.most_skips, self.skips, self.group = floor, most_skips, 0, group
        self.overflown: dict[torch.optim.Optimizer, bool] = {}  # those unscaled since update()
        self.stepped: set[torch.optim.Optimizer] = set()
        self.loss: Tensor | None = None  # the last one, for a message

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, for backward."""
        checks.check_loss(loss, self.factor)
        self.loss = loss.detach()
        return loss * self.factor.to(loss.device)

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer):
        """Divide the gradients by the scale, and find out whether any of them, on any rank, is not
        finite. All ranks call it, once a step."""
        checks.check_not_unscaled(self, optimizer)
        gradients = [p.grad for p in updated_by(optimizer) if p.grad is not None]
        complaint = checks.complaint_of(gradients)
        inverse = self.factor.double().reciprocal().float()
        overflow = not complaint and self.multiply([g for g in gradients if g.numel()], inverse)
        self.overflown[optimizer] = checks.agreed(overflow, gradients, complaint, self.group)

    def multiply(self, gradients: list[Tensor], inverse: Tensor) -> bool:
        """Gradients times the inverse scale, in place; whether any of them was not finite."""
        finite = []
        for gradient in gradients:
            ends = torch.stack(gradient.aminmax())  # a NaN is both of them
            finite.append(ends.isfinite().all())
            gradient.mul_(inverse.to(gradient.device))
        return not all(flag.item() for flag in finite)  # asked when all are under way

    def step(self, optimizer: torch.optim.Optimizer, *args, **named):
        """optimizer.step(), unless a gradient has overflowed. Returns its result, or None."""
        checks.check_not_stepped(self, optimizer)
        if optimizer not in self.overflown:
            self.unscale_(optimizer)
        self.stepped.add(optimizer)
        return None if self.overflown[optimizer] else optimizer.step(*args, **named)

    def update(self):
        """Sets the scale of the next step. Call it once, after the steps of all optimizers."""
        checks.check_unscaled(self)
        if any(self.overflown.values()):
            smaller = self.factor.double() * self.backoff_factor  # rounded once, as GradScaler does
            self.factor = smaller.float().clamp(min=self.floor)
            self.good_steps, self.skips = 0, self.skips + 1
        else:
            self.good_steps, self.skips = self.good_steps + 1, 0
        if self.good_steps == self.growth_interval:
            larger = (self.factor.double() * self.growth_factor).float()
            self.factor = larger if larger.isfinite() else self.factor
            self.good_steps = 0
        checks.check_skips(self)
        self.overflown, self.stepped = {}, set()

    def state_dict(self) -> dict:
        """Under the names of torch.amp.GradScaler, so that each loads the other's."""
        return dict(
            scale=self.factor.item(),
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
            _growth_tracker=self.good_steps,
        )

    def load_state_dict(self, state_dict: dict):
        self.factor = torch.tensor(state_dict["scale"], dtype=torch.float32)
        self.growth_factor = state_dict["growth_factor"]
        self.backoff_factor = state_dict["backoff_factor"]
        self.growth_interval = state_dict["growth_interval"]
        self.good_steps = state_dict["_growth_tracker"]
