"""Chapter 6: ZeRO. What readers write runs in this process, the clipping on thread ranks: no
check can hang."""

import weakref
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from coursekit.exercises.answers import list_of_ranks, nine_digits
from coursekit.exercises.checker import Failure
from coursekit.exercises.edits import Topic
from coursekit.exercises.numbers import plain_numbers
from coursekit.exercises.thread_ranks import answer_of_ranks
from coursekit.lab import small_gpt
from shardlab import collectives

topic = Topic(__name__)

# --- whose elements -------------------------------------------------------------------------------


def _bounds_of_all(solution, elements, ranks):
    """(start, end) of each rank, so that every element is asked for; a blank that was left in a
    part of one as a blank."""
    found = []
    for rank in range(ranks):
        result = solution(elements, ranks, rank)
        if result is None or result is ...:
            return result
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeError(
                "it is to return two numbers, where the shard begins and where it ends."
            )
        if any(part is ... for part in result):
            return ...
        if any(isinstance(part, float) for part in result):
            raise TypeError(
                f"it returned {result!r}: bounds are whole numbers, for a slice takes no others."
            )
        found.append(tuple(plain_numbers(list(result))))
    return found


bounds_of_a_shard = topic.exercise(
    "bounds_of_a_shard",
    answer=_bounds_of_all,
    hint="divmod(elements, ranks) gives two numbers. How many elements are before this rank's?",
    cases=tuple(dict(elements=elements, ranks=4) for elements in (8, 10, 9, 11, 2)),
    right="every element has one owner, and no shard is more than one element larger than another.",
)


# --- a step of stage 1 ----------------------------------------------------------------------------


class StageStep(NamedTuple):
    """The tensors of a rank after a step, and what it did."""

    parameters: list
    elements_updated: int
    reduce_scatters: int
    all_gathers: int


_RATE = 0.1  # an update moves an element by less


def _parameters(elements):
    return torch.arange(1.0, 1 + elements, dtype=torch.float64)


def _gradients(elements, rank):
    return torch.arange(elements, dtype=torch.float64).sub(1.5) * (1 + rank) ** 2


def _stepped(solution, n, elements):
    """The tensors of each rank after solution(parameters, gradients, update, rank, ranks,
    reduce_scatter, all_gather)."""

    def work(dist):
        rank, counted = dist.get_rank(), dict(updated=0, reduce_scatters=0, all_gathers=0)
        start, end = bounds_of_a_shard.reference(elements, n, rank)

        def update(own, gradient):
            if own.shape != gradient.shape:
                raise ValueError(
                    f"update got {own.numel()} parameters and {gradient.numel()} gradients: give"
                    " it the same elements of both."
                )
            own -= _RATE * gradient / (gradient.abs() + 1)
            counted["updated"] += own.numel()

        def reduce_scatter(full):
            if full.numel() != elements:
                raise ValueError(
                    f"reduce_scatter got {full.numel()} of {elements} elements: it takes the whole"
                    " tensor and gives this rank's shard of the sum."
                )
            total = full.clone()
            dist.all_reduce(total)
            counted["reduce_scatters"] += 1
            return total[start:end]

        def all_gather(shard):
            if shard.numel() != end - start:
                raise ValueError(
                    f"all_gather got {shard.numel()} elements: the shard of this rank has"
                    f" {end - start}."
                )
            whole = torch.zeros(elements, dtype=torch.float64)
            whole[start:end] = shard
            dist.all_reduce(whole)
            counted["all_gathers"] += 1
            return whole

        parameters, gradients = _parameters(elements), _gradients(elements, rank)
        memory = parameters.view(-1)  # whatever becomes of the name
        solution(parameters, gradients, update, rank, n, reduce_scatter, all_gather)
        return StageStep(nine_digits(memory), *counted.values())

    return answer_of_ranks(n, work)


step_of_stage_1 = topic.exercise(
    "step_of_stage_1",
    cases=(dict(n=2, elements=8), dict(n=3, elements=10)),
    words=("2 ranks, 8 elements", "3 ranks, 10 elements"),
    answer=_stepped,
    hint="Three moves: reduce-scatter, update, all-gather. Whose elements does this rank update,"
    " and how do the others hear of the result?",
    right="reduce-scatter, update of the shard, all-gather: the states of a shard are enough.",
)


class ByHand(NamedTuple):
    """A training with the reader's step, on one rank."""

    elements_of_the_shard: int
    optimizer_bytes: int
    bytes_sent_in_a_step: int
    difference_from_plain: float


