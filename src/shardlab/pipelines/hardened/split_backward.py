"""A backward in two halves: what the previous stage waits for, then the weights' gradients.

    later = WeightGradientsLater(stage)     # from now on, backward through its linear layers leaves
    loss.backward()                         # the gradients of weights out, and
    put_off = later.take()                  # here are the products that make them
    make_weight_gradients(put_off)          # weight.grad is what an undivided backward makes

The products of a linear layer are twice as many in backward as in forward: dx = dy W, which the
rank before needs, and dW = dyᵀ x, which nobody waits for. Between the halves x and dy of each
layer are kept, and nothing else of the graph: I frees no memory on balance, so W must not be put
off forever (Qi et al. 2024, section 4). Biases, norms and embeddings are small and are done in
the first half, and so is every layer that is neither nn.Linear nor a part of one.

Tensor parallelism cuts dW with the weight, so W sends nothing. With sequence parallelism x is
gathered again in I, and stays whole until W: the ranks of a group would have to meet once more.

PyTorch's own pipelines split the same backward from outside, with hooks on the nodes where the
gradients of weights begin, and keep the whole graph until W.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.torch_internals import hooks_of_others
from ...tensor_parallel.hardened.layers import CutLinear


class PutOff(NamedTuple):
    """The gradient of one weight from one product: y = x Wᵀ."""

    weight: nn.Parameter
    x: Tensor  # [..., in]
    dy: Tensor  # [..., out]


class WeightGradientsLater:
    """Puts off the weight gradients of all linear layers in a module, and of a rank's parts of
    them. Backward is undivided for what runs while `at_work` is False, as it is after `with later:`
    has ended: layers outlive a pipeline, and may be in several."""

    def __init__(self, module: nn.Module, at_work: bool = True):
        self.products: list[PutOff] = []
        self.at_work = at_work
        for layer in module.modules():
            if type(layer) is nn.Linear:
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
        if self.at_work and torch.is_grad_enabled() and can_wait(weight):
            return LinearInTwoHalves.apply(x, weight, bias, self)
        return F.linear(x, weight, bias)

    def take(self) -> list[PutOff]:
        """The products so far; the next backward begins with none."""
        products, self.products = self.products, []
        return products


def can_wait(weight: Tensor) -> bool:
    """Whether autograd itself would do no more than add to weight.grad."""
    return weight.requires_grad and weight.is_leaf and not hooks_of_others(weight)


class LinearInTwoHalves(torch.autograd.Function):
    """x [..., in] to [..., out]. Backward gives the gradients of x and of the bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, later):
        ctx.save_for_backward(x)
        # the Parameter itself: under activation checkpointing a saved one would be another tensor
        ctx.weight, ctx.later = weight, later
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        ctx.later.products.append(PutOff(ctx.weight, x.detach(), dy))
        dx = dy @ ctx.weight.to(dy.dtype) if ctx.needs_input_grad[0] else None
        db = dy.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return dx, None, db, None


@torch.no_grad()
def make_weight_gradients(products: list[PutOff]):
    """Add the products to the gradients of their weights. Where a weight was used several times,
    they are summed first, as autograd does. What a product keeps is free once it is made."""
    while products:
        weight = products[0].weight
        first, *others = (product for product in products if product.weight is weight)
        products[:] = (product for product in products if product.weight is not weight)
        gradient = product_of(first)
        for product in others:
            gradient += product_of(product)
        gradient = gradient.to(weight.dtype)
        weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)


def product_of(product: PutOff) -> Tensor:
    """[out, in]"""
    return product.dy.flatten(0, -2).t() @ product.x.flatten(0, -2).to(product.dy.dtype)
