"""Chapter 7: tensor and sequence parallelism. What readers write runs on thread ranks: no check can
hang."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.flop_counter import flop_registry

from coursekit.exercises.answers import drawn, nine_digits
from coursekit.exercises.checker import Exercise, Misconception
from coursekit.exercises.thread_ranks import value_of_ranks
from coursekit.lab import far
from shardlab.common.torch_internals import TorchDispatchMode
from shardlab.gpt import next_token_loss
from shardlab.ranks import rank_device
from shardlab.tensor_parallel import sum_gradients, vocabulary_parallel_loss
from shardlab.tensor_parallel.hardened.full_parameters import cuts_of


def _pairs(dist):
    """enter and leave of the hardened pairs on thread ranks, and how often they sent forward and
    backward."""
    sent = SimpleNamespace(forward=0, backward=0)

    def summed(x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            sent.backward += 1
            return summed(gradient)

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            sent.forward += 1
            return summed(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return Enter.apply, Leave.apply, sent


# --- an MLP on several ranks ----------------------------------------------------------------------


def _elements(factor) -> int:
    return factor.numel() if isinstance(factor, torch.Tensor) else 1


class _Products(TorchDispatchMode):
    """Counts the operations of matrix products in this thread."""

    flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        operator = function.overloadpacket
        if operator in flop_registry:
            self.flops += flop_registry[operator](*args, **(kwargs or {}), out_val=result)
        elif operator is torch.ops.aten.mv:
            self.flops += 2 * args[0].numel()
        elif operator is torch.ops.aten.mul and result.numel() > max(map(_elements, args)):
            self.flops += 2 * result.numel()  # a matrix product by broadcasting, to be summed
        return result


class _Made(NamedTuple):
    output: list
    size_of_each_sum: list
    work: str


def _mlp_of_ranks(solution, n, hidden, inner):
    """The part of each rank after the MLP, the elements of each term that was summed for it, and
    how much of the products it made."""
    tokens = 2
    x, up, down = drawn(n, (tokens, hidden), (inner, hidden), (hidden, inner))
    whole_product = 2 * tokens * hidden * inner

    def made(flops):
        if flops * n <= 2 * whole_product:
            return "its share of the products"
        return "one whole product" if flops < 2 * whole_product else "both whole products"

    def work(dist):
        _, leave, _ = _pairs(dist)
        summed = []

        def noted(term):
            summed.append(term.numel())
            return leave(term)

        with _Products() as products:
            y = solution(x.clone(), up, down, noted, dist.get_rank(), n)
        if not isinstance(y, torch.Tensor):
            return y
        if y.shape != x.shape:
            raise ValueError(f"y is {list(y.shape)}: as large as x is wanted, {list(x.shape)}.")
        return _Made(nine_digits(y), summed, made(products.flops))

    return value_of_ranks(n, work)


def _mlp_by_rows_first(x, up, down, leave, rank, ranks):
    x, up = (whole.tensor_split(ranks, 1)[rank] for whole in (x, up))
    return F.gelu(leave(x @ up.T)) @ down.T


def _mlp_whole_and_sliced(x, up, down, leave, rank, ranks):
    inner = F.gelu(x @ up.T).tensor_split(ranks, 1)[rank]
    return leave(inner @ down.tensor_split(ranks, 1)[rank].T)


def _mlp_of_rank_0(x, up, down, leave, rank, ranks):
    return leave(F.gelu(x @ up.T) @ down.T if rank == 0 else torch.zeros_like(x))


def _mlp_summed_twice(x, up, down, leave, rank, ranks):
    up, down = up.tensor_split(ranks, 0)[rank], down.tensor_split(ranks, 1)[rank]
    return leave(leave(F.gelu(x @ up.T) @ down.T))


def _mlp_sum_unused(x, up, down, leave, rank, ranks):
    up, down = up.tensor_split(ranks, 0)[rank], down.tensor_split(ranks, 1)[rank]
    term = F.gelu(x @ up.T) @ down.T
    leave(term)
    return term


def _mlp_not_transposed(x, up, down, leave, rank, ranks):
    """Where the parts are square: elsewhere PyTorch refuses the product."""
    up, down = up.tensor_split(ranks, 0)[rank], down.tensor_split(ranks, 1)[rank]
    first, second = (part if part.shape[0] == part.shape[1] else part.T for part in (up, down))
    return leave(F.gelu(x @ first) @ second)


def _mlp(
    up_dim=0,
    down_dim=1,
    sums=("after",),
    activation=F.gelu,
    part_of_up=lambda rank, ranks: rank,
    part_of_down=lambda rank, ranks: rank,
    then=lambda y, ranks: y,
):
    def mlp(x, up, down, leave, rank, ranks):
        up = up.tensor_split(ranks, up_dim)[part_of_up(rank, ranks)]
        down = down.tensor_split(ranks, down_dim)[part_of_down(rank, ranks)]
        if up_dim == 1:
            x = x.tensor_split(ranks, -1)[rank]
        inner = x @ up.T
        inner = leave(inner) if "before" in sums else inner
        inner = activation(inner)
        inner = leave(inner) if "inner" in sums else inner
        if up_dim == 1 and down_dim == 1:
            inner = inner.tensor_split(ranks, -1)[rank]
        y = inner @ down.T
        return then(leave(y) if "after" in sums else y, ranks)

    return mlp


mlp_on_ranks = Exercise(
    name="mlp",
    reference=_mlp(),
    cases=(dict(n=2, hidden=4, inner=8), dict(n=3, hidden=5, inner=9)),
    words=("2 ranks, hidden 4, inner 8", "3 ranks, hidden 5, inner 9"),
    answer=_mlp_of_ranks,
    hint="GELU needs whole inner numbers. Which part of up makes some inner numbers"
    " complete, and which part of down takes just those?",
    misconceptions=(
        Misconception(
            _mlp(sums=()),
            "nobody makes the sum: each rank has its own term of y, and the next layer would take"
            " it for the whole.",
        ),
        Misconception(
            _mlp(up_dim=1, sums=("before", "after")),
            "right, with two sums forward. You cut the first weight by W's rows, so that its result"
            " is a sum before GELU, which is not linear, can be taken. W's columns, the rows of"
            " PyTorch's weight, need no sum there.",
        ),
        Misconception(
            _mlp(up_dim=1),
            "GELU of parts of a sum is not the part of GELU of the sum. Cut the first weight by"
            " W's columns, the rows of PyTorch's weight: then each rank has some inner columns,"
            " complete.",
        ),
        Misconception(
            _mlp_by_rows_first,
            "y is right, with one sum. But the sum is as wide as the inner size, and every rank"
            " keeps all of B and makes the whole second product. Cut A by its columns, the rows of"
            " up: then B is cut, too, and the sum is as wide as y.",
        ),
        Misconception(
            _mlp_whole_and_sliced,
            "y is right, but every rank makes one of the products over all inner columns, and then"
            " slices the result or multiplies by zeros: that work is not shared out. Cut up and"
            " down themselves, before the products.",
        ),
        Misconception(
            lambda x, up, down, leave, rank, ranks: leave(F.gelu(x @ up.T) @ down.T / ranks),
            "y is right, but every rank makes both products over all inner columns: no work is"
            " shared out. Cut up and down themselves, before the products.",
        ),
        Misconception(
            _mlp_of_rank_0,
            "y is right, but rank 0 makes all of it and the others add zeros: no work is shared"
            " out. Each rank makes its share: cut up and down before the products.",
        ),
        Misconception(
            _mlp(sums=("before", "after")),
            "the ranks have different columns after the first product: adding them up mixes them.",
        ),
        Misconception(_mlp(activation=lambda x: x), "GELU is missing between the two products."),
        Misconception(
            _mlp(activation=F.relu),
            "that is ReLU; GELU is missing: F.gelu, as in the undivided MLP.",
        ),
        Misconception(
            _mlp(activation=lambda x: x, then=lambda y, ranks: F.gelu(y)),
            "GELU stands between the two products, on the rank's own inner columns, and not at"
            " the end.",
        ),
        Misconception(
            _mlp(then=lambda y, ranks: y / ranks),
            "that is the mean. The product over all inner columns is the sum of the ranks' terms.",
        ),
        Misconception(
            _mlp(part_of_down=lambda rank, ranks: (rank + 1) % ranks),
            "the parts of up and down belong together, the same inner columns of both: take the"
            " same rank of each split.",
        ),
        Misconception(
            _mlp(part_of_up=lambda rank, ranks: 0, part_of_down=lambda rank, ranks: 0),
            "every rank takes the part of rank 0: take [rank].",
        ),
        Misconception(
            lambda x, up, down, leave, rank, ranks: leave(F.gelu(x @ up.T) @ down.T),
            "nothing is cut: every rank makes all of it, and has all of both weights. Each needs"
            " its columns of A and its rows of B. The sum then has y as often as there are ranks.",
        ),
        Misconception(
            lambda x, up, down, leave, rank, ranks: F.gelu(x @ up.T) @ down.T,
            "nothing is cut: every rank makes all of it, and has all of both weights. Each needs"
            " its columns of A and its rows of B. It needs no sum then, and saves nothing.",
        ),
        Misconception(
            _mlp(sums=("inner", "after")),
            "the ranks have different inner columns, before GELU and after it: adding them up"
            " mixes them.",
        ),
        Misconception(
            _mlp(sums=("inner",)),
            "the ranks have different inner columns: adding them up mixes them. The sum belongs"
            " after the second product, where each rank has its term of y.",
        ),
        Misconception(
            _mlp(sums=("before",)),
            "the ranks have different inner columns: adding them up mixes them. The sum belongs"
            " after the second product, where each rank has its term of y.",
        ),
        Misconception(
            _mlp_summed_twice,
            "leave is called twice: after the first sum every rank has y, and the second adds up as"
            " many y as there are ranks.",
        ),
        Misconception(
            _mlp_sum_unused,
            "leave hands back the sum, and your term stays what it was: return leave(term).",
        ),
        Misconception(
            _mlp_not_transposed,
            "PyTorch's weight has a row for each number that comes out: x @ part.T, for both"
            " products.",
        ),
    ),
    errors=(
        (r"'tuple' object", "tensor_split gives all parts, a tuple: take [rank], this rank's."),
    ),
    right="columns, GELU, rows, one sum: the inner columns never meet.",
)


# --- enter and leave ------------------------------------------------------------------------------


class _Entered(NamedTuple):
    output: list
    gradient_of_x: list | None
    gradient_of_a_neighbour: list


class _Left(NamedTuple):
    output: list
    gradient_of_the_term: list | None
    number_of_messages: int
    input_as_it_was: bool


def _entered(solution, n):
    """The output, the gradient of x, and that of a neighbour to which autograd hands the same
    gradient, on each rank."""
    x, *weights = drawn(n, (2, 3), *[(2, 3)] * n)

    if not hasattr(solution, "apply"):
        raise TypeError("the check wants the class, a torch.autograd.Function.")

    def work(dist):
        own, neighbour = (x.clone().requires_grad_() for _ in range(2))
        beside = neighbour * 1.0  # its backward comes after that of the solution
        y = solution.apply(own * 1.0, dist)
        if not isinstance(y, torch.Tensor):
            return y
        ((y + beside) * weights[dist.get_rank()]).sum().backward()
        return _Entered(
            nine_digits(y),
            None if own.grad is None else nine_digits(own.grad),
            nine_digits(neighbour.grad),
        )

    return value_of_ranks(n, work)


def _left(solution, n):
    """The output, the gradient of each rank's term, and how many messages both took."""
    weight, *terms = drawn(n, (2, 3), *[(2, 3)] * n)

    if not hasattr(solution, "apply"):
        raise TypeError("the check wants the class, a torch.autograd.Function.")

    def work(dist):
        own = terms[dist.get_rank()].clone().requires_grad_()
        term = own * 1.0
        y = solution.apply(term, dist)
        if not isinstance(y, torch.Tensor):
            return y
        as_it_was = torch.equal(term, own)
        (y * weight).sum().backward()
        gradient = None if own.grad is None else nine_digits(own.grad)
        return _Left(nine_digits(y), gradient, dist.reductions, as_it_was)

    return value_of_ranks(n, work)