def as_views(model):
    """All parameters in one tensor, of which they become views."""
    flat = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(flat, model.parameters())
    return flat


def given_to_a_step(flat, own, optimizer):
    """(update, reduce_scatter, all_gather) of a step on real ranks: the optimizer updates `own`,
    this rank's part of `flat`."""

    def update(shard, gradient):
        own.data.copy_(shard)  # the same memory, unless the reader has made a copy
        own.grad = gradient
        optimizer.step()
        shard.copy_(own.data)

    def reduce_scatter(full):
        shard = torch.empty_like(own.data)
        collectives.reduce_scatter(shard, full)
        return shard

    def all_gather(shard):
        whole = torch.empty_like(flat)
        collectives.all_gather(whole, shard)
        return whole

    return update, reduce_scatter, all_gather


def trained_plainly(part_loss, steps, n, **sizes):
    """The parameters of the small GPT in one tensor, after AdamW's steps on the parts of n ranks,
    in this process alone."""
    model = small_gpt(torch.float64, **sizes)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(steps):
        optimizer.zero_grad()
        for part in range(number * n, (number + 1) * n):
            (part_loss(model, part) / n).backward()
        optimizer.step()
    return as_views(model)


# --- task: two ranks of the reader's own ----------------------------------------------------------


def _list_of_bytes(given):
    kinds = "those are all kinds of bytes: take .optimizer of them on each rank."
    wanted = "numbers are wanted: each rank returns ledger.bytes.optimizer, which is one."
    return list_of_ranks(
        given,
        (lambda one: hasattr(one, "optimizer"), kinds),
        (lambda one: not isinstance(one, (int, float)), wanted),
    )


states_on_two_ranks = topic.exercise(
    "states_on_two_ranks",
    [338_228, 338_220],
    name="found",
    cases=({},),
    answer=_list_of_bytes,
    of_a_value=True,
    hint="Four steps: a function that shards, weighs a step and returns ledger.bytes.optimizer;"
    " ranks(2); run; close. The first section's weigh has all of the function.",
    right="two ranks of your own, and each keeps half of Adam's states.",
)


# --- divided by what ------------------------------------------------------------------------------

# GPUs, of these data-parallel ranks, microbatches in a step
_PLANS = ((8, 2, 3), (8, 8, 1), (8, 4, 1), (6, 3, 4))


def _reduced(solution, world_size, data_parallel, accumulation_steps):
    """The sum over data-parallel ranks and microbatches of what the solution makes of each
    gradient, over the mean of all."""
    result = solution(1.0, world_size, data_parallel, accumulation_steps)
    if not isinstance(result, (int, float)) or isinstance(result, bool):
        return result
    return round(result * data_parallel * accumulation_steps, 12)


def before_the_scatter(gradient, world_size, data_parallel, accumulation_steps):
    return gradient / (data_parallel * accumulation_steps)


mean_before_the_scatter = topic.exercise(
    "mean_before_the_scatter",
    before_the_scatter,
    cases=tuple(dict(world_size=w, data_parallel=d, accumulation_steps=k) for w, d, k in _PLANS),
    words=tuple(
        f"{w} GPUs, {d} of them with examples of their own, {k} microbatch{'es' * (k > 1)} a step"
        for w, d, k in _PLANS
    ),
    answer=_reduced,
    right="the mean over all that is summed: data-parallel ranks times microbatches.",
)


# --- the norm of all shards -----------------------------------------------------------------------

_SHARDS = (
    ([[1.0, 2.0, 2.0], [0.0, 4.0, 0.0]], 1.0),
    ([[1.0, 2.0], [2.0], [4.0]], 2.0),
    ([[0.3], [0.4]], 1.0),
)


def _clipped(solution, shards, max_norm):
    def work(dist):
        gradient = torch.tensor(shards[dist.get_rank()], dtype=torch.float64)
        solution(gradient, max_norm, dist)
        return [round(value, 5) for value in gradient.tolist()]  # torch adds 1e-6 to a norm

    return answer_of_ranks(len(shards), work)


clip_by_the_norm_of_all = topic.exercise(
    "clip_by_the_norm_of_all",
    cases=tuple(dict(shards=shards, max_norm=max_norm) for shards, max_norm in _SHARDS),
    words=(
        "2 ranks, a norm of 5, max_norm=1",
        "3 ranks, a norm of 5, shards of different sizes, max_norm=2",
        "2 ranks, a norm of 0.5, max_norm=1",
    ),
    answer=_clipped,
    hint="Whose squares do you have? And what adds up over ranks: norms or squares?",
    right="squares summed over all ranks, one root, one scale that all ranks share.",
)


