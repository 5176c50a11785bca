"""Activation checkpointing at its smallest: functions of one tensor, without random numbers.
Chapter 10 prints both ways, and what the core adds to each (shardlab/recompute/core.py).

    y = SmallestByFunction.apply(block, x)
    y = SmallestByHooks(block).first_run(x)
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class SmallestByFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):  # autograd records nothing in here
        ctx.save_for_backward(x)
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class SmallestByHooks:
    """One call of a function. Activations are known by their number: both runs make the same ones
    in the same order."""

    def __init__(self, function: Callable):
        self.function, self.packed = function, 0
        self.again: dict[int, Tensor] = {}  # activations of the second run

    def first_run(self, x: Tensor) -> Tensor:
        self.x = x
        with saved_tensors_hooks(self.pack, self.unpack):
            return self.function(x)

    def pack(self, activation: Tensor) -> int:
        self.packed += 1
        return self.packed - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.again:
            self.run_again()
        return self.again[number]

    def run_again(self):
        self.again, self.made = {}, 0
        hooks = saved_tensors_hooks(self.pack_again, lambda activation: activation)
        with torch.enable_grad(), hooks:
            self.function(self.x)

    def pack_again(self, activation: Tensor) -> Tensor:
        self.again[self.made] = activation
        self.made += 1
        return activation
