"""Mixed precision at its smallest: fp32 copies of 16-bit weights, and a loss scale that never
changes. Chapter 9 prints both, and what the core adds to each (shardlab/mixed_precision/core.py).
"""

import torch
from torch import Tensor, nn


class SmallestMasters:
    """An optimizer of fp32 copies of 16-bit parameters."""

    def __init__(self, params, of: type, **settings):
        self.pairs = [(p, nn.Parameter(p.detach().float())) for p in params]
        self.inner = of([copy for _, copy in self.pairs], **settings)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def take_gradients(self):
        for p, copy in self.pairs:
            if p.grad is not None:
                copy.grad, p.grad = p.grad.float(), None

    @torch.no_grad()
    def step(self):
        self.take_gradients()
        self.inner.step()
        for p, copy in self.pairs:
            p.copy_(copy)  # rounds


class SmallestScaler:
    """A factor for the loss."""

    def __init__(self, factor: float = 2.0**16):
        self.factor = factor

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.factor

    @torch.no_grad()
    def unscale_(self, optimizer):
        if hasattr(optimizer, "take_gradients"):
            optimizer.take_gradients()
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in trained if p.grad is not None]
        for gradient in gradients:
            gradient.mul_(1 / self.factor)

    def step(self, optimizer):
        self.unscale_(optimizer)
        optimizer.step()