def _sent_by(dist, x, scale=1.0):
    x = x.clone()
    dist.all_reduce(x)
    return x.mul_(scale)


def _nothing(dist, x):
    return x


def _largest(dist, x):
    x = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def _times(dist, x):
    return x * dist.get_world_size()


def _over(dist, x):
    return x / dist.get_world_size()


def _of_rank_0(dist, x):
    return x * (dist.get_rank() == 0)


def _none(dist, x):
    return None


def _none_in_its_memory(dist, x):
    dist.all_reduce(x)


def _sent_copy(dist, x):
    _sent_by(dist, x)
    return x


def _mean(dist, x):
    return _sent_by(dist, x, 1 / dist.get_world_size())


def _in_its_memory(dist, x):
    dist.all_reduce(x)
    return x


def _function(forward_does, backward_does):
    """An autograd function that does this forward, and that backward."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, dist):
            ctx.dist = dist
            return forward_does(dist, x.view_as(x))

        @staticmethod
        def backward(ctx, gradient):
            return backward_does(ctx.dist, gradient), None

    return Function


_TWO_RANKS_AND_THREE = (dict(n=2), dict(n=3))

# what PyTorch says of an autograd function, and what it means there
_ERRORS_OF_A_PAIR = (
    (
        "different than None at position",
        "A backward returns its gradients in the order of the arguments of forward: that of"
        " the tensor first, then None for dist.",
    ),
    (
        "has no attribute 'dist'",
        "backward needs dist, which forward is given: keep it there, ctx.dist = dist.",
    ),
)


enter_columns = Exercise(
    name="Enter",
    reference=_function(_nothing, _sent_by),
    cases=_TWO_RANKS_AND_THREE,
    words=("2 ranks", "3 ranks"),
    answer=_entered,
    hint="Forward, every rank has the same x and sends nothing. Backward, each rank has"
    " the gradient of x through its own part alone: what are they together?",
    misconceptions=(
        Misconception(
            _function(_nothing, _nothing),
            "forward is right. In backward each rank has the part of x's gradient that came through"
            " its own columns, and nobody adds up the parts.",
        ),
        Misconception(
            _function(_nothing, _in_its_memory),
            "the sum is right, and it is made in the memory of the gradient that autograd gave you:"
            " autograd may hand the same tensor to another function, such as the residual branch."
            " Clone it first.",
        ),
        Misconception(
            _function(_nothing, _mean),
            "that is the mean. x is used by all ranks, so its gradient is the sum of what comes"
            " back from them.",
        ),
        Misconception(
            _function(_sent_by, _nothing),
            "the other way round: that is Leave. All ranks have the same x, so forward has nothing"
            " to add up.",
        ),
        Misconception(
            _function(_sent_by, _sent_by),
            "backward is right. Forward adds up the same x as often as there are ranks, and should"
            " hand it on as it is.",
        ),
        Misconception(
            _function(_nothing, lambda dist, x: torch.ones_like(_sent_by(dist, x))),
            "those are ones: begin with the gradient that comes in, gradient.clone().",
        ),
        Misconception(
            _function(_nothing, _times),
            "n times its own gradient is not the sum: each rank has another one, that of its own"
            " columns. all_reduce.",
        ),
        Misconception(
            _function(_nothing, _largest),
            "that is the largest of the ranks' gradients; the sum of them is x's gradient.",
        ),
        Misconception(
            _function(_nothing, _none),
            "no gradient comes back. If you return what all_reduce returns: it returns nothing,"
            " and works in place.",
        ),
        Misconception(
            _function(_nothing, _none_in_its_memory),
            "no gradient comes back: all_reduce returns nothing. The sum is made in the memory of"
            " the gradient that autograd gave you: sum a clone, and return the clone.",
        ),
    ),
    errors=(
        *_ERRORS_OF_A_PAIR,
        (
            "must match the size",
            "Forward hands x on as it is, whole: the columns' weights are cut, and not x.",
        ),
    ),
    right="nothing in forward; in backward, the parts of x's gradient are added up.",
)

leave_rows = Exercise(
    name="Leave",
    reference=_function(_sent_by, _nothing),
    cases=_TWO_RANKS_AND_THREE,
    words=("2 ranks", "3 ranks"),
    answer=_left,
    hint="Forward, terms are added up. The sum is whole on every rank, and so is its"
    " gradient: what is left to send backward?",
    misconceptions=(
        Misconception(
            _function(_sent_by, _sent_by),
            "forward is right. Backward has y's gradient already, whole and the same on all ranks:"
            " adding it up makes it t times too large.",
        ),
        Misconception(
            _function(_nothing, _nothing),
            "nobody adds up the terms: each rank takes its own term for the whole y.",
        ),
        Misconception(
            _function(_mean, _nothing),
            "that is the mean. The product over all inner columns is the sum of the ranks' terms.",
        ),
        Misconception(
            _function(_nothing, _sent_by),
            "the other way round: that is Enter. The terms differ from rank to rank, and forward"
            " adds them up.",
        ),
        Misconception(
            _function(_sent_by, _mean),
            "the numbers are right, with a message that nobody needs: y's gradient is the same on"
            " all ranks, so its mean is what each of them has.",
        ),
        Misconception(
            _function(_in_its_memory, _nothing),
            "the sum is right, and is made in the memory of its input: whoever still needs the"
            " term, autograd or a residual branch, finds the sum there. Clone it first.",
        ),
        Misconception(
            _function(_sent_by, _times),
            "forward is right. Backward has y's gradient already: you make it t times too large.",
        ),
        Misconception(
            _function(_sent_by, _over),
            "forward is right. In backward y's gradient is there, whole and the same on all"
            " ranks: each term's gradient is just that, undivided.",
        ),
        Misconception(
            _function(_sent_by, _of_rank_0),
            "y's gradient is there on all ranks, and each of them needs it for its own term:"
            " only rank 0 would learn.",
        ),
        Misconception(
            _function(_largest, _nothing),
            "that is the largest of the ranks' terms; y is the sum of them.",
        ),
        Misconception(
            _function(_sent_by, lambda dist, x: torch.zeros_like(x)),
            "backward hands on zeros, so nothing before this layer learns: hand on y's gradient.",
        ),
        Misconception(
            _function(_sent_by, _none), "no gradient comes back: backward hands on y's gradient."
        ),
        Misconception(
            _function(_sent_copy, _nothing),
            "you have summed a copy, and return the term itself: nobody adds up the terms that"
            " way.",
        ),
    ),
    errors=(
        *_ERRORS_OF_A_PAIR,
        (
            "must match the size",
            "A term has the size of the sum: forward adds the ranks' terms up, and cuts nothing.",
        ),
    ),
    right="in forward, the terms are added up; in backward, each rank has y's gradient already.",
)


# --- bug hunt: a bias in a sum --------------------------------------------------------------------


class _Row(NamedTuple):
    output: list
    gradient_of_the_bias: list


def _row_of_ranks(solution, n, with_bias):
    """Output and gradient of the bias, on each rank."""
    x, weight, bias = drawn(n, (3, 2 * n), (4, 2 * n), (4,))

    def work(dist):
        rank, (_, leave, _) = dist.get_rank(), _pairs(dist)
        own = (bias * with_bias).clone().requires_grad_()
        part = [tensor.tensor_split(n, -1)[rank].clone() for tensor in (x, weight)]
        part[1].requires_grad_()  # so that a bias without a gradient is one, not an error
        y = solution(*part, own, leave, rank, n)
        if not isinstance(y, torch.Tensor):
            return y
        y.pow(2).sum().backward()
        gradient = torch.zeros_like(own) if own.grad is None else own.grad
        return _Row(nine_digits(y), nine_digits(gradient))

    return value_of_ranks(n, work)


row_layer = Exercise(
    name="row_layer",
    reference=lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T) + bias,
    cases=(dict(n=2, with_bias=0), dict(n=2, with_bias=1), dict(n=4, with_bias=1)),
    words=("2 ranks, biases zero", "2 ranks, random biases", "4 ranks, random biases"),
    answer=_row_of_ranks,
    hint="leave adds up what all ranks give it. How often is the bias to be in the sum,"
    " and on how many ranks is it to learn?",
    misconceptions=(
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T + bias),
            "the sum over the ranks has the bias once for each rank. Biases begin at zero, so the"
            " first step shows nothing, and later the loss is only a little worse. Add it after the"
            " sum.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T + bias / ranks),
            "the output is right and the gradient is not: through bias / ranks each rank gets 1/t"
            " of it. Add the bias after the sum.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(
                x @ weight.T + bias * float(rank == 0)
            ),
            "the output is right, but only rank 0 learns its bias: the copies drift apart. Add it"
            " after the sum, on every rank.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T),
            "the bias is gone.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: x @ weight.T + bias,
            "each rank has its own term of the sum: leave makes the sum.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(
                x @ weight.T + bias * float(rank == ranks - 1)
            ),
            "the output is right, but only the last rank learns its bias: the copies drift"
            " apart. Add it after the sum, on every rank.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T + bias) + bias,
            "added twice, inside the sum once for each rank, and then again: after the sum alone.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T) + bias / ranks,
            "the sum is made when you add the bias, so every rank adds the whole bias: nothing"
            " to divide.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T) + bias * ranks,
            "the sum is made when you add the bias, so every rank adds the whole bias, once.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T) - bias,
            "a bias is added, not subtracted.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T) + bias.detach(),
            "the output is right, and the bias never learns: detach() takes its gradient away.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T) / ranks + bias,
            "that is the mean of the terms. The product is the sum of them: nothing to divide.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: leave(x @ weight.T + bias) / ranks,
            "that is the mean: the bias comes out right, and the product is divided by the"
            " number of ranks. Add the bias after the sum.",
        ),
        Misconception(
            lambda x, weight, bias, leave, rank, ranks: (
                leave(x @ weight.T) + bias * float(rank == 0)
            ),
            "only rank 0 has the bias in its output, and all are to have the same y: add it on"
            " every rank.",
        ),
    ),
    errors=(
        (
            "grad_fn",
            "If a bias is added on one rank alone, only rank 0 learns its bias, and the copies"
            " drift apart: add it after the sum, on every rank.",
        ),
    ),
    right="first the sum, then the bias, once; its gradient is the same on all ranks.",
)


# --- which tokens are here ------------------------------------------------------------------------


def _embedded(solution, vocabulary, n):
    """The sum over ranks of what each has of the vectors of all tokens."""
    (weight,) = drawn(vocabulary, (vocabulary, 2))
    tokens, total, begin = torch.arange(vocabulary), 0, 0
    for part in weight.tensor_split(n):
        own = solution(tokens.clone(), part.clone(), begin, begin + len(part))
        if not isinstance(own, torch.Tensor):
            return own
        total, begin = total + own, begin + len(part)
    return nine_digits(total)


def _own_vectors(own, rows=None, masked=True):
    rows = rows or (lambda tokens, begin: tokens - begin)

    def vectors(tokens, weight, begin, end):
        here = own(tokens, begin, end)
        x = weight[rows(tokens, begin).clamp(0, len(weight) - 1)]
        return x * here.unsqueeze(-1) if masked else x

    return vectors


def _inside(tokens, begin, end):
    return (tokens >= begin) & (tokens < end)


own_vectors = Exercise(
    name="own_vectors",
    reference=_own_vectors(_inside),
    cases=(dict(vocabulary=8, n=2), dict(vocabulary=11, n=3)),
    words=("all 8 tokens on 2 ranks", "all 11 tokens on 3 ranks"),
    answer=_embedded,
    misconceptions=(
        Misconception(
            _own_vectors(lambda tokens, begin, end: (tokens >= begin) & (tokens <= end)),
            "token `end` is the first of the next rank: two ranks give a vector for it, and the"
            " sum is neither rank's vector. The bounds are those of a slice.",
        ),
        Misconception(
            _own_vectors(lambda tokens, begin, end: (tokens > begin) & (tokens < end)),
            "token `begin` is this rank's, and nobody gives its vector: it is zeros, and no error"
            " says so.",
        ),
        Misconception(
            _own_vectors(_inside, masked=False),
            "tokens of other ranks get some row of yours, which lands in the sum: set them to"
            " zero.",
        ),
        Misconception(
            _own_vectors(_inside, rows=lambda tokens, begin: tokens),
            "a part begins at row 0: token `begin` is in row 0, so subtract begin.",
        ),
        Misconception(
            _own_vectors(lambda tokens, begin, end: tokens < end),
            "tokens below `begin` belong to the ranks before: both bounds count.",
        ),
    ),
    right="each token has one rank that gives its vector, and zeros from the others.",
)


# --- the loss of scores that are cut --------------------------------------------------------------


class _Lost(NamedTuple):
    loss: float | str
    number_of_messages: int


def _loss_of_ranks(solution, n, vocabulary, largest):
    """The loss that each rank has, and how many messages it took. A target has two scores of
    `largest`, on two ranks."""
    (scores,) = drawn(vocabulary, (4, vocabulary))
    scores[1, 0] = scores[1, vocabulary // 2] = scores[2, 0] = largest
    targets = torch.tensor([0, vocabulary // 2, vocabulary - 1, vocabulary // n])

    def work(dist):
        rank = dist.get_rank()
        parts = scores.tensor_split(n, 1)
        begin = sum(part.shape[1] for part in parts[:rank])
        loss = solution(parts[rank].clone(), targets.clone(), begin, dist)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            many = isinstance(loss, torch.Tensor)
            return (
                f"{loss.numel()} numbers: one loss, the mean over tokens, is wanted."
                if many
                else loss
            )
        value = float(f"{loss.item():.9g}")
        return _Lost(value if math.isfinite(value) else str(value), dist.reductions)

    return value_of_ranks(n, work)


def _part_of_loss(
    highest="max",
    shifted=True,
    masked=True,
    apart=False,
    log_first=False,
    sums=(True, True),
    operator=None,
    finish=lambda total, target: (total.log() - target).mean(),
):
    def loss(scores, targets, begin, dist):
        own = (targets >= begin) & (targets < begin + scores.shape[1])
        columns = torch.where(own, targets - begin, 0)
        scores_of_targets = scores[range(len(targets)), columns]
        largest = scores.amax(1) if highest else torch.zeros(len(scores), dtype=scores.dtype)
        if highest in ("max", "sum"):
            dist.all_reduce(largest, dist.ReduceOp.MAX if highest == "max" else dist.ReduceOp.SUM)
        total = (scores - largest[:, None]).exp().sum(1)
        target = scores_of_targets - (largest if shifted else 0)
        target = target * own if masked else target
        if log_first:
            total = total.log()
        if apart or not all(sums):
            for tensor, is_summed in zip((total, target), sums):
                if is_summed:
                    dist.all_reduce(tensor)
        else:
            both = torch.stack([total, target])
            dist.all_reduce(both, operator or dist.ReduceOp.SUM)
            total, target = both
        return finish(total.exp() if log_first else total, target)

    return loss


def _loss_with(finish):
    """A loss that begins well: finish(scores, largest, the targets' scores, own, dist)."""

    def loss(scores, targets, begin, dist):
        own = (targets >= begin) & (targets < begin + scores.shape[1])
        scores_of_targets = scores[range(len(targets)), torch.where(own, targets - begin, 0)]
        largest = scores.amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return finish(scores, largest, scores_of_targets, own, dist)

    return loss


def _both_summed(dist, *sums):
    both = torch.stack(sums)
    dist.all_reduce(both)
    return both


def _masked_first(scores, largest, score, own, dist):
    total = (scores - largest[:, None]).exp().sum(1)
    total, target = _both_summed(dist, total, torch.where(own, score, 0) - largest)
    return (total.log() - target).mean()


def _mean_of_own(scores, largest, score, own, dist):
    total = (scores - largest[:, None]).exp().sum(1)
    dist.all_reduce(total)
    return (total.log() + largest - score)[own].mean()


def _along_the_row(scores, largest, score, own, dist):
    total = (scores - largest).exp().sum(1)
    total, target = _both_summed(dist, total, (score - largest) * own)
    return (total.log() - target).mean()


def _exponential_of_the_target(scores, largest, score, own, dist):
    total = (scores - largest[:, None]).exp().sum(1)
    total, target = _both_summed(dist, total, (score - largest).exp() * own)
    return -(target / total).log().mean()


def _sum_of_logarithms(scores, targets, begin, dist):
    own = (targets >= begin) & (targets < begin + scores.shape[1])
    score = scores[range(len(targets)), torch.where(own, targets - begin, 0)]
    total, target = _both_summed(dist, scores.logsumexp(1), score * own)
    return (total - target).mean()


def _local_loss(scores, targets, begin, dist):
    own = (targets >= begin) & (targets < begin + scores.shape[1])
    return F.cross_entropy(scores, torch.where(own, targets - begin, 0))


loss_of_cut_scores = Exercise(
    name="loss",
    reference=_part_of_loss(),
    cases=(
        dict(n=2, vocabulary=8, largest=3.0),
        dict(n=3, vocabulary=11, largest=3.0),
        dict(n=2, vocabulary=8, largest=900.0),
    ),
    words=("2 ranks, 8 tokens", "3 ranks, 11 tokens", "2 ranks, a score of 900"),
    answer=_loss_of_ranks,
    hint="The loss of a token is log(sum of exp(score - largest)) - (target's score -"
    " largest). Which of these three does one rank know alone? An all-reduce with"
    " MAX first, then one with both sums stacked.",
    misconceptions=(
        Misconception(
            _part_of_loss(highest=""),
            "right as long as scores are small: exp(900) is more than a float can hold. Subtract"
            " the largest score of all ranks first.",
        ),
        Misconception(
            _part_of_loss(highest="own"),
            "each rank subtracts its own largest score, so the ranks add up exponentials of"
            " different scales. All subtract one number, the largest of all: an all-reduce with"
            " MAX.",
        ),
        Misconception(
            _part_of_loss(highest="sum"),
            "the *sum* of the ranks' largest scores is subtracted, or one largest score from all"
            " tokens. That is the same number on all ranks, so small scores come out right; with a"
            " score of 900 exponentials become zero. Each token has its own largest, amax(1), and"
            " the all-reduce wants dist.ReduceOp.MAX.",
        ),
        Misconception(
            _part_of_loss(shifted=False),
            "the largest score is subtracted in the exponentials, but not in the target's score:"
            " subtract it in both, or add it again.",
        ),
        Misconception(
            _part_of_loss(masked=False),
            "ranks that do not have the target add the score of some other token to it. They bring"
            " zero: `own` says who has it.",
        ),
        Misconception(
            _part_of_loss(log_first=True),
            "you add up logarithms. The logarithm comes after the sum over all ranks.",
        ),
        Misconception(
            _sum_of_logarithms,
            "you add up logarithms: each rank's logsumexp is one already. Sum the exponentials over"
            " all ranks, and take the logarithm then.",
        ),
        Misconception(
            _loss_with(_masked_first),
            "where the rank does not have the target, it brings -largest instead of zero. Subtract"
            " first, then put the zero in.",
        ),
        Misconception(
            _loss_with(_mean_of_own),
            "that is the mean over the tokens whose target this rank has. The mean over all tokens"
            " is wanted, on every rank: sum the targets' scores over the ranks.",
        ),
        Misconception(
            _loss_with(_along_the_row),
            "scores - largest subtracts the largest score of token i from column i: [tokens, V/t]"
            " and [tokens] are aligned at their last dim. largest[:, None] has one for each row.",
        ),
        Misconception(
            _loss_with(_exponential_of_the_target),
            "right while the target's score is near the largest: exp() of a score far below is"
            " zero, and its logarithm infinite. Keep the target's score as it is.",
        ),
        Misconception(
            _part_of_loss(apart=True),
            "right, in three messages. Both sums can go at once: stack them.",
        ),
        Misconception(
            _part_of_loss(finish=lambda total, target: (total.log() - target).sum()),
            "that is the sum over the tokens; the mean over the tokens is wanted.",
        ),
        Misconception(
            _part_of_loss(finish=lambda total, target: (total.log() - target).mean().item()),
            "the number is right, and has no gradient: return the tensor, without .item().",
        ),
        Misconception(
            _part_of_loss(finish=lambda total, target: total.log() - target),
            "that is a loss for each token; one loss, the mean of them, is wanted.",
        ),
        Misconception(
            _part_of_loss(finish=lambda total, target: (total.log() + target).mean()),
            "the loss is the logarithm of the sum minus the target's score, not plus.",
        ),
        Misconception(
            _part_of_loss(finish=lambda total, target: (target - total.log()).mean()),
            "that is the loss with a negative sign: the logarithm of the sum minus the target's"
            " score.",
        ),
        Misconception(
            _part_of_loss(finish=lambda total, target: (total - target).mean()),
            "the logarithm is missing: the loss is log of the sum of exponentials, minus the"
            " target's score.",
        ),
        Misconception(
            _part_of_loss(sums=(False, False)),
            "nothing is summed but the largest scores: each rank has the exponentials of its own"
            " part of the vocabulary, and only one has the target.",
        ),
        Misconception(
            _part_of_loss(sums=(True, False)),
            "only one rank has the target's score, the others bring zero: it has to be summed"
            " over the ranks, as the exponentials are.",
        ),
        Misconception(
            _part_of_loss(sums=(False, True)),
            "the exponentials are those of this rank's own part of the vocabulary: sum them over"
            " the ranks.",
        ),
        Misconception(
            _part_of_loss(operator=torch.distributed.ReduceOp.AVG),
            "AVG divides by the number of ranks: both are sums over the vocabulary, not means"
            " over ranks.",
        ),
        Misconception(
            _local_loss,
            "that is the loss over this rank's own part of the vocabulary, and a target that"
            " another rank has is some other token here. The sum of exponentials and the"
            " target's score come from all ranks.",
        ),
    ),
    errors=(
        (
            "out of bounds|out of range",
            "This rank's columns begin at begin: token begin is in its column 0, so subtract"
            " begin from targets.",
        ),
        (
            "got a max",
            "scores.max(1) is a pair, of values and of places: take scores.amax(1).",
        ),
    ),
    right="two messages, with three numbers in all for each target, whatever the vocabulary.",
)


# --- gate and up ----------------------------------------------------------------------------------


def _gated_of_ranks(solution, n):
    """Output and gradient of x, and the sums made forward and backward, on each rank."""
    x, gate, up, down = drawn(n, (2, 4), (2 * n, 4), (2 * n, 4), (4, 2 * n))

    def work(dist):
        rank, (enter, leave, sent) = dist.get_rank(), _pairs(dist)
        parts = [w.tensor_split(n)[rank] for w in (gate, up)] + [down.tensor_split(n, 1)[rank]]
        own = x.clone().requires_grad_()
        y = solution(own, *parts, enter, leave)
        if not isinstance(y, torch.Tensor):
            return y
        y.pow(2).sum().backward()
        return nine_digits(y), nine_digits(own.grad), sent.forward, sent.backward

    return value_of_ranks(n, work)


def _apart(x, gate, up, down, enter, leave):
    return leave((F.silu(enter(x) @ gate.T) * (enter(x) @ up.T)) @ down.T)


def _together(x, gate, up, down, enter, leave):
    x = enter(x)
    return leave((F.silu(x @ gate.T) * (x @ up.T)) @ down.T)


def _once(x, gate, up, down, enter, leave):
    return leave((F.silu(enter(x) @ gate.T) * (x @ up.T)) @ down.T)


gate_and_up = Exercise(
    name="gated",
    reference=_together,
    cases=(dict(n=2), dict(n=3)),
    words=("2 ranks", "3 ranks"),
    answer=_gated_of_ranks,
    misconceptions=(
        Misconception(
            _apart,
            "right, but more expensive than necessary: gate and up each enter by themselves, so"
            " backward adds up two gradients of x in two messages. Enter once, and autograd adds"
            " them on this rank first.",
        ),
        Misconception(
            _once,
            "x enters for the gate alone: what comes back through up is this rank's share of a sum"
            " that nobody makes.",
        ),
        Misconception(
            lambda x, gate, up, down, enter, leave: leave(
                (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
            ),
            "the output is right, and the gradient of x is this rank's share: nothing enters, so"
            " nobody makes the sum in backward.",
        ),
        Misconception(
            lambda x, gate, up, down, enter, leave: enter(
                (F.silu(leave(x) @ gate.T) * (x @ up.T)) @ down.T
            ),
            "enter comes before the columns and leave after the rows: you have them the other way"
            " round.",
        ),
    ),
    right="one sum forward, one backward, with a gate as without.",
)


# --- gradients of what is whole -------------------------------------------------------------------

_NAMES = ("attention.qkv.weight", "attention_norm.weight", "attention_norm.bias")
_NAMES += ("attention.output.weight", "attention.output.bias", "embedding.positions")
_CUT = ("attention.qkv.weight", "attention.output.weight")


def _summed_of_ranks(solution, n):
    """Each rank's gradients afterwards, and its messages."""

    def work(dist):
        rank = dist.get_rank()
        gradients = dict(zip(_NAMES, drawn(100 + rank, *[(3,), (2, 2), (4,)] * 2)))
        if solution(gradients, set(_CUT), dist) is ...:
            return ...
        return [nine_digits(gradients[name]) for name in _NAMES], dist.reductions

    return value_of_ranks(n, work)


def _sum_of(chosen, flat=True, share=lambda n: 1.0):
    def sum_whole(gradients, cut, dist):
        named = [(name, g) for name, g in gradients.items() if chosen(name, cut)]
        scale = share(dist.get_world_size())
        if not flat:
            for _, gradient in named:
                dist.all_reduce(gradient)
                gradient.mul_(scale)
            return
        together = torch.cat([gradient.flatten() for _, gradient in named])
        dist.all_reduce(together)
        parts = together.mul_(scale).split([gradient.numel() for _, gradient in named])
        for (_, gradient), part in zip(named, parts):
            gradient.copy_(part.view(gradient.shape))

    return sum_whole


def _is_whole(name, cut):
    return name not in cut


gradients_of_own_tokens = Exercise(
    name="sum_whole",
    reference=_sum_of(_is_whole),
    cases=(dict(n=2), dict(n=3)),
    words=("2 ranks", "3 ranks"),
    answer=_summed_of_ranks,
    misconceptions=(
        Misconception(
            lambda gradients, cut, dist: None,
            "each rank has the gradient of its own tokens only: the norms of the ranks drift"
            " apart, and the loss may even look better, because there are more parameters now.",
        ),
        Misconception(
            _sum_of(_is_whole, share=lambda n: 1 / n),
            "that is the mean. The loss is a mean over all tokens already, and each rank has a part"
            " of its gradient: the whole is the sum.",
        ),
        Misconception(
            _sum_of(lambda name, cut: True),
            "the cut weights differ from rank to rank, and so do their gradients, which see all"
            " tokens: only what is whole is added up.",
        ),
        Misconception(
            _sum_of(lambda name, cut: name not in cut and "norm" in name),
            "norms are not the only parameters that see own tokens: the bias of a row layer and"
            " the table of positions do, too.",
        ),
        Misconception(
            _sum_of(_is_whole, flat=False),
            "right, in one message for each parameter: a few kilobytes each, so nearly all of it is"
            " latency. Put them in one flat tensor.",
        ),
    ),
    right="everything that is whole, as a sum, in one message.",
)


# --- dropout --------------------------------------------------------------------------------------


def _masks_of_ranks(solution, n, heads):
    """Every rank's part of the mask, and the bytes of the memory that it lies in."""
    found = []
    for rank in range(n):
        generator = torch.Generator().manual_seed(11)  # all ranks have one state
        mask = solution((2, heads, 3), 1, rank, n, generator)
        if not isinstance(mask, torch.Tensor):
            return mask
        after = torch.rand(1, generator=generator).item()
        found.append((mask.tolist(), mask.untyped_storage().nbytes(), round(after, 9)))
    return found


def _mask(part=lambda rank: rank, copy=True, own=False, seed=lambda rank: None):
    def mask(shape, dim, rank, ranks, generator):
        if seed(rank) is not None:
            generator.manual_seed(seed(rank))
        size = list(shape)
        if own:
            size[dim] //= ranks
            return torch.rand(size, generator=generator) < 0.9
        whole = torch.rand(size, generator=generator) < 0.9
        kept = whole.tensor_split(ranks, dim)[part(rank) % ranks]
        return kept.clone() if copy else kept

    return mask


same_dropout_on_any_ranks = Exercise(
    name="mask",
    reference=_mask(),
    cases=(dict(n=2, heads=4), dict(n=3, heads=6)),
    words=("4 heads on 2 ranks", "6 heads on 3 ranks"),
    answer=_masks_of_ranks,
    misconceptions=(
        Misconception(
            _mask(own=True),
            "all ranks draw the same small mask: head 0 of rank 1 drops what head 0 of rank 0"
            " drops, and training depends on how many ranks there are. Draw the whole, keep your"
            " part.",
        ),
        Misconception(
            _mask(own=True, seed=lambda rank: rank),
            "different masks, but they depend on the number of ranks, and now the generators of"
            " the ranks differ: the next dropout of a whole tensor will drop other elements on"
            " each rank.",
        ),
        Misconception(
            _mask(copy=False),
            "the right mask, as a view: autograd would keep the whole mask alive for it, t times"
            " what it needs. Copy the part.",
        ),
        Misconception(_mask(part=lambda rank: rank + 1), "that is the next rank's part."),
        Misconception(
            _mask(seed=lambda rank: 0),
            "the generator was set anew: every layer would drop the same elements.",
        ),
    ),
    right="the whole is drawn on every rank, so all generators move alike; the part is kept.",
)


# --- what readers wrote, on real ranks ------------------------------------------------------------


def drawn_mlp():
    """x, up and down in float64, the same on all ranks."""
    shapes = (16, 32), (128, 32), (32, 128)
    return [tensor.to(rank_device()) for tensor in drawn(0, *shapes)]


def plain_mlp(x, up, down):
    return F.gelu(x @ up.T) @ down.T


class PassOn(torch.autograd.Function):
    """Nothing, in both directions."""

    @staticmethod
    def forward(ctx, x, dist):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SumBothWays(torch.autograd.Function):
    """An all-reduce in both directions."""

    @staticmethod
    def forward(ctx, x, dist):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total, None


def gradient_differences(model, plain):
    """How far each gradient is from this rank's part of the plain model's."""
    cuts, found = {name: cut for name, cut, _ in cuts_of(model)}, dict(model.named_parameters())
    place = dist.get_rank(), dist.get_world_size()
    return {
        name: far(found[name].grad, cuts[name].part(p.grad, *place) if name in cuts else p.grad)
        for name, p in plain.named_parameters()
    }


def drawn_scores(tokens, vocabulary):
    """Scores [tokens, vocabulary] in fp32 and targets, the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(tokens, vocabulary, generator=generator)
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    return scores.to(rank_device()), targets.to(rank_device())


def first_forward(plain, model, batch):
    """The plain model's gradients, and the split model's first forward, in which shardlab compares
    ranks; afterwards the seed is what the plain model's dropout began with."""
    inputs, targets = batch
    torch.manual_seed(1)
    next_token_loss(plain(inputs), targets).backward()
    vocabulary_parallel_loss(model(inputs), targets, model.config.vocabulary)
    torch.manual_seed(1)


def sum_and_forget(model, optimizer):
    """The fault of own gradients: without the sum a step is refused, so it is made and lost."""
    own = [parameter.grad.clone() for parameter in model.parameters()]
    sum_gradients(optimizer)
    for parameter, gradient in zip(model.parameters(), own):
        parameter.grad.copy_(gradient)


@torch.no_grad()
def copies_apart(model):
    """The largest difference between ranks of what every rank has whole."""
    cut = {name for name, *_ in cuts_of(model)}
    whole = torch.cat([p.flatten() for name, p in model.named_parameters() if name not in cut])
    bounds = torch.stack([whole, -whole])
    dist.all_reduce(bounds, dist.ReduceOp.MAX)
    return bounds.sum(0).max().item()


# --- task: two ranks of the reader's own ----------------------------------------------------------


def _list_of_bytes(given):
    """The numbers that were found, or a sentence about their form."""
    found = given()
    if found is None or found is ...:
        return found
    if not isinstance(found, (list, tuple)):
        return (
            "one number is one rank's: run(function) gives a list of what each rank returned, and"
            " check wants the list."
        )
    return list(found)


parameters_on_two_ranks = Exercise(
    name="found",
    reference=lambda: [184_608, 184_608],
    cases=({},),
    answer=_list_of_bytes,
    of_a_value=True,
    hint="A function that splits the model and adds up parameter.nbytes; ranks(2); run; close.",
    misconceptions=(
        Misconception(
            lambda: [359_232, 359_232],
            "each rank has the whole model: apply_tensor_parallel(model, gpt_plan(model.config))"
            " splits it, on each rank.",
        ),
        Misconception(
            lambda: [97_392, 97_392, 97_200, 97_200],
            "those are four ranks, world's: start two of your own, with ranks(2) as two, and call"
            " two.run.",
        ),
        Misconception(
            lambda: [46_152, 46_152],
            "those are elements: an element of fp32 has 4 bytes, parameter.nbytes.",
        ),
        Misconception(
            lambda: [40, 40], "those are how many tensors there are: add up their nbytes."
        ),
    ),
    right="two ranks of your own, and each keeps a little more than half of the model.",
)
