"""A scale that keeps 16-bit gradients in range.

    scaler = LossScaler()
    scaler.scale(loss).backward()      # gradients are too large by the scale, but not zero
    scaler.unscale_(optimizer)         # only where somebody looks at them: clips, logs
    scaler.step(optimizer)             # unscales if nobody has, and skips a step that overflowed
    scaler.update()                    # halves the scale then, doubles it after 2,000 good steps

bf16 has the range of fp32 and needs no scale. All ranks agree on an overflow. The scaler stands
alone beside the core's: it rounds as GradScaler does and checks every call, so no method is shared.

Micikevicius et al. 2018. The scaler's events are those of torch.amp.GradScaler.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from ...common.shards import updated_by
from .. import core
from . import scaler_checks as checks


class LossScaler:
    """The factor that keeps small gradients above zero, and what to do when large ones overflow.

    init_scale        a power of two divides without rounding
    growth_factor     of the scale, after growth_interval steps in a row without an overflow
    backoff_factor    of the scale, after a step with one, which is skipped. Both 1: a static scale
    floor             the scale never falls below it; 0 is GradScaler's
    most_skips        so many steps in a row may overflow; one more raises OverflowEveryStep
    group             the ranks that train one model, along all axes of the mesh; by default the
                      world
    hardened          False gives the core's LossScaler, without floor and most_skips
    """

    def __new__(cls, *args, hardened: bool = True, **named):
        if hardened:
            return super().__new__(cls)
        if cls is not LossScaler or {"floor", "most_skips"}.intersection(named):
            raise checks.CannotScale(
                f"{cls.__name__} with hardened=False: the core has neither floor nor most_skips,"
                " and no faster variant; leave hardened=False out."
            )
        return core.LossScaler(*args, **named)

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
        hardened: bool = True,
    ):
        checks.check_scaler(init_scale, growth_factor, backoff_factor, growth_interval, floor)
        self.factor = torch.tensor(init_scale, dtype=torch.float32)
        self.growth_factor, self.backoff_factor = growth_factor, backoff_factor
        self.growth_interval, self.good_steps = growth_interval, 0
        self.floor, self.most_skips, self.skips, self.group = floor, most_skips, 0, group
        self.overflown: dict[torch.optim.Optimizer, bool] = {}  # those unscaled since update()
        self.stepped: set[torch.optim.Optimizer] = set()
        self.loss: Tensor | None = None  # the last one, for a message
        self.scaled = False  # since update()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale, for backward."""
        checks.check_loss(loss, self.factor)
        self.loss, self.scaled = loss.detach(), True
        return loss * self.factor  # a number on the host: a GPU takes it as it is

    @torch.no_grad()
    def unscale_(self, optimizer: torch.optim.Optimizer):
        """Divide the gradients by the scale, and find out whether any of them, on any rank, is not
        finite. All ranks call it, once a step."""
        checks.check_not_unscaled(self, optimizer)
        updated = updated_by(optimizer)
        checks.check_group(updated, self.group)
        gradients = [p.grad for p in updated if p.grad is not None]
        complaint = checks.complaint_of(gradients)
        inverse = self.factor.double().reciprocal().float()
        overflow = not complaint and self.multiply([g for g in gradients if g.numel()], inverse)
        self.overflown[optimizer] = checks.agreed(self, overflow, gradients, complaint)

    def multiply(self, gradients: list[Tensor], inverse: Tensor) -> bool:
        """Gradients times the inverse scale, in place; whether any of them was not finite."""
        finite: dict[torch.device, Tensor] = {}
        for gradient in gradients:
            ends = torch.stack(gradient.aminmax())  # a NaN is both of them
            good = ends.isfinite().all()
            finite[gradient.device] = good & finite.get(gradient.device, True)
            gradient.mul_(inverse)
        return not all(flag.item() for flag in finite.values())  # one question for each device

    def step(self, optimizer: torch.optim.Optimizer, *args, **named):
        """optimizer.step(), unless a gradient has overflowed. Returns its result, or None."""
        checks.check_not_stepped(self, optimizer)
        checks.check_no_closure([*args, *named.values()])
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
        self.overflown, self.stepped, self.scaled = {}, set(), False

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
