"""The core of mixed precision: a model that computes in 16 bits, updates in 32, and a loss that is
scaled so that fp16 gradients do not vanish.

    model = GPT(config).to(torch.float16)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    scaler = LossScaler()
    scaler.scale(loss).backward()
    scaler.step(optimizer)             # unscales, and skips a step whose gradients are not finite
    scaler.update()                    # the next scale
    optimizer.zero_grad()

An update is often smaller than half the spacing of 16-bit numbers, and would be lost: the optimizer
inside updates fp32 copies, and the model gets them rounded. Micikevicius et al. 2018, section 3.
bf16 has the range of fp32, so bf16 needs the copies and not the scaler.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn


class MasterWeights:
    """An optimizer of fp32 copies of 16-bit parameters. fp32 and fp64 parameters have no copy.

    params    the trained parameters; `of` is torch.optim.AdamW, ..., and settings are for it

    A value that is written into a parameter between steps, as a checkpoint's, replaces its copy."""

    def __init__(self, params, of: type, **settings):
        self.pairs = []  # (parameter, its copy, or itself)
        for p in params:
            if p.requires_grad:
                wide = p.dtype in (torch.float32, torch.float64)
                self.pairs.append((p, p if wide else nn.Parameter(p.detach().float())))
        self.inner = of([copy for _, copy in self.pairs], **settings)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def take_gradients(self):
        """16-bit gradients become gradients of the copies, which add them up in fp32."""
        for p, copy in self.pairs:
            if p is not copy and p.grad is not None:
                gradient, p.grad = p.grad.float(), None
                copy.grad = gradient if copy.grad is None else copy.grad + gradient

    @torch.no_grad()
    def step(self):
        self.take_gradients()
        for p, copy in self.pairs:
            if p is not copy:
                same = copy.to(p.dtype) == p  # else somebody wrote into the parameter
                copy.copy_(torch.where(same, copy, p.float()))
        self.inner.step()
        for p, copy in self.pairs:
            if p is not copy:
                p.copy_(copy)

    def zero_grad(self):
        for p, copy in self.pairs:
            p.grad = copy.grad = None


class LossScaler:
    """A factor for the loss, as large as the gradients allow: Micikevicius et al. 2018, 3.2.

    init_scale        the first factor
    growth_factor     of the scale, after `growth_interval` steps in a row with finite gradients
    backoff_factor    of the scale, after a step in which a gradient was not finite; it is skipped
    group             the ranks that skip together: where one has infinity, all do

    Raises ValueError for a scale that is not above 0 and finite, and for a loss in fp16;
    RuntimeError for calls out of order."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        group: dist.ProcessGroup | None = None,
    ):
        if not 0 < init_scale < math.inf:
            raise ValueError(f"init_scale = {init_scale}: it must be above 0 and finite.")
        self.factor, self.growth, self.backoff = init_scale, growth_factor, backoff_factor
        self.interval, self.good_steps, self.group = growth_interval, 0, group
        self.found: dict = {}  # optimizer -> whether a gradient is not finite
        self.stepped: set = set()

    def scale(self, loss: Tensor) -> Tensor:
        if loss.dtype is torch.float16:
            raise ValueError("the loss is fp16, which ends at 65,504: compute it in fp32.")
        return loss * self.factor

    @torch.no_grad()
    def unscale_(self, optimizer):
        """Divide the gradients by the scale. The host waits once, to learn whether all are finite;
        step() calls it unless you have, say to clip."""
        if optimizer in self.found:
            raise RuntimeError("unscale_ twice: call update() first.")
        if hasattr(optimizer, "take_gradients"):
            optimizer.take_gradients()
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in trained if p.grad is not None]
        bad = torch.zeros(1, device=trained[0].device)
        for gradient in gradients:
            gradient.mul_(1 / self.factor)
            bad += (~gradient.isfinite()).any()
        if dist.is_initialized():
            dist.all_reduce(bad, group=self.group)
        self.found[optimizer] = bool(bad)

    def step(self, optimizer):
        if optimizer in self.stepped:
            raise RuntimeError("step twice: call update() first.")
        if optimizer not in self.found:
            self.unscale_(optimizer)
        self.stepped.add(optimizer)
        if not self.found[optimizer]:
            optimizer.step()

    def update(self):
        if not self.found:
            raise RuntimeError("update without a step.")
        if any(self.found.values()):
            self.factor, self.good_steps = self.factor * self.backoff, 0
        else:
            self.good_steps += 1
            if self.good_steps == self.interval:
                self.good_steps = 0
                if self.factor * self.growth < 2.0**128:  # where fp32 ends
                    self.factor *= self.growth
        self.found, self.stepped = {}, set()
