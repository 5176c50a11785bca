"""A backward in two halves: what the previous stage waits for, then the weights' gradients.

    later = WeightGradientsLater(stage)     # from now on, backward through its linear layers leaves
    loss.backward()                         # the gradients of weights out, and
    put_off = later.take()                  # here are the products that make them
    make_weight_gradients(put_off)          # weight.grad is what an undivided backward makes

Of the products of a linear layer in backward, dx = dy W is what the rank before needs, and nobody
waits for dW = dyᵀ x. Between the halves x and dy of each layer are kept, and nothing else of the
graph: I frees no memory on balance, so W must not be put off forever (Qi et al. 2024, section 4). A
bias waits with its weight. Every layer that is neither nn.Linear nor a part of one is done in the
first half.

Tensor parallelism cuts dW with the weight, so W sends nothing. With sequence parallelism x is
gathered again in I, and stays whole until W: the ranks of a group would have to meet once more.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.torch_internals import hooks_of_others
from ...tensor_parallel.hardened.layers import CutLinear


class PutOff(NamedTuple):
    """The gradient of a weight from one product, y = x Wᵀ, or of the bias that was added to it."""

    parameter: nn.Parameter
    dy: Tensor  # [..., out]
    x: Tensor | None = None  # [..., in]; None for a bias

    def gradient(self) -> Tensor:
        """[out, in], or [out]"""
        dy = self.dy.flatten(0, -2)
        return dy.sum(0) if self.x is None else dy.t() @ self.x.flatten(0, -2).to(dy.dtype)


class WeightGradientsLater:
    """Puts off the weight gradients of all linear layers in a module, and of a rank's parts of
    them. Backward is undivided for what runs while `at_work` is False, as it is after `with later:`
    has ended: layers outlive a pipeline, and may be in several."""

    def __init__(self, module: nn.Module, at_work: bool = True):
        self.products: list[PutOff] = []
        self.at_work = at_work
        for layer in module.modules():
            own = vars(layer).get("forward")  # another technique's
            run = getattr(own, "func", self.forward_of)
            if type(layer) is nn.Linear and run.__name__ == "forward_of":
                layer.forward = partial(self.forward_of, layer)
            elif isinstance(layer, CutLinear):
                layer.product = self.product

    def __enter__(self):
        self.at_work = True

    def __exit__(self, *error):
        self.at_work = False

    def forward_of(self, layer: nn.Linear, x: Tensor) -> Tensor:
        return self.product(x, layer.weight, layer.bias)

    def product(self, x: Tensor, weight: nn.Parameter, bias: Tensor | None = None) -> Tensor:
        waits = can_wait(weight) and (bias is None or not bias.requires_grad or can_wait(bias))
        if waits and self.at_work and torch.is_grad_enabled():
            return LinearInTwoHalves.apply(x, weight, bias, self)
        return F.linear(x, weight, bias)

    def take(self) -> list[PutOff]:
        """The products so far; the next backward begins with none."""
        products, self.products = self.products, []
        return products


def can_wait(parameter: Tensor) -> bool:
    """Whether autograd itself would do no more than add to parameter.grad."""
    return parameter.requires_grad and parameter.is_leaf and not hooks_of_others(parameter)


class LinearInTwoHalves(torch.autograd.Function):
    """x [..., in] to [..., out]. Backward gives the gradient of x."""

    @staticmethod
    def forward(ctx, x, weight, bias, later):
        ctx.save_for_backward(x)
        # the Parameter itself: under activation checkpointing a saved one would be another tensor
        ctx.weight, ctx.bias, ctx.later = weight, bias, later
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if ctx.needs_input_grad[2]:
            ctx.later.products.append(PutOff(ctx.bias, dy))
        ctx.later.products.append(PutOff(ctx.weight, dy, x.detach()))
        dx = dy @ ctx.weight.to(dy.dtype) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


@torch.no_grad()
def make_weight_gradients(products: list[PutOff]):
    """Add the products to the gradients of their parameters. Where one was used several times, they
    are summed first, as autograd does. What a product keeps is free once it is made."""
    while products:
        parameter = products[0].parameter
        first, *others = (product for product in products if product.parameter is parameter)
        products[:] = (product for product in products if product.parameter is not parameter)
        gradient = first.gradient()
        for product in others:
            gradient += product.gradient()
        gradient = gradient.to(parameter.dtype)
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
