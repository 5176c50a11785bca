"""Assignment: 16 bits compute, 32 bits remember. README.md beside this file says what to build.

Try it with `python -m shardlab grade mixed_precision`.
"""

import torch
from torch import Tensor


class MasterWeights:
    """Any optimizer, on fp32 copies of 16-bit parameters. `param_groups` are those of the optimizer
    inside, which knows the copies alone."""

    def __init__(self, params, of: type, **settings):
        # TODO: a copy for each 16-bit parameter that is trained; fp32 ones are their own copies
        raise NotImplementedError("MasterWeights is a TODO")

    def take_gradients(self):
        """The copies get the gradients in fp32, added to those they have; the parameters lose
        them."""
        raise NotImplementedError("take_gradients is a TODO")

    def step(self):
        """Take the gradients that are left, update the copies, round them into the parameters."""
        raise NotImplementedError("MasterWeights.step is a TODO")

    def zero_grad(self):
        """No gradient, of a parameter or of a copy."""
        raise NotImplementedError("zero_grad is a TODO")


class LossScaler:
    """The factor that keeps small gradients above zero. `factor` is the scale now: a number or a
    tensor of one."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ):
        raise NotImplementedError("LossScaler is a TODO")

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale. Raises ValueError for a loss in fp16."""
        raise NotImplementedError("scale is a TODO")

    def unscale_(self, optimizer: torch.optim.Optimizer):
        """Divide the gradients that the optimizer updates with, in place; note whether one of them,
        on any rank, is not finite."""
        raise NotImplementedError("unscale_ is a TODO")

    def step(self, optimizer: torch.optim.Optimizer):
        """unscale_ if nobody has; optimizer.step() unless a gradient was not finite."""
        raise NotImplementedError("LossScaler.step is a TODO")

    def update(self):
        """The scale of the next step."""
        raise NotImplementedError("update is a TODO")
