"""Chapter 7: tensor and sequence parallelism. What readers write runs on thread ranks: no check can
hang."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.flop_counter import flop_registry

from coursekit.exercises.answers import drawn, list_of_ranks, nine_digits
from coursekit.exercises.edits import Topic
from coursekit.exercises.properties import OfRanks
from coursekit.exercises.thread_ranks import value_of_ranks
from coursekit.lab import far
from ranklab.ranks import rank_device
from shardlab.common.torch_internals import TorchDispatchMode
from shardlab.gpt import next_token_loss
from shardlab.tensor_parallel import sum_gradients, vocabulary_parallel_loss
from shardlab.tensor_parallel.hardened.full_parameters import cuts_of

topic = Topic(__name__)


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
    gradient_reaches_the_weights: bool


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

        weights = [weight.clone().requires_grad_() for weight in (up, down)]
        with _Products() as products:
            y = solution(x.clone(), *weights, noted, dist.get_rank(), n)
        if y.shape != x.shape:
            return f"y is {list(y.shape)}: as large as x is wanted, {list(x.shape)}."
        if y.requires_grad:
            y.sum().backward()
        reached = all(weight.grad is not None for weight in weights)
        return _Made(nine_digits(y), summed, made(products.flops), reached)

    return value_of_ranks(n, work)


_ACTIVATIONS = {
    "ReLU": F.relu,
    "tanh": torch.tanh,
    "SiLU": F.silu,
    "a sigmoid": torch.sigmoid,
    "GELU twice": lambda x: F.gelu(F.gelu(x)),
    "nothing": lambda x: x,
}


mlp_on_ranks = topic.exercise(
    "mlp_on_ranks",
    cases=(dict(n=2, hidden=4, inner=8), dict(n=3, hidden=5, inner=9)),
    words=("2 ranks, hidden 4, inner 8", "3 ranks, hidden 5, inner 9"),
    answer=_mlp_of_ranks,
    hint="GELU needs whole inner numbers. Which part of up makes some inner numbers"
    " complete, and which part of down takes just those?",
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
        as_it_was = torch.equal(term, own)
        (y * weight).sum().backward()
        gradient = None if own.grad is None else nine_digits(own.grad)
        return _Left(nine_digits(y), gradient, dist.reductions, as_it_was)

    return value_of_ranks(n, work)


_TWO_RANKS_AND_THREE = (dict(n=2), dict(n=3))

enter_columns = topic.exercise(
    "enter_columns",
    cases=_TWO_RANKS_AND_THREE,
    words=("2 ranks", "3 ranks"),
    answer=_entered,
    hint="Forward, every rank has the same x and sends nothing. Backward, each rank has"
    " the gradient of x through its own part alone: what are they together?",
    right="nothing in forward; in backward, the parts of x's gradient are added up.",
)

leave_rows = topic.exercise(
    "leave_rows",
    cases=_TWO_RANKS_AND_THREE,
    words=("2 ranks", "3 ranks"),
    answer=_left,
    hint="Forward, terms are added up. The sum is whole on every rank, and so is its"
    " gradient: what is left to send backward?",
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
        y.pow(2).sum().backward()
        gradient = torch.zeros_like(own) if own.grad is None else own.grad
        return _Row(nine_digits(y), nine_digits(gradient))

    return value_of_ranks(n, work)


row_layer = topic.exercise(
    "row_layer",
    cases=(dict(n=2, with_bias=0), dict(n=2, with_bias=1), dict(n=4, with_bias=1)),
    words=("2 ranks, biases zero", "2 ranks, random biases", "4 ranks, random biases"),
    answer=_row_of_ranks,
    hint="leave adds up what all ranks give it. How often is the bias to be in the sum,"
    " and on how many ranks is it to learn?",
    right="first the sum, then the bias, once; its gradient is the same on all ranks.",
)


# --- which tokens are here ------------------------------------------------------------------------


def _embedded(solution, vocabulary, n):
    """The sum over ranks of what each has of the vectors of all tokens."""
    (weight,) = drawn(vocabulary, (vocabulary, 2))
    tokens, total, begin = torch.arange(vocabulary), 0, 0
    for part in weight.tensor_split(n):
        own = solution(tokens.clone(), part.clone(), begin, begin + len(part))
        total, begin = total + own, begin + len(part)
    return nine_digits(total)


def vectors(tokens, weight, begin, end):
    here = (tokens >= begin) & (tokens < end)
    x = weight[(tokens - begin).clamp(0, len(weight) - 1)]
    return x * here.unsqueeze(-1)


own_vectors = topic.exercise(
    "own_vectors",
    vectors,
    cases=(dict(vocabulary=8, n=2), dict(vocabulary=11, n=3)),
    words=("all 8 tokens on 2 ranks", "all 11 tokens on 3 ranks"),
    answer=_embedded,
    right="each token has one rank that gives its vector, and zeros from the others.",
)


# --- the loss of scores that are cut --------------------------------------------------------------


class _Lost(NamedTuple):
    loss: float | str
    number_of_messages: int


def _scores_and_targets(n, vocabulary, largest):
    """[4, vocabulary] and [4]. A target has two scores of `largest`, on two ranks."""
    (scores,) = drawn(vocabulary, (4, vocabulary))
    scores[1, 0] = scores[1, vocabulary // 2] = scores[2, 0] = largest
    return scores, torch.tensor([0, vocabulary // 2, vocabulary - 1, vocabulary // n])


def _loss_of_ranks(solution, n, vocabulary, largest):
    """The loss that each rank has, and how many messages it took."""
    scores, targets = _scores_and_targets(n, vocabulary, largest)

    def work(dist):
        rank = dist.get_rank()
        parts = scores.tensor_split(n, 1)
        begin = sum(part.shape[1] for part in parts[:rank])
        loss = solution(parts[rank].clone(), targets.clone(), begin, dist)
        if isinstance(loss, float):
            return "a number has no gradient: return the tensor, without .item()."
        if loss.numel() != 1:
            return f"{loss.numel()} numbers: one loss, the mean over tokens, is wanted."
        value = float(f"{loss.item():.9g}")
        return _Lost(value if math.isfinite(value) else str(value), dist.reductions)

    return value_of_ranks(n, work)


loss_of_cut_scores = topic.exercise(
    "loss_of_cut_scores",
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
    right="two messages, with three numbers in all for each target, whatever the vocabulary.",
)


# --- gate and up ----------------------------------------------------------------------------------


class _Gated(NamedTuple):
    output: list
    gradient_of_x: list
    sums_forward: int
    sums_backward: int


def _gated_of_ranks(solution, n):
    """Output and gradient of x, and the sums made forward and backward, on each rank."""
    x, gate, up, down = drawn(n, (2, 4), (2 * n, 4), (2 * n, 4), (4, 2 * n))

    def work(dist):
        rank, (enter, leave, sent) = dist.get_rank(), _pairs(dist)
        parts = [w.tensor_split(n)[rank] for w in (gate, up)] + [down.tensor_split(n, 1)[rank]]
        own = x.clone().requires_grad_()
        y = solution(own, *parts, enter, leave)
        y.pow(2).sum().backward()
        gradient = torch.zeros_like(own) if own.grad is None else own.grad
        return _Gated(nine_digits(y), nine_digits(gradient), sent.forward, sent.backward)

    return value_of_ranks(n, work)


def gated(x, gate, up, down, enter, leave):
    x = enter(x)
    return leave((F.silu(x @ gate.T) * (x @ up.T)) @ down.T)


_GATES = {
    "no gate": lambda gate, up: up,
    "SiLU of both": lambda gate, up: F.silu(gate) * F.silu(up),
    "SiLU of up, and the gate as it is": lambda gate, up: gate * F.silu(up),
    "SiLU of the product": lambda gate, up: F.silu(gate * up),
    "a sum of the two": lambda gate, up: F.silu(gate) + up,
    "a product without SiLU": lambda gate, up: gate * up,
    "a sigmoid": lambda gate, up: torch.sigmoid(gate) * up,
    "GELU": lambda gate, up: F.gelu(gate) * up,
    "ReLU": lambda gate, up: F.relu(gate) * up,
}


gate_and_up = topic.exercise(
    "gate_and_up",
    gated,
    cases=(dict(n=2), dict(n=3)),
    words=("2 ranks", "3 ranks"),
    answer=_gated_of_ranks,
    right="one sum forward, one backward, with a gate as without.",
)


# --- gradients of what is whole -------------------------------------------------------------------

_NAMES = ("attention.qkv.weight", "attention_norm.weight", "attention_norm.bias")
_NAMES += ("attention.output.weight", "attention.output.bias", "embedding.positions")
_CUT = ("attention.qkv.weight", "attention.output.weight")


class _Summed(NamedTuple):
    gradients: list
    number_of_messages: int


def _gradients_of(rank):
    return dict(zip(_NAMES, drawn(100 + rank, *[(3,), (2, 2), (4,)] * 2)))


def _summed_of_ranks(solution, n):
    """Each rank's gradients afterwards, and its messages."""

    def work(dist):
        gradients = _gradients_of(dist.get_rank())
        tensors = list(gradients.values())
        if solution(gradients, set(_CUT), dist) is ...:
            return ...
        return _Summed(list(map(nine_digits, tensors)), dist.reductions)

    return value_of_ranks(n, work)


