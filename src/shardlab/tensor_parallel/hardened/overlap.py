"""Tensor parallelism whose messages travel while the GPU multiplies.

    plan = overlapped(gpt_plan(config), chunks=2)     # or of sequence_parallel(gpt_plan(config))
    apply_tensor_parallel(model, plan, group)

Forward, a row layer multiplies its tokens in chunks, and the sum of a chunk travels while the next
one is multiplied. Backward, the gradients of weights are made last, while the gradient of the
module's input travels:

    compute     | rows 1 | rows 2 |                    | dx of rows | dx of columns | dW of both |
    messages             | sum 1  | sum 2 |                                         | sum of dx  |

With sequence parallelism dW of the rows hides the tokens that are gathered again, and dW of the
columns hides the reduce-scatter of dx. With one chunk, backward alone overlaps.

Within a module a layer multiplies by a view of its weight. Backward of a product makes the gradient
of the product's input and puts that of the weight off, product by product, up to the input x:

    x ---- EnterLate ---- product ---- product ---- y
    weights -- Views -------'------------'

The gradient of x is made there, in memory from which it is sent: the sum of dx takes the place of
dx, and with sequence parallelism dx is multiplied in the order of ranks, while the gathered tokens
are still there. The message leaves, all that was put off is made, and the message is waited for.
The gradients reach the weights through the views, which autograd comes to last, so hooks of other
techniques see them as ever. A step of a GPT peaks no higher than without overlap. A layer alone,
without a model around it, keeps the rows' input longer.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import is_autocast_available

from ...common.collective_wire import Group, place
from ...common.torch_internals import current_backward, hooks_of_others
from .. import core
from .layers import CutLinear, Parts, RowLinear
from .pairs import (
    begin_gather,
    begin_scatter,
    begin_sum,
    enter,
    gather,
    leave,
    reduce_scatter,
    tokens_by_rank,
)
from .plan import Around, Rows, TensorPlan, Whole
from .sequence import AroundGathered, Regathered


def overlapped(plan: TensorPlan, chunks: int = 1) -> dict[str, tuple[Whole, ...]]:
    """The plan with messages that overlap with products. A kind of entry or a join of your own
    stays as it is. Linear layers whose weight gradients a pipeline puts off overlap no messages.

    Raises ValueError for fewer than one chunk."""
    if isinstance(chunks, bool) or not isinstance(chunks, int) or chunks < 1:
        raise ValueError(f"chunks = {chunks!r}: a row layer's tokens are cut into 1 chunk or more.")

    def overlaps(entry: Whole) -> Whole:
        if type(entry) is Around:
            return AroundLate()
        if type(entry) is AroundGathered:
            return AroundGatheredLate(entry.regather)
        if type(entry) is Rows and entry.join in (leave, reduce_scatter):
            return RowsByChunks(entry.pieces, entry.heads, entry.join, chunks)
        return entry

    return {
        name: tuple(map(overlaps, entry if isinstance(entry, tuple) else (entry,)))
        for name, entry in plan.items()
    }


@dataclass(frozen=True)
class RowsByChunks(Rows):
    chunks: int = 1

    def split(self, module: nn.Linear, parts: Parts) -> RowLinear:
        return RowsInChunks(self.chunks, module, self.cuts(module), parts, self.join)


class AroundLate(Around):
    """Around, with weight gradients that are made while the gradient of x travels."""

    def run(self, module: nn.Module, compute: Callable, group, x: Tensor) -> Tensor:
        late = LateGradients()
        with late.weights_of(module):
            return compute(EnterLate.apply(x, group, late))


class AroundGatheredLate(AroundGathered):
    def run(self, module: nn.Module, compute: Callable, group, x: Tensor) -> Tensor:
        late = LateGradients()
        with late.weights_of(module):
            whole = EnterLate.apply(x, group, late, True, not self.regather)
            if not self.regather:
                return compute(whole)
            kept = Regathered(whole, x, group)
            late.regathered = weakref.ref(kept)
            with kept.hooks():
                return compute(whole)


# --- backward: weight gradients while the gradient of the input travels ---------------------------


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


def weight_gradient(
    late: LateProduct | None, x: Tensor, dy: Tensor, weight: Tensor | None = None
) -> Tensor | None:
    """At once, or put off: not where gradients of gradients are wanted."""
    if late is None or torch.is_grad_enabled():
        return gradient_of_weight(x, dy)
    return late.late.put_off(late.number, x, dy, weight)


def as_autocast_does(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors that F.linear multiplies under autocast. Cast before, they are what autograd
    keeps. The meta device, on which a pipeline is planned, has no autocast."""
    kind = tensors[0].device.type
    if not is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return list(tensors)
    to, stays = torch.get_autocast_dtype(kind), (None, torch.float64)
    return [x if getattr(x, "dtype", None) in stays else x.to(to) for x in tensors]