# --- whose states ---------------------------------------------------------------------------------

_EIGHT = ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0])
_SAVED = (_EIGHT, _EIGHT, ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0], [8.0, 9.0, 10.0]))
_RANKS = (4, 2, 4)


def _resumed(solution, saved, ranks):
    """The part of the saved states that each rank gets."""
    shards = [torch.tensor(values, dtype=torch.float64) for values in saved]
    found = []
    for rank in range(ranks):
        try:
            result = solution([shard.clone() for shard in shards], rank, ranks)
        except Exception as error:
            return Failure.of(error)
        found.append(nine_digits(result))
    return found


def _states_of(saved, rank, ranks):
    return torch.cat(saved).tensor_split(ranks)[rank]


states_of_the_own_shard = topic.exercise(
    "states_of_the_own_shard",
    _states_of,
    name="states_of",
    cases=tuple(dict(saved=saved, ranks=ranks) for saved, ranks in zip(_SAVED, _RANKS)),
    words=(
        "saved by 4 ranks, resumed by 4",
        "saved by 4 ranks, resumed by 2",
        "10 states saved by 3 ranks, resumed by 4",
    ),
    answer=_resumed,
    right="joined and cut anew, as the parameters are: it resumes on any number of ranks.",
)


# --- bug hunt: weights that were gathered and stay ------------------------------------------------


class Kept(NamedTuple):
    """The gathering of the weights. Bytes are live bytes of what gather() has returned."""

    after_forward_bytes: int
    most_bytes: int
    after_backward_bytes: int
    gatherings_in_forward: int
    gatherings: int
    gradients_right: int
    last_gradient_over_the_right_one: float


def watch_gathered_weights(function, layers, width) -> Kept | str:
    """Run a chain of layers through `function`, an autograd.Function of (x, shard, gather,
    scatter), as rank 0 of two."""
    if not hasattr(function, "apply"):
        return "the check wants the class ShardedLinear, a torch.autograd.Function."
    generator = torch.Generator().manual_seed(layers)
    weights = [
        torch.randn(width, width, generator=generator, dtype=torch.float64) for _ in range(layers)
    ]
    shards = [nn.Parameter(weight[: width // 2].clone()) for weight in weights]
    others = {id(shard): weight[width // 2 :] for shard, weight in zip(shards, weights)}
    watched, most = [], 0

    def live():
        return sum(
            storage.nbytes()
            for storage in (reference() for reference in watched)
            if storage is not None
        )

    def gather(shard):  # [width/2, width] -> [width, width]: here the other rank's half is at hand
        nonlocal most
        whole = torch.cat([shard.detach(), others[id(shard)]])
        # the storage: weight.detach() is another tensor on the same bytes
        watched.append(weakref.ref(whole.untyped_storage()))
        most = max(most, live())
        return whole

    def scatter(gradient):
        return 2 * gradient[: width // 2]  # the other rank has the same x, and so the same gradient

    # so that every layer gathers
    x = start = torch.randn(3, width, generator=generator, dtype=torch.float64).requires_grad_()
    try:
        for shard in shards:
            x = function.apply(x, shard, gather, scatter)
        after_forward, in_forward = live(), len(watched)
        x.pow(2).sum().backward()
    except Exception as error:
        return Failure.of(error)
    del x
    plain = [nn.Parameter(weight) for weight in weights]
    for weight in plain:
        start = start @ weight.T
    start.pow(2).sum().backward()
    found = [torch.zeros_like(shard) if shard.grad is None else shard.grad for shard in shards]
    wanted = [2 * weight.grad[: width // 2] for weight in plain]
    right = sum(torch.allclose(*both, rtol=1e-9) for both in zip(found, wanted))
    length = round(float(found[-1].norm() / wanted[-1].norm()), 6)
    return Kept(after_forward, most, live(), in_forward, len(watched), right, length)


weights_that_stay = topic.exercise(
    "weights_that_stay",
    cases=(dict(layers=3, width=4), dict(layers=6, width=8)),
    words=("3 layers of width 4", "6 layers of width 8"),
    answer=watch_gathered_weights,
    hint="What does ctx keep from forward to backward, and how large is that?",
    right="one gathered weight at a time, gathered twice: once for forward, once for backward.",
)