def sum_whole(gradients, cut, dist):
    whole = [gradient for name, gradient in gradients.items() if name not in cut]
    together = torch.cat([gradient.flatten() for gradient in whole])
    dist.all_reduce(together)
    for gradient, part in zip(whole, together.split([each.numel() for each in whole])):
        gradient.copy_(part.view(gradient.shape))


gradients_of_own_tokens = topic.exercise(
    "gradients_of_own_tokens",
    sum_whole,
    cases=(dict(n=2), dict(n=3)),
    words=("2 ranks", "3 ranks"),
    answer=_summed_of_ranks,
    right="everything that is whole, as a sum, in one message.",
)


# --- dropout --------------------------------------------------------------------------------------


class _Masked(NamedTuple):
    mask: list
    bytes_of_its_memory: int
    next_number_drawn: float


def _masks_of_ranks(solution, n, heads):
    """Every rank's part of the mask, and the bytes of the memory that it lies in."""
    found = []
    for rank in range(n):
        generator = torch.Generator().manual_seed(11)  # all ranks have one state
        mask = solution((2, heads, 3), 1, rank, n, generator)
        after = torch.rand(1, generator=generator).item()
        found.append(_Masked(mask.tolist(), mask.untyped_storage().nbytes(), round(after, 9)))
    return OfRanks(found)


def mask(shape, dim, rank, ranks, generator):
    whole = torch.rand(shape, generator=generator) < 0.9
    return whole.tensor_split(ranks, dim)[rank].clone()


same_dropout_on_any_ranks = topic.exercise(
    "same_dropout_on_any_ranks",
    mask,
    cases=(dict(n=2, heads=4), dict(n=3, heads=6)),
    words=("4 heads on 2 ranks", "6 heads on 3 ranks"),
    answer=_masks_of_ranks,
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
    """The plain model's gradients, and the split model's first forward and backward, in which
    shardlab compares ranks; then the seed is what the plain model's dropout began with."""
    inputs, targets = batch
    torch.manual_seed(1)
    next_token_loss(plain(inputs), targets).backward()
    vocabulary_parallel_loss(model(inputs), targets, model.config.vocabulary).backward()
    model.zero_grad()
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


parameters_on_two_ranks = topic.exercise(
    "parameters_on_two_ranks",
    [184_608, 184_608],
    name="found",
    cases=({},),
    answer=list_of_ranks,
    of_a_value=True,
    hint="A function that splits the model and adds up parameter.nbytes; ranks(2); run; close.",
    right="two ranks of your own, and each keeps a little more than half of the model.",
)
