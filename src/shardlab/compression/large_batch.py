"""Optimizers of the large batch that fewer, larger messages want: a layer's step is in proportion
to its weights (You et al. 2017, 2020).

    optimizer = LARS(model.parameters(), lr=1.0, weight_decay=1e-4)     # SGD with a rate a layer
    optimizer = LAMB(model.parameters(), lr=2e-3, weight_decay=0.01)    # Adam with a rate a layer

Both are elementwise in nothing: a shard's norm is not its layer's, so they go with data parallelism
and not with ZeRO. Vectors, biases and norms among them, have the plain step, as in both papers'
code.
"""

import torch
from torch import Tensor


def trust(p: Tensor, update: Tensor) -> Tensor | float:
    """The norm of the weights over that of the step; 1 where either is 0, and for vectors."""
    weights, step = p.norm(), update.norm()
    usual = (weights == 0) | (step == 0)
    return 1.0 if p.dim() < 2 else torch.where(usual, 1.0, weights / step)


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr=1.0, momentum=0.9, weight_decay=0.0, coefficient=0.001):
        settings = dict(
            lr=lr, momentum=momentum, weight_decay=weight_decay, coefficient=coefficient
        )
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self):
        for one in self.param_groups:
            for p in filter(lambda p: p.grad is not None, one["params"]):
                update = p.grad + one["weight_decay"] * p
                rate = one["coefficient"] * trust(p, update) if p.dim() > 1 else 1.0
                speed = one["momentum"] * self.state[p].get("speed", 0) + one["lr"] * rate * update
                self.state[p]["speed"] = speed
                p.sub_(speed)


class LAMB(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for one in self.param_groups:
            (beta, beta2), state = one["betas"], self.state
            for p in filter(lambda p: p.grad is not None, one["params"]):
                steps = state[p]["step"] = state[p].get("step", 0) + 1
                mean = beta * state[p].get("mean", 0) + (1 - beta) * p.grad
                square = beta2 * state[p].get("square", 0) + (1 - beta2) * p.grad.square()
                state[p].update(mean=mean, square=square)
                scale = (square / (1 - beta2**steps)).sqrt() + one["eps"]
                update = mean / (1 - beta**steps) / scale + one["weight_decay"] * p
                p.sub_(one["lr"] * trust(p, update) * update)
