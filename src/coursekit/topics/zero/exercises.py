"""Chapter 6: ZeRO. What readers write runs in this process, the clipping on thread ranks: no
check can hang."""

import weakref
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from coursekit.exercises.answers import nine_digits
from coursekit.exercises.checker import Exercise, Failure, Misconception
from coursekit.exercises.thread_ranks import answer_of_ranks
from coursekit.lab import small_gpt
from shardlab import collectives

# --- whose elements -------------------------------------------------------------------------------


def _shard(elements, ranks, rank):
    each, more = divmod(elements, ranks)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def _sized(sizes, start=None):
    """Bounds from all sizes, which come from each = elements // ranks and more = elements % ranks;
    or with another start."""

    def bounds(elements, ranks, rank):
        each, more = divmod(elements, ranks)
        all_sizes = [sizes(each, more, r, ranks) for r in range(ranks)]
        begin = sum(all_sizes[:rank]) if start is None else start(each, more, rank)
        return begin, begin + all_sizes[rank]

    return bounds


def _fair(each, more, rank, ranks):
    return each + (rank < more)


def _ceil_shard(elements, ranks, rank):
    each = -(-elements // ranks)
    return min(rank * each, elements), min((rank + 1) * each, elements)


def _whole_answer(solution, **case):
    """The answer; a blank that was left in a part of it as a blank."""
    result = solution(**case)
    if result is None or result is ...:
        return result
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError("it is to return two numbers, where the shard begins and where it ends.")
    if isinstance(result, tuple) and any(isinstance(part, float) for part in result):
        raise TypeError(
            f"it returned {result!r}: bounds are whole numbers, for a slice takes no others."
        )
    return ... if isinstance(result, tuple) and any(part is ... for part in result) else result


bounds_of_a_shard = Exercise(
    name="bounds",
    reference=_shard,
    answer=_whole_answer,
    hint="divmod(elements, ranks) gives two numbers. How many elements are before this rank's?",
    cases=tuple(  # all ranks of each, so that every element is asked for
        dict(elements=elements, ranks=4, rank=rank)
        for elements in (8, 10, 9, 11, 2)
        for rank in range(4)
    ),
    misconceptions=(
        Misconception(
            lambda elements, ranks, rank: (
                rank * (elements // ranks),
                (rank + 1) * (elements // ranks),
            ),
            "where the ranks do not divide the elements, the last ones are in no shard: nobody"
            " reduces them, nobody updates them, and nothing raises. The first elements % ranks"
            " shards have one more.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                rank * (elements // ranks),
                elements if rank == ranks - 1 else (rank + 1) * (elements // ranks),
            ),
            "every element has an owner now, but the last rank has the whole remainder, up to"
            " ranks - 1 more than the others: its shard sets the peak. Deal the remainder out,"
            " one to each of the first ranks.",
        ),
        Misconception(
            _ceil_shard,
            "that is how torch.chunk cuts: rounded up, so that the last shards are short or"
            " empty. Every element has an owner, but this book's collectives cut as tensor_split"
            " does: sizes that differ by one at most, the larger ones first.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                rank * -(-elements // ranks),
                (rank + 1) * -(-elements // ranks),
            ),
            "rounded up, the last shards reach beyond the end: a slice there is short, and no error"
            " says so.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                _shard(elements, ranks, rank)[0],
                _shard(elements, ranks, rank)[1] - 1,
            ),
            "the end of a slice in Python is the first element that is not in it: yours leaves one"
            " out in every shard.",
        ),
        Misconception(
            lambda elements, ranks, rank: _shard(elements, ranks, (rank + 1) % ranks),
            "that is the right neighbour's shard. The ring leaves the sum of chunk r on rank r.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                0 if rank == 0 else rank * (elements // ranks) + elements % ranks,
                (rank + 1) * (elements // ranks) + elements % ranks,
            ),
            "the first rank has the whole remainder, up to ranks - 1 more than the others: its"
            " shard sets the peak. Deal the remainder out, one to each of the first ranks.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                rank * -(-elements // ranks),
                min((rank + 1) * -(-elements // ranks), elements),
            ),
            "that is how torch.chunk cuts, rounded up; and the last shards begin beyond the end."
            " Sizes differ by one at most here, the larger ones first.",
        ),
        Misconception(
            lambda elements, ranks, rank: _shard(elements, ranks, (rank - 1) % ranks),
            "that is the left neighbour's shard: ranks are counted from 0.",
        ),
        Misconception(
            _sized(_fair, lambda each, more, rank: rank * each),
            "the first shards before it have one element more, and you begin as if they had not:"
            " yours begin too early, so that shards overlap. Add min(rank, more).",
        ),
        Misconception(
            _sized(_fair, lambda each, more, rank: rank * each + rank),
            "yours begin too late, and elements between two shards are in none: of the ranks"
            " before this one, min(rank, more) have one element more.",
        ),
        Misconception(
            _sized(_fair, lambda each, more, rank: rank * each + more),
            "yours begin too late, and elements between two shards are in none: of the ranks"
            " before this one, min(rank, more) have one element more.",
        ),
        Misconception(
            _sized(
                lambda each, more, rank, ranks: each + (rank <= more),
                lambda each, more, rank: rank * each + min(rank, more),
            ),
            "one rank too many has an element more: rank < more, since ranks are counted from 0.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                rank * elements // ranks,
                (rank + 1) * elements // ranks,
            ),
            "sizes differ by one, and the order is another: the larger ones are not the first."
            " Every element has an owner, but this book's collectives cut otherwise.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                round(rank * elements / ranks),
                round((rank + 1) * elements / ranks),
            ),
            "sizes differ by one, and the order is another: the larger ones are not the first."
            " Every element has an owner, but this book's collectives cut otherwise.",
        ),
        Misconception(
            _sized(lambda each, more, rank, ranks: each + (rank >= ranks - more)),
            "the larger ones come first here, and yours are the last. Every element has an"
            " owner, but this book's collectives cut otherwise.",
        ),
        Misconception(
            lambda elements, ranks, rank: (
                _shard(elements, ranks, rank)[0],
                _shard(elements, ranks, rank)[1] - _shard(elements, ranks, rank)[0],
            ),
            "start and length: a slice wants the end, not the length.",
        ),
        Misconception(
            _sized(_fair, lambda each, more, rank: rank * (each + (rank < more))),
            "the start is rank times this rank's own size, and the shards before it may have"
            " another: each of the first elements % ranks shards has one element more.",
        ),
        Misconception(
            lambda elements, ranks, rank: _shard(elements, ranks, rank - 1),
            "ranks are counted from 0: yours starts one shard too early, on rank 0 before the"
            " first element.",
        ),
        Misconception(
            _sized(
                lambda each, more, rank, ranks: each + more * (rank < more),
                lambda each, more, rank: rank * each + min(rank, more),
            ),
            "each of the first shards gets the whole remainder, so shards overlap: one more, not"
            " the whole remainder.",
        ),
    ),
    right="every element has one owner, and no shard is more than one element larger than another.",
)


# --- a step of stage 1 ----------------------------------------------------------------------------


class StageStep(NamedTuple):
    """The tensors of a rank after a step, and what it did."""

    parameters: list
    elements_updated: int
    reduce_scatters: int
    all_gathers: int


def _stepped(solution, n, elements):
    """The tensors of each rank after solution(parameters, gradients, update, rank, ranks,
    reduce_scatter, all_gather)."""

    def work(dist):
        rank, counted = dist.get_rank(), dict(updated=0, reduce_scatters=0, all_gathers=0)
        start, end = _shard(elements, n, rank)

        def update(own, gradient):
            if own.shape != gradient.shape:
                raise ValueError(
                    f"update got {own.numel()} parameters and {gradient.numel()} gradients: give"
                    " it the same elements of both."
                )
            own -= 0.1 * gradient / (gradient.abs() + 1)
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

        parameters = torch.arange(1.0, 1 + elements, dtype=torch.float64)
        gradients = torch.arange(elements, dtype=torch.float64).sub(1.5) * (1 + rank) ** 2
        memory = parameters.view(-1)  # whatever becomes of the name
        solution(parameters, gradients, update, rank, n, reduce_scatter, all_gather)
        return StageStep(nine_digits(memory), *counted.values())

    return answer_of_ranks(n, work)


def _stage_1_step(mean=True, reduce=True, gather=True, copy=True, over=None, then=None):
    def step(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
        start, end = _shard(parameters.numel(), ranks, rank)
        own, gradient = parameters[start:end], gradients[start:end]
        if reduce:
            gradient = reduce_scatter(gradients) / (ranks if mean else 1)
        if over:
            gradient = gradient / over(ranks)
        update(own, gradient)
        if gather:
            whole = all_gather(own)
            if copy:
                parameters.copy_(then(whole, ranks) if then else whole)

    return step


def _copied_step(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    start, end = _shard(parameters.numel(), ranks, rank)
    update(parameters[start:end].clone(), reduce_scatter(gradients) / ranks)
    parameters.copy_(all_gather(parameters[start:end]))


def _gathered_gradients(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    start, end = _shard(parameters.numel(), ranks, rank)
    gradient = reduce_scatter(gradients) / ranks
    update(parameters[start:end], gradient)
    parameters.copy_(all_gather(gradient))


def _not_updated(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    start, end = _shard(parameters.numel(), ranks, rank)
    reduce_scatter(gradients)
    parameters.copy_(all_gather(parameters[start:end]))


def _stage_0_step(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    update(parameters, all_gather(reduce_scatter(gradients) / ranks))


def _on_rank_0_alone(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    start, end = _shard(parameters.numel(), ranks, rank)
    gradient = reduce_scatter(gradients) / ranks
    if rank == 0:
        update(parameters[start:end], gradient)
    parameters.copy_(all_gather(parameters[start:end]))


def _another_shard(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    start, end = _shard(parameters.numel(), ranks, ranks - 1 - rank)
    update(parameters[start:end], reduce_scatter(gradients) / ranks)
    parameters.copy_(all_gather(parameters[start:end]))


def _scattered_parameters(parameters, gradients, update, rank, ranks, reduce_scatter, all_gather):
    start, end = _shard(parameters.numel(), ranks, rank)
    update(reduce_scatter(parameters), reduce_scatter(gradients) / ranks)
    parameters.copy_(all_gather(parameters[start:end]))


step_of_stage_1 = Exercise(
    name="step",
    reference=_stage_1_step(),
    cases=(dict(n=2, elements=8), dict(n=3, elements=10)),
    words=("2 ranks, 8 elements", "3 ranks, 10 elements"),
    answer=_stepped,
    hint="Three moves: reduce-scatter, update, all-gather. Whose elements does this rank update,"
    " and how do the others hear of the result?",
    misconceptions=(
        Misconception(
            _stage_1_step(mean=False),
            "reduce_scatter gives the sum over the ranks: divide by their number before the update,"
            " or the update is that of another batch.",
        ),
        Misconception(
            _stage_1_step(reduce=False),
            "you update the shard with this rank's own gradients: those of the other ranks' data"
            " are lost. reduce_scatter(gradients) gives this rank's shard of the sum.",
        ),
        Misconception(
            _stage_1_step(gather=False),
            "each rank has new parameters in its own shard and old ones everywhere else: after one"
            " step the models differ. all_gather(own) gives everybody all of them.",
        ),
        Misconception(
            _stage_1_step(copy=False),
            "you gather the parameters and drop them, or gather them before the update: write what"
            " all_gather then returns into parameters, in place, parameters.copy_(...).",
        ),
        Misconception(
            _stage_0_step,
            "the right numbers, and every rank has updated every element: so it keeps the states"
            " of every element, and stage 1 has saved nothing. Update the shard, then gather.",
        ),
        Misconception(
            lambda parameters, gradients, update, *_: update(parameters, gradients),
            "each rank updates everything with its own gradients: nothing was sent, and the models"
            " drift apart.",
        ),
        Misconception(lambda *_: None, "nothing was sent, and nothing updated."),
        Misconception(
            _stage_1_step(reduce=False, over=lambda ranks: ranks),
            "you update the shard with this rank's own gradients, divided: those of the other"
            " ranks' data are lost. reduce_scatter(gradients) gives this rank's shard of the sum.",
        ),
        Misconception(
            _stage_1_step(over=lambda ranks: ranks),
            "divided twice by the number of ranks: once is the mean.",
        ),
        Misconception(
            _stage_1_step(mean=False, over=lambda ranks: 1 / ranks),
            "multiplied. reduce_scatter gives the sum over the ranks: divide by their number.",
        ),
        Misconception(
            _stage_1_step(mean=False, then=lambda whole, ranks: whole / ranks),
            "the parameters are divided, and it is the sum of the gradients that has to be:"
            " gradient / ranks, before the update.",
        ),
        Misconception(
            _copied_step,
            "parameters is as it was. Either the optimizer has updated a copy, and you gather the"
            " shard of parameters: gather what was updated. Or what all_gather returns only got a"
            " name: write it into parameters, in place, parameters.copy_(...).",
        ),
        Misconception(
            _on_rank_0_alone,
            "rank 0 alone updates its shard: every rank updates its own, and no rank does it for"
            " another.",
        ),
        Misconception(
            _another_shard,
            "those are another rank's parameters, updated with this rank's gradients:"
            " reduce_scatter gives rank r shard r, bounds(elements, ranks, rank).",
        ),
        Misconception(
            _scattered_parameters,
            "reduce_scatter is for gradients. The parameters are the same on all ranks, so the own"
            " shard is a slice, parameters[begin:end], and update changes it in place.",
        ),
        Misconception(
            _gathered_gradients,
            "you gather the gradients into parameters: all_gather(own), the updated shard, is"
            " what the others need.",
        ),
        Misconception(
            _not_updated,
            "the optimizer was never called: update(own, gradient) comes between the two messages.",
        ),
        Misconception(
            _stage_1_step(mean=False, copy=False),
            "two things. reduce_scatter gives the sum over the ranks: divide by their number. And"
            " what all_gather returns has to be written into parameters, in place:"
            " parameters.copy_(...).",
        ),
    ),
    errors=(
        (
            "'NoneType' object has no attribute 'numel'",
            "update changes its first argument in place and returns nothing: call update(own,"
            " gradient), and gather own.",
        ),
        (
            "name 'bounds' is not defined",
            "Run the cell with your bounds first, then this one.",
        ),
        (
            "parameters and 0 gradients",
            "What reduce_scatter returns is this rank's shard already: no [begin:end] after it.",
        ),
        (
            r"all_gather got \d+ elements",
            "Give all_gather the updated shard, parameters[begin:end], not all parameters.",
        ),
    ),
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
    """The numbers that were found, or a sentence about their form."""
    found = given()
    if found is None or found is ...:
        return found
    if not isinstance(found, (list, tuple)):
        return (
            "one number is one rank's: run(function) gives a list of what each rank returned, and"
            " check wants the list."
        )
    if any(hasattr(one, "optimizer") for one in found):
        return "those are all kinds of bytes: take .optimizer of them on each rank."
    if not all(isinstance(one, (int, float)) for one in found):
        return "numbers are wanted: each rank returns ledger.bytes.optimizer, which is one."
    return list(found)


def _found(*nbytes):
    return lambda: list(nbytes)


states_on_two_ranks = Exercise(
    name="found",
    reference=_found(338_228, 338_220),
    cases=({},),
    answer=_list_of_bytes,
    of_a_value=True,
    hint="Four steps: a function that shards, weighs a step and returns ledger.bytes.optimizer;"
    " ranks(2); run; close. The first section's weigh has all of the function.",
    misconceptions=(
        Misconception(
            _found(676_604, 676_604),
            "each rank keeps all of Adam's states: that is the plain model or stage 0. Give"
            " zero.shard stage=1, and train with the optimizer that it returns.",
        ),
        Misconception(
            _found(0, 0),
            "Adam makes its states in the first step: ask the ledger after optimizer.step(), and"
            " let it watch the optimizer that zero.shard returned, Ledger(model, optimizer).",
        ),
        Misconception(
            _found(169_116, 169_116, 169_116, 169_108),
            "those are four ranks, world's: start two of your own, with ranks(2) as two, and call"
            " two.run.",
        ),
        Misconception(
            _found(676_604),
            "one rank alone keeps everything: start two, ranks(2).",
        ),
        Misconception(
            _found(338_404, 338_384),
            "that is stage 3, which cuts the model unit by unit and keeps a step counter for each"
            " parameter tensor: stage=1.",
        ),
        Misconception(
            _found(338_220, 338_220),
            "those are the bytes of the parameters, of the gradients, or of two shares without"
            " AdamW's step counters, 4 bytes each: return ledger.bytes.optimizer.",
        ),
        Misconception(
            _found(1_014_668, 1_014_660),
            "parameters, gradients and optimizer in one number: .optimizer of the bytes is asked"
            " for.",
        ),
        Misconception(
            _found(169_116, 169_116),
            "a quarter of the states: those are ranks of world, of which there are four. Start"
            " two of your own, with ranks(2) as two, and call two.run.",
        ),
        Misconception(
            _found(338_228),
            "that is one rank's number: run gives a list with those of both, and check wants it.",
        ),
        Misconception(
            _found(676_448),
            "that is the sum of both ranks: check wants the list, a number for each.",
        ),
        Misconception(
            _found(84_557, 84_555),
            "those are elements: with fp32 each has 4 bytes.",
        ),
    ),
    right="two ranks of your own, and each keeps half of Adam's states.",
)


# --- divided by what ------------------------------------------------------------------------------

# GPUs, of these data-parallel ranks, microbatches in a step
_PLANS = ((8, 8, 1), (8, 4, 1), (8, 2, 3), (6, 3, 4))


def _reduced(solution, world_size, data_parallel, accumulation_steps):
    """The sum over data-parallel ranks and microbatches of what the solution makes of each
    gradient, over the mean of all."""
    result = solution(1.0, world_size, data_parallel, accumulation_steps)
    if not isinstance(result, (int, float)) or isinstance(result, bool):
        return result
    return round(result * data_parallel * accumulation_steps, 12)


mean_before_the_scatter = Exercise(
    name="before_the_scatter",
    reference=lambda gradient, world_size, data_parallel, accumulation_steps: (
        gradient / (data_parallel * accumulation_steps)
    ),
    cases=tuple(dict(world_size=w, data_parallel=d, accumulation_steps=k) for w, d, k in _PLANS),
    words=tuple(
        f"{w} GPUs, {d} of them with examples of their own, {k} microbatch{'es' * (k > 1)} a step"
        for w, d, k in _PLANS
    ),
    answer=_reduced,
    misconceptions=(
        Misconception(
            lambda gradient, world_size, data_parallel, accumulation_steps: gradient,
            "the reduce-scatter sums, so what comes out is the sum over the ranks, not the mean."
            " With Adam nobody notices for a while: a common factor cancels, until gradients are"
            " clipped.",
        ),
        Misconception(
            lambda gradient, world_size, data_parallel, accumulation_steps: (
                gradient / (world_size * accumulation_steps)
            ),
            "divided by all GPUs. Where several of them share one copy of the model, they work on"
            " the same examples: the mean is over the data-parallel ranks, those whose gradients"
            " are summed.",
        ),
        Misconception(
            lambda gradient, world_size, data_parallel, accumulation_steps: (
                gradient / data_parallel
            ),
            "right for one microbatch. With k of them, k means are added up, so the update is k"
            " times too long.",
        ),
        Misconception(
            lambda gradient, world_size, data_parallel, accumulation_steps: gradient / world_size,
            "right only where every GPU has examples of its own and a step has one microbatch.",
        ),
        Misconception(
            lambda gradient, world_size, data_parallel, accumulation_steps: (
                gradient / accumulation_steps
            ),
            "the microbatches are averaged, the ranks are summed: divide by the number of"
            " data-parallel ranks, too.",
        ),
        Misconception(
            lambda gradient, world_size, data_parallel, accumulation_steps: (
                gradient / (data_parallel**2 * accumulation_steps)
            ),
            "divided twice by the number of ranks: once would do, before the sum or after it.",
        ),
    ),
    right="the mean over all that is summed: data-parallel ranks times microbatches.",
)


# --- the norm of all shards -----------------------------------------------------------------------

_SHARDS = (
    ([[3.0, 0.0], [0.0, 4.0]], 1.0),
    ([[1.0, 2.0], [2.0], [4.0]], 2.0),
    ([[0.3], [0.4]], 1.0),
)


def _clipped(solution, shards, max_norm):
    def work(dist):
        gradient = torch.tensor(shards[dist.get_rank()], dtype=torch.float64)
        solution(gradient, max_norm, dist)
        return [round(value, 5) for value in gradient.tolist()]  # torch adds 1e-6 to a norm

    return answer_of_ranks(len(shards), work)


def _clip(
    own=lambda g: g.pow(2).sum(),
    total=torch.sqrt,
    reduce=True,
    only_down=True,
    limit=lambda max_norm: max_norm,
    operator=None,
    turned=False,
):
    def clip(gradient, max_norm, dist):
        norm = own(gradient).reshape(1)
        if reduce:
            dist.all_reduce(norm, operator or dist.ReduceOp.SUM)
        scale = total(norm) / max_norm if turned else limit(max_norm) / total(norm)
        gradient.mul_(scale.clamp(max=1) if only_down else scale)

    return clip


def _clip_where(condition, scale):
    def clip(gradient, max_norm, dist):
        norm = gradient.pow(2).sum()
        dist.all_reduce(norm)
        if condition(norm.sqrt(), max_norm):
            gradient.mul_(scale(norm.sqrt(), max_norm))

    return clip


def _whole_gradient(gradient, max_norm, dist):
    dist.all_reduce(gradient)
    gradient.mul_((max_norm / gradient.norm()).clamp(max=1))


def _only_long_shards(gradient, max_norm, dist):
    if gradient.norm() > max_norm:
        _clip()(gradient, max_norm, dist)
    else:
        dist.all_reduce(gradient.pow(2).sum().reshape(1))


def _mean_over_ranks(gradient, max_norm, dist):
    mean = gradient.pow(2).sum()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    gradient.mul_((max_norm / mean.sqrt()).clamp(max=1))


clip_by_the_norm_of_all = Exercise(
    name="clip",
    reference=_clip(),
    cases=tuple(dict(shards=shards, max_norm=max_norm) for shards, max_norm in _SHARDS),
    words=(
        "2 ranks, a norm of 5, max_norm=1",
        "3 ranks, a norm of 5, shards of different sizes, max_norm=2",
        "2 ranks, a norm of 0.5, max_norm=1",
    ),
    answer=_clipped,
    hint="Whose squares do you have? And what adds up over ranks: norms or squares?",
    misconceptions=(
        Misconception(
            _clip(reduce=False),
            "the norm of the own shard. Every rank scales by another number, so the gradient as a"
            " whole changes its direction; a rank whose shard is short does not scale at all. Sum"
            " the squares over all ranks first.",
        ),
        Misconception(
            _clip(own=lambda g: g.norm(), total=lambda norm: norm),
            "norms do not add up, squares do: 3 and 4 make 5. Sum the squares and take the root"
            " once.",
        ),
        Misconception(
            _clip(total=lambda norm: norm), "the squares are summed, and nobody takes the root."
        ),
        Misconception(
            _clip(only_down=False),
            "a short gradient is made longer. Clipping only ever shortens: the scale is at most 1.",
        ),
        Misconception(
            _clip(limit=lambda max_norm: 1.0),
            "that is right for a max_norm of 1 alone: the scale is max_norm over the norm.",
        ),
        Misconception(
            _clip(own=lambda g: g.abs().max() ** 2),
            "that is the largest element of each shard, not its norm.",
        ),
        Misconception(
            lambda gradient, max_norm, dist: None,
            "nothing was clipped: the function changes the gradient in place, gradient.mul_(...)."
            " PyTorch's clip_grad_norm_ changes the .grad of what it is given, and knows one rank.",
        ),
        Misconception(
            _whole_gradient,
            "you have summed the gradients themselves, but each rank's shard has other elements."
            " Sum the squares, one number for each rank.",
        ),
        Misconception(
            _mean_over_ranks,
            "the norm is the root of the sum of all squares, not their mean: lab 5's gradients"
            " were averaged, and squares are not.",
        ),
        Misconception(
            _clip(own=lambda g: g.pow(2).mean()),
            "the norm is the root of the sum of all squares, not their mean over the elements.",
        ),
        Misconception(
            _clip_where(lambda norm, most: norm < most, lambda norm, most: most / norm),
            "the comparison is the wrong way round: a long gradient is as it was, and a short one"
            " is made longer.",
        ),
        Misconception(
            _clip_where(lambda norm, most: norm > most, lambda norm, most: norm / most),
            "upside down, so a long gradient becomes longer: the scale is max_norm over the norm.",
        ),
        Misconception(
            _clip(own=lambda g: g.sum().pow(2)),
            "the elements are summed before they are squared: square each one first,"
            " gradient.pow(2).sum().",
        ),
        Misconception(
            _clip(own=lambda g: g.abs().max(), total=lambda norm: norm),
            "those are the shards' largest elements, added up: the norm is the root of the sum of"
            " all squares.",
        ),
        Misconception(_clip(turned=True), "upside down: the scale is max_norm over the norm."),
        Misconception(
            lambda gradient, max_norm, dist: gradient.clamp_(-max_norm, max_norm),
            "that clips each element by itself, which turns the gradient to another direction:"
            " one scale for all of it, max_norm over its norm.",
        ),
        Misconception(
            _clip(operator=torch.distributed.ReduceOp.MAX),
            "that is the largest of the ranks' norms: the norm of all is the root of the sum of"
            " their squares.",
        ),
        Misconception(
            _only_long_shards,
            "a rank whose own shard is short does not scale. Every rank scales by the same"
            " number, whatever its own shard is like.",
        ),
    ),
    errors=(
        (
            "nobody can go on",
            "Every rank takes part in each all_reduce, also one whose own shard is short: call it"
            " before any if.",
        ),
        (
            "wants a tensor",
            "Leave .item() out until the sum is made: (gradient**2).sum() is a tensor.",
        ),
    ),
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
        if not isinstance(result, torch.Tensor):
            return result
        found.append(nine_digits(result))
    return found


states_of_the_own_shard = Exercise(
    name="states_of",
    reference=lambda saved, rank, ranks: torch.cat(saved).tensor_split(ranks)[rank],
    cases=tuple(dict(saved=saved, ranks=ranks) for saved, ranks in zip(_SAVED, _RANKS)),
    words=(
        "saved by 4 ranks, resumed by 4",
        "saved by 4 ranks, resumed by 2",
        "10 states saved by 3 ranks, resumed by 4",
    ),
    answer=_resumed,
    misconceptions=(
        Misconception(
            lambda saved, rank, ranks: saved[rank],
            "right as long as the same number of ranks resumes as has saved. With fewer, the"
            " last states are in nobody's hands; with more, there is no file for the last rank."
            " Join the shards, then cut anew.",
        ),
        Misconception(
            lambda saved, rank, ranks: saved[(rank + 1) % len(saved)],
            "the neighbour's states. The sizes agree, so nothing raises, and each parameter is"
            " updated with another one's mean and variance.",
        ),
        Misconception(
            lambda saved, rank, ranks: torch.cat(saved).tensor_split(ranks)[(rank + 1) % ranks],
            "joined and cut anew, and then the neighbour's part taken. Where sizes agree nothing"
            " raises, and each parameter is updated with another one's mean and variance.",
        ),
        Misconception(
            lambda saved, rank, ranks: torch.cat(saved).chunk(ranks)[rank],
            "chunk rounds up, so it may cut elsewhere than tensor_split, and even give fewer parts."
            " Whoever cut the parameters has to cut the states.",
        ),
        Misconception(
            lambda saved, rank, ranks: torch.cat(saved),
            "that is everybody's states on every rank: what stage 1 is there to avoid.",
        ),
        Misconception(
            lambda saved, rank, ranks: torch.cat(saved)[rank::ranks],
            "dealt out like cards: element 0 to rank 0, element 1 to rank 1. A shard is a run of"
            " neighbours.",
        ),
    ),
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
        return "no torch.autograd.Function"
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


def _sharded_linear(
    keep_weight=False,
    again=True,
    cache=False,
    use_shard=False,
    copied=False,
    more=(0, 0),
    own=None,
    cache_in_backward=False,
    of_x=torch.matmul,
):
    def whole(shard, gather):
        if not cache:
            return gather(shard)
        if not hasattr(shard, "whole"):
            shard.whole = gather(shard)
        return shard.whole

    class ShardedLinear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, shard, gather, scatter):
            for _ in range(more[0]):
                gather(shard)
            weight = whole(shard, gather)
            ctx.save_for_backward(
                x, shard, *([weight.clone() if copied else weight] if keep_weight else [])
            )
            ctx.gather, ctx.scatter = gather, scatter
            return x @ weight.T

        @staticmethod
        def backward(ctx, dy):
            x, shard = ctx.saved_tensors[:2]
            if again:
                weight = whole(shard, ctx.gather)
                ctx.left = weight if cache_in_backward else None
            else:
                weight = torch.cat([shard] * 2) if use_shard else ctx.saved_tensors[2]
            for _ in range(more[1]):
                ctx.gather(shard)
            gradient = own(dy.T @ x, shard) if own else ctx.scatter(dy.T @ x)
            return of_x(dy, weight), gradient, None, None

    return ShardedLinear


weights_that_stay = Exercise(
    name="ShardedLinear",
    reference=_sharded_linear(),
    cases=(dict(layers=3, width=4), dict(layers=6, width=8)),
    words=("3 layers of width 4", "6 layers of width 8"),
    answer=watch_gathered_weights,
    hint="What does ctx keep from forward to backward, and how large is that?",
    misconceptions=(
        Misconception(
            _sharded_linear(keep_weight=True, again=False),
            "autograd keeps every gathered weight from forward to backward: after forward the whole"
            " model is there, as if nothing were sharded. Save the shard, and gather again in"
            " backward.",
        ),
        Misconception(
            _sharded_linear(keep_weight=True),
            "you gather again, and keep the first one as well: the traffic of stage 3 with the"
            " memory of stage 2. save_for_backward needs x and the shard, nothing else.",
        ),
        Misconception(
            _sharded_linear(cache=True),
            "a cache of gathered weights is a second home of the model: after forward the whole"
            " model is there, and after backward it still is.",
        ),
        Misconception(
            _sharded_linear(again=False, use_shard=True),
            "the memory is right and the gradients are wrong: backward needs the other ranks' part"
            " of the weight, too. Gather it again.",
        ),
        Misconception(
            lambda *_: None, "the check wants the class ShardedLinear, a torch.autograd.Function."
        ),
        Misconception(
            _sharded_linear(keep_weight=True, again=False, copied=True),
            "a copy of every gathered weight is kept: after forward the whole model is there, as"
            " copies. Save the shard, and gather again in backward.",
        ),
        Misconception(
            _sharded_linear(keep_weight=True, again=False, copied=True, more=(1, 0)),
            "a copy of every gathered weight is kept: after forward the whole model is there, as"
            " copies, and forward gathers twice. Save the shard, and gather again in backward.",
        ),
        Misconception(
            _sharded_linear(more=(1, 0)),
            "gathered more often than needed: once in forward is enough, and once in backward.",
        ),
        Misconception(
            _sharded_linear(own=lambda gradient, shard: gradient[: len(shard)]),
            "the gradient of the shard is not the sum over the ranks: those of the other ranks'"
            " data have to be added, ctx.scatter(dy.T @ x).",
        ),
        Misconception(
            _sharded_linear(own=lambda gradient, shard: gradient[: len(shard)] / 2),
            "the gradient of the shard is divided, and it was right before: ctx.scatter(dy.T @ x).",
        ),
        Misconception(
            _sharded_linear(own=lambda gradient, shard: 2 * gradient.T[: len(shard)]),
            "the gradient of the weight is transposed: the weight is [out, in], and so is"
            " dy.T @ x.",
        ),
        Misconception(
            _sharded_linear(own=lambda gradient, shard: None),
            "the shard gets no gradient: backward returns ctx.scatter(dy.T @ x) in the second"
            " place, which is the shard's.",
        ),
        Misconception(
            _sharded_linear(of_x=lambda dy, weight: dy @ weight.T),
            "the gradient of x is wrong, so all layers but the last have wrong gradients: forward"
            " is x @ weight.T, and backward dy @ weight.",
        ),
        Misconception(
            _sharded_linear(cache_in_backward=True),
            "backward leaves the weight it has gathered in ctx, which lives on: a local name is"
            " let go when backward returns.",
        ),
    ),
    errors=(
        (
            "has no attribute 'gather'",
            "backward needs gather, which forward is given: keep it there, ctx.gather = gather.",
        ),
        (
            "name 'gather' is not defined",
            "backward needs gather, which forward is given: keep it there, ctx.gather = gather.",
        ),
        (
            "same dtype",
            "A copy of the weight in fewer bits is still a whole weight, kept: save the shard, and"
            " gather again in backward.",
        ),
        (
            r"\(3x2 and 4x2\)|\(3x4 and 8x4\)",
            "Forward computes with the whole weight, gather(shard), not with the shard.",
        ),
        (
            "shapes cannot be multiplied",
            "If that is in backward, a shard is where the whole weight belongs: keep gather in ctx,"
            " and gather again.",
        ),
        (
            "invalid gradient at index 1",
            "The shard needs a gradient of its own size, its part of the sum over the ranks:"
            " ctx.scatter(dy.T @ x). A backward returns gradients in the order of the arguments"
            " of forward.",
        ),
    ),
    right="one gathered weight at a time, gathered twice: once for forward, once for backward.",
)