class EnterLate(torch.autograd.Function):
    """In front of columns: as `enter` is or, where ranks have own tokens, as `gather` is. The
    gradients of all tokens may give their memory to the sum `in_place`."""

    @staticmethod
    def forward(ctx, x, group, late, own_tokens=False, in_place=False):
        ctx.set_materialize_grads(False)
        ctx.group, ctx.late, ctx.own_tokens, ctx.in_place = group, late, own_tokens, in_place
        return gather(x, group) if own_tokens else x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        if torch.is_grad_enabled():
            summed = reduce_scatter if ctx.own_tokens else core.leave
            return summed(dx, ctx.group), None, None, None, None
        by_rank = lambda y: tokens_by_rank(y, ctx.group) if ctx.own_tokens else y.unsqueeze(0)
        parts = ctx.late.input_gradient(dx, by_rank)
        if parts is None and dx is not None:  # no product was put off, and dx is autograd's
            parts = by_rank(dx).clone(memory_format=torch.contiguous_format)
        if parts is None:
            return None, None, None, None, None
        if ctx.own_tokens:
            _, me = place(ctx.group)
            own = parts[me] if ctx.in_place else torch.empty_like(parts[0])
            wait = begin_scatter(own, parts, ctx.group)
        else:
            own, wait = parts[0], begin_sum(parts[0], ctx.group)
        ctx.late.make()
        wait()
        return own.clone() if ctx.in_place else own, None, None, None, None


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
        dw = weight_gradient(ctx.product, x, dy, weight if of_input else None)
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


# --- forward: row layers that multiply their tokens in chunks -------------------------------------
#
#                      forward                        backward
#    SummedChunks      products and all-reduces       nothing is sent, as with `leave`
#    ScatteredChunks   products and reduce-scatters   all-gathers and products
#
# A chunk that is scattered has tokens that each rank will own, so x is put in the order of ranks
# first. A plain layer does that to the product, which is wider.


class RowsInChunks(RowLinear):
    """A RowLinear joined by `leave` or `reduce_scatter`."""

    def __init__(self, chunks: int, *layer):
        super().__init__(*layer)
        self.chunks = chunks

    def forward(self, x: Tensor) -> Tensor:  # [..., in/t]
        late = vars(self).get("product")
        if late is not None and not isinstance(late, LateProduct):
            return super().forward(x)
        x, weight = as_autocast_does(x, self.weight if late is None else late.view)
        rows = SummedChunks if self.join is leave else ScatteredChunks
        y = rows.apply(x, weight, self.group, self.chunks, late)  # [..., out]
        return y if self.bias is None else y.add_(self.bias)


class SummedChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group, chunks, late):
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.late = group, late
        y = x.new_empty(*x.shape[:-1], len(weight))
        waits = []
        for own, total in zip(chunks_of(x, chunks), chunks_of(y, chunks)):
            torch.mm(own, weight.t(), out=total)
            waits.append(begin_sum(total, group))
        for wait in waits:
            wait()
        return y

    @staticmethod
    def backward(ctx, dy):
        if torch.is_grad_enabled():  # the gradients of all ranks will be made of this one
            dy = enter(dy, ctx.group)
        x, weight = ctx.saved_tensors
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        dw = weight_gradient(ctx.late, x, dy) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None, None


class ScatteredChunks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group, chunks, late):
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.chunks, ctx.late = group, chunks, late
        parts = in_order_of_ranks(x, group)  # [t, tokens, in/t]
        n, sequence = len(parts), x.shape[1]
        own = x.new_empty(len(x), sequence // n, *x.shape[2:-1], len(weight))
        leaving = []
        for part, total in zip(parts.chunk(chunks, 1), chunks_of(own, chunks)):
            terms = F.linear(part, weight)
            leaving.append((terms, begin_scatter(total, terms, group)))
        for _, wait in leaving:
            wait()
        return own

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            dy = gather(dy, ctx.group)
            return dy @ weight, weight_gradient(ctx.late, x, dy), None, None, None
        coming = [begin_gather(own, ctx.group) for own in chunks_of(dy, ctx.chunks)]
        ctx.maybe_clear_saved_tensors()  # unless the graph is kept: x goes after its last use here
        batch, extra = len(x), x.shape[2:-1]
        parts = list(in_order_of_ranks(x, ctx.group).chunk(ctx.chunks, 1))
        ask = ctx.late.late.ask if ctx.late is not None else lambda: None
        if len(parts) < 3:  # of more, the first one's products are over before all have come
            ask()
        x, dw, dxs = None, None, []
        while parts:
            part, (dys, wait) = parts.pop(0), coming.pop(0)
            wait()
            if ctx.needs_input_grad[1]:
                dw = gradient_of_weight(part, dys, dw)
            part = None  # the last one goes before it has a gradient
            dxs.append(dys @ weight)
            dys = None
            ask()
        dx = dxs[0] if len(dxs) == 1 else torch.cat(dxs, 1)
        dx = dx.unflatten(1, (batch, -1, *extra)).movedim(0, 1).flatten(1, 2)
        return dx, dw, None, None, None


def chunks_of(x: Tensor, chunks: int) -> tuple[Tensor, ...]:
    """Chunks of the tokens, [tokens, ...]"""
    return x.reshape(-1, x.shape[-1]).chunk(chunks)


def in_order_of_ranks(x: Tensor, group: Group) -> Tensor:
    """x [B, S, ..., in/t] to [t, tokens of a rank, in/t]."""
    return tokens_by_rank(x, group).flatten(1, -2).contiguous()
