"""Weight gradients that are made while the gradient of a module's input travels.

    late = LateGradients()
    with late.weights_of(module):
        y = module(EnterLate.apply(x, group, late))
    y.backward(dy)

Within, a layer multiplies by a view of its weight. Backward of a product makes the gradient of the
product's input and puts that of the weight off, product by product, up to the input x. The gradient
of x is made there, in the order in which it is sent. The message leaves, all that was put off is
made, and the message is waited for. The gradients reach the weights through the views, so hooks of
other techniques see them as ever.

    x ---- EnterLate ---- product ---- product ---- y
    weights -- Views -------'------------'

Views are made before the rest, so autograd comes to them last.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import is_autocast_available

from ...common.torch_internals import current_backward, hooks_of_others
from .layers import CutLinear
from .sequence import Regathered


class LateGradients:
    """The weight gradients of one run of a module, and those of its input. `regathered` is a weak
    reference: tokens that are gathered again die with autograd's last use of them."""

    def __init__(self):
        self.regathered: Callable[[], Regathered | None] = lambda: None
        self.backward: int | None = None  # to which the products and gradients below belong
        self.products: list[tuple[int, Tensor, Tensor]] = []  # (number of the weight, x, dy)
        self.of_input: list[tuple[Tensor, Tensor]] = []  # (dy, weight), of products of the input
        self.made: dict[int, Tensor] = {}

    @contextmanager
    def weights_of(self, module: nn.Module) -> Iterator[None]:
        """A layer whose product another technique makes, as a pipeline does that divides backward,
        is left alone."""
        layers = [
            layer
            for layer in module.modules()
            if isinstance(layer, CutLinear) and "product" not in vars(layer)
        ]
        layers = [layer for layer in layers if layer.weight.requires_grad]
        if not layers or not torch.is_grad_enabled():
            yield
            return
        for number, view in enumerate(Views.apply(self, *(layer.weight for layer in layers))):
            layers[number].product = LateProduct(self, number, view)
        try:
            yield
        finally:
            for layer in layers:
                del layer.product

    def ask(self):
        """Begin a message that they need."""
        if (tokens := self.regathered()) is not None:
            tokens.ask()

    def put_off(self, number: int, x: Tensor, dy: Tensor, weight: Tensor | None = None):
        """With a weight, the gradient of x as well: x is the module's input."""
        self.begin()
        self.products.append((number, x, dy))
        if weight is not None:
            self.of_input.append((dy, weight))

    def begin(self):
        """Forget what a backward left behind that ended before it came here."""
        if self.backward != current_backward():
            self.backward, self.products, self.of_input, self.made = current_backward(), [], [], {}

    def input_gradient(self, other: Tensor | None, by_rank: Callable) -> Tensor | None:
        """The gradient of the module's input in new memory [ranks, B, S / ranks, ..., in], for
        which `by_rank` makes a view of [B, S, ..., out]. `other` is what autograd knows of it. None
        where no product was put off."""
        self.begin()
        total = None
        while self.of_input:
            dy, weight = self.of_input.pop(0)
            total = add_product(total, by_rank(dy), weight)
        return total if total is None or other is None else total.add_(by_rank(other))

    def make(self) -> dict[int, Tensor]:
        """All that was put off, by the number of the weight."""
        self.begin()
        while self.products:
            number, x, dy = self.products.pop(0)
            self.made[number] = gradient_of_weight(x, dy, self.made.get(number))
        return self.made


def gradient_of_weight(x: Tensor, dy: Tensor, before: Tensor | None = None) -> Tensor:
    """[out, in], added to what was made before."""
    columns, rows = dy.reshape(-1, dy.shape[-1]).t(), x.reshape(-1, x.shape[-1])
    return columns @ rows if before is None else torch.addmm(before, columns, rows, out=before)


def add_product(total: Tensor | None, dy: Tensor, weight: Tensor) -> Tensor:
    """The total and dy [ranks, B, S / ranks, ..., out] times the weight, in the total's memory."""
    to = dy.new_empty(*dy.shape[:-1], weight.shape[1]) if total is None else total
    for rows, sums in zip(matrices(dy), matrices(to)):
        weights = weight.expand(len(rows), *weight.shape)
        if total is None:
            torch.bmm(rows, weights, out=sums)
        else:
            torch.baddbmm(sums, rows, weights, out=sums)
    return to


def matrices(x: Tensor) -> list[Tensor]:
    """[ranks, B, S / ranks, ..., n] as [ranks, rows, n] of each sequence, or all in one."""
    if 1 in x.shape[:2]:
        return [x.reshape(1, -1, x.shape[-1])]
    return [sequence.flatten(1, -2) for sequence in x.unbind(1)]


class LateProduct(NamedTuple):
    """The product of a layer within, instead of F.linear."""

    late: LateGradients
    number: int
    view: Tensor

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x, view, bias = as_autocast_does(x, self.view, bias)
        return LinearLate.apply(x, view, bias, self)

    def put_off(self, x: Tensor, dy: Tensor, weight: Tensor | None = None) -> Tensor | None:
        """The gradient itself where gradients of gradients are wanted."""
        if torch.is_grad_enabled():
            return gradient_of_weight(x, dy)
        return self.late.put_off(self.number, x, dy, weight)


def as_autocast_does(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors that F.linear multiplies under autocast. Cast before, they are what autograd
    keeps. The meta device, on which a pipeline is planned, has no autocast."""
    kind = tensors[0].device.type
    if not is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return list(tensors)
    to, stays = torch.get_autocast_dtype(kind), (None, torch.float64)
    return [x if getattr(x, "dtype", None) in stays else x.to(to) for x in tensors]


# --- autograd functions ---------------------------------------------------------------------------


class LinearLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, product):
        ctx.save_for_backward(x, weight)
        ctx.product = product
        is_watched = x.retains_grad or hooks_of_others(x)  # its gradient on the way
        ctx.is_first = getattr(x.grad_fn, "late", None) is product.late and not is_watched
        y = x.new_empty(*x.shape[:-1], len(weight))  # no view, so that it can be changed in place
        rows, made = (t.reshape(-1, t.shape[-1]) for t in (x, y))
        if bias is None:
            torch.mm(rows, weight.t(), out=made)
        else:
            torch.addmm(bias, rows, weight.t(), out=made)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        of_input = ctx.is_first and ctx.needs_input_grad[0] and not torch.is_grad_enabled()
        dx = dy @ weight if ctx.needs_input_grad[0] and not of_input else None
        db = dy.reshape(-1, dy.shape[-1]).sum(0) if ctx.needs_input_grad[2] else None
        dw = ctx.product.put_off(x, dy, weight if of_input else None)
        return dx, dw, db, None


class Views(torch.autograd.Function):
    """Weights, whose gradients come late."""

    @staticmethod
    def forward(ctx, late, *weights):
        ctx.set_materialize_grads(False)
        ctx.late = late
        return tuple(weight.detach() for weight in weights)

    @staticmethod
    def backward(ctx, *gradients):
        made, ctx.late.made = ctx.late.make(), {}
        late = (made.get(number) for number in range(len(gradients)))
        return None, *map(either_or_sum, gradients, late)


def either_or_sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
