"""Chapter 5: data parallelism. What readers write runs on thread ranks (thread_ranks.py): no check
can hang."""

import copy
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from coursekit.exercises.answers import nine_digits, unless_blank
from coursekit.exercises.checker import Exercise, Misconception
from coursekit.exercises.thread_ranks import answer_of_ranks, value_of_ranks

# --- the mean of the gradients --------------------------------------------------------------------


def _averaged(solution, n, without):
    """Parameters and gradients on all ranks after solution(parameters, dist), and, where gradients
    are wrong, what the solution reduced. Rank `without` has no gradient of the first one."""

    def work(dist):
        rank = dist.get_rank()
        parameters = [
            nn.Parameter(torch.tensor(values, dtype=torch.float64))
            for values in ([1.0, 2.0], [5.0, 7.0])
        ]
        for number, parameter in enumerate(parameters):
            if not (rank == without and number == 0):
                parameter.grad = torch.tensor([3.0, 4.0 + number], dtype=torch.float64) * (rank + 1)
        reduced = _watched(dist, parameters)
        solution(parameters, dist)
        found = [
            (nine_digits(p), None if p.grad is None else nine_digits(p.grad)) for p in parameters
        ]
        return found, [] if [grad for _, grad in found] == means else reduced

    sums = [sum(rank + 1 for rank in range(n) if number or rank != without) for number in (0, 1)]
    means = [
        nine_digits(torch.tensor([3.0, 4.0 + number], dtype=torch.float64) * sums[number] / n)
        for number in (0, 1)
    ]
    return answer_of_ranks(n, work)


def _watched(dist, parameters):
    """A list to which every all-reduce of this rank adds what it sums."""
    reduced, all_reduce = [], dist.all_reduce

    def noted(tensor, *args, **named):
        of = {p.data_ptr(): "a parameter" for p in parameters}
        of |= {p.grad.data_ptr(): "a gradient" for p in parameters if p.grad is not None}
        if isinstance(tensor, torch.Tensor):
            reduced.append(of.get(tensor.data_ptr(), f"{tensor.numel()} other numbers"))
        return all_reduce(tensor, *args, **named)

    dist.all_reduce = noted
    return reduced


def _average(
    before=lambda g, n: g, after=lambda g, n: g / n, of=lambda p: p.grad, absent=torch.zeros_like
):
    def average(parameters, dist):
        n = dist.get_world_size()
        for p in parameters:
            if p.grad is None:
                if absent is None:
                    continue
                p.grad = absent(p)
            with torch.no_grad():
                x = of(p)
                x.copy_(before(x, n))
                dist.all_reduce(x)
                x.copy_(after(x, n))

    return average


def _filled(does):
    """Every gradient filled with zeros where it is None, then does(p, dist)."""

    def average(parameters, dist):
        for p in parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            does(p, dist)

    return average


def _zeros_of_no_parameter(parameters, dist):
    for p in parameters:
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(grad)
        grad /= dist.get_world_size()


def _divided_copy(p, dist):
    dist.all_reduce(p.grad.clone())
    p.grad /= dist.get_world_size()


def _mean_of_own_elements(p, dist):
    dist.all_reduce(p.grad.mean())
    p.grad /= dist.get_world_size()


def _from_rank_0(p, dist):
    dist.broadcast(p.grad, 0)


def _divided_on_rank_0(p, dist):
    dist.all_reduce(p.grad)
    p.grad /= 1 if dist.get_rank() else dist.get_world_size()


def _only_divided(p, dist):
    p.grad /= dist.get_world_size()


def _without_waiting(p, dist):
    dist.all_reduce(p.grad, async_op=True)
    p.grad /= dist.get_world_size()


def _by_the_rank(p, dist):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_rank()


def _multiplied(p, dist):
    dist.all_reduce(p.grad)
    p.grad *= dist.get_world_size()


def _mean_of_parameters(parameters, dist):
    for p in parameters:
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()


def _sum_and_a_new_name(parameters, dist):
    for p in parameters:
        dist.all_reduce(torch.zeros_like(p) if p.grad is None else p.grad)


def _mean_over_those_that_have_one(parameters, dist):
    for p in parameters:
        having = torch.tensor(float(p.grad is not None))
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        dist.all_reduce(having)
        p.grad /= having


def _sum_of_parameters(parameters, dist):
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p)
        p.grad /= dist.get_world_size()


mean_of_the_gradients = Exercise(
    name="average",
    reference=_average(),
    cases=(dict(n=2, without=None), dict(n=3, without=None), dict(n=3, without=1)),
    words=("2 ranks", "3 ranks", "3 ranks, one of which has not used a parameter"),
    answer=_averaged,
    hint="dist.all_reduce(tensor) leaves the sum of all ranks' tensors in each of them. Which"
    " tensor of a parameter differs between ranks? And a parameter without a gradient?",
    misconceptions=(
        Misconception(
            _average(after=lambda g, n: g),
            "that is the sum. With n ranks the update is n times too long, as if you had multiplied"
            " the learning rate by n: divide by dist.get_world_size(), in place. grad = ... / n"
            " only gives the name to another tensor.",
        ),
        Misconception(
            _average(before=lambda g, n: g / n),
            "divided twice: once before the sum and once after. The update is n times too short,"
            " and the loss still falls, only slowly. Keep one of the two.",
        ),
        Misconception(
            _average(of=lambda p: p),
            "you average the parameters. They are the same on all ranks, so nothing happens, and"
            " the gradients stay each rank's own: take p.grad.",
        ),
        Misconception(
            _sum_of_parameters,
            "you sum the parameters, and divide the gradients, which stay each rank's own: take"
            " p.grad both times.",
        ),
        Misconception(
            _average(absent=None),
            "a rank without a gradient leaves one all-reduce out, and from then on it is one behind"
            " the others: its second gradient is added to their first. It has to take part, with"
            " zeros.",
        ),
        Misconception(
            _average(after=lambda g, n: g / 2),
            "right for two ranks. The number of parameters, two here, and the number of ranks"
            " have nothing to do with each other: dist.get_world_size() gives the number of"
            " ranks.",
        ),
        Misconception(
            lambda parameters, dist: None,
            "nothing was sent: each rank has its own gradients, and after one update the models"
            " differ.",
        ),
        Misconception(
            _zeros_of_no_parameter,
            "every rank takes part, and where the gradient was None the mean is in a tensor that"
            " no parameter has: store the zeros in p.grad before the all-reduce.",
        ),
        Misconception(
            _filled(lambda p, dist: setattr(p, "grad", dist.all_reduce(p.grad))),
            "all_reduce returns nothing, so after p.grad = dist.all_reduce(p.grad) the gradient is"
            " None. The sum is in the tensor that it is given: call it, and divide p.grad.",
        ),
        Misconception(
            _filled(_only_divided),
            "divided, and nothing was sent: dist.all_reduce(p.grad) makes the sum first.",
        ),
        Misconception(
            _filled(_without_waiting),
            "nobody has waited for the sum: with async_op=True all_reduce returns a handle at once,"
            " and the sum is there after its wait(). Wait, and divide then.",
        ),
        Misconception(
            _filled(_divided_copy),
            "you have reduced a copy, and the sum is in that: all_reduce works in place, on the"
            " tensor that it is given. Give it p.grad itself.",
        ),
        Misconception(
            _filled(lambda p, dist: dist.all_reduce(p.grad.clone())),
            "you have reduced a copy, p.grad / n or a clone, and the mean is in that: all_reduce"
            " works in place. Reduce p.grad itself, and divide it.",
        ),
        Misconception(
            _filled(_by_the_rank),
            "divided by the number of this rank, which is 0 on the first: the number of ranks is"
            " dist.get_world_size().",
        ),
        Misconception(
            _filled(_mean_of_own_elements),
            "that is the mean over its own elements. The mean over the ranks is wanted, for each"
            " element: all-reduce p.grad, divide by n.",
        ),
        Misconception(
            _filled(_from_rank_0),
            "every rank has rank 0's gradients now, and those of the other examples are lost:"
            " sum them.",
        ),
        Misconception(_filled(_multiplied), "multiplied by n, and a mean is divided by n."),
        Misconception(
            _filled(_divided_on_rank_0),
            "divided on rank 0 alone: each rank has a gradient of its own to update with, so"
            " each divides.",
        ),
        Misconception(
            _average(after=lambda g, n: g / 4),
            "divided by 4, the number of this lab's ranks. dist.get_world_size() gives the number"
            " of ranks anywhere.",
        ),
        Misconception(
            _mean_of_parameters,
            "you average the parameters. They are the same on all ranks, so nothing happens, and"
            " the gradients stay each rank's own: take p.grad.",
        ),
        Misconception(
            _sum_and_a_new_name,
            "that is the sum, in a tensor that may not be any parameter's gradient: grad = grad / n"
            " puts the mean into a new tensor, which nobody reads. Where p.grad is None, store"
            " zeros in it; then work in place, on p.grad.",
        ),
        Misconception(
            _mean_over_those_that_have_one,
            "divided by the number of ranks that have used the parameter. The loss of the whole"
            " batch is a mean over all examples, also those that do not use it: divide by"
            " dist.get_world_size().",
        ),
        Misconception(
            lambda parameters, dist: _average()(parameters[:1], dist),
            "that is the first parameter alone: all of them have gradients.",
        ),
    ),
    errors=(
        (
            "for /: 'NoneType'",
            "all_reduce returns nothing: it works in place. Call it on p.grad, then divide p.grad.",
        ),
        (
            "'NoneType' object|got a NoneType",
            "A parameter that this rank has not used has no gradient, p.grad is None: give it"
            " zeros first, so that it takes part.",
        ),
        (
            "NoneType",
            "Something there is None. all_reduce returns nothing: it works in place. And a"
            " parameter that this rank has not used has no gradient: give it zeros first.",
        ),
        (
            "leaf Variable that requires grad",
            "You change the parameter. The mean is taken over gradients: take p.grad.",
        ),
    ),
    right="summed once, divided once, and every rank takes part in every all-reduce.",
)


# --- buckets --------------------------------------------------------------------------------------


def _in_buckets(solution, sizes, bucket_bytes):
    """The words for a bucketing: which gradients solution(gradients, bucket_bytes) puts
    together."""
    gradients = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    number_of = {id(gradient): number for number, gradient in enumerate(gradients)}
    filled = solution(gradients, bucket_bytes)
    if filled is None or filled is ...:
        return filled
    filled = list(filled)
    if not all(isinstance(bucket, (list, tuple)) for bucket in filled):
        raise TypeError("it returned something other than a list of buckets, which are lists.")
    try:
        named = [[number_of[id(gradient)] for gradient in bucket] for bucket in filled]
    except KeyError:
        raise ValueError("a bucket holds something that is not one of the gradients.") from None
    return f"yours are {', '.join(f'[{_listed(bucket)}]' for bucket in named) or 'no buckets'}."


def _listed(numbers):
    return " ".join(map(str, numbers))


def _buckets(order=reversed, full=lambda nbytes, limit: nbytes >= limit, rest=True, before=False):
    def buckets(gradients, bucket_bytes):
        filled, current = [], []
        for gradient in order(gradients):
            coming = sum(one.nbytes for one in [*current, gradient])
            if before and current and coming > bucket_bytes:
                filled.append(current)
                current = []
            current.append(gradient)
            if not before and full(coming, bucket_bytes):
                filled.append(current)
                current = []
        if current and rest:
            filled.append(current)
        return filled

    return buckets


def _before_and_from_an_empty_one(gradients, bucket_bytes):
    filled, current = [], []
    for gradient in reversed(gradients):
        if sum(one.nbytes for one in [*current, gradient]) > bucket_bytes:
            filled.append(current)
            current = []
        current.append(gradient)
    return [*filled, current]


def _emptied_buckets(gradients, bucket_bytes):
    return [[] for _ in _buckets()(gradients, bucket_bytes)]


def _never_anew(gradients, bucket_bytes):
    filled, current = [], []
    for gradient in reversed(gradients):
        current.append(gradient)
        if sum(one.nbytes for one in current) >= bucket_bytes:
            filled.append(current)
    return [*filled, current] if current else filled


def _cleared(gradients, bucket_bytes):
    filled, current = [], []
    for gradient in reversed(gradients):
        current.append(gradient)
        if sum(one.nbytes for one in current) >= bucket_bytes:
            filled.append(current)
            current.clear()
    return [*filled, current] if current else filled


def _total_never_anew(gradients, bucket_bytes):
    filled, current, total = [], [], 0
    for gradient in reversed(gradients):
        current.append(gradient)
        total += gradient.nbytes
        if total >= bucket_bytes:
            filled.append(current)
            current = []
    return [*filled, current] if current else filled


def _by_last(weight):
    """Full by what the last gradient weighs."""

    def buckets(gradients, bucket_bytes):
        filled, current = [], []
        for gradient in reversed(gradients):
            current.append(gradient)
            if weight(gradient, current) >= bucket_bytes:
                filled.append(current)
                current = []
        return [*filled, current] if current else filled

    return buckets


def _with_an_empty_one(gradients, bucket_bytes):
    filled = _buckets(rest=False)(gradients, bucket_bytes)
    return [*filled, list(reversed(gradients))[sum(map(len, filled)) :]]


buckets_in_the_order_of_backward = Exercise(
    name="make_buckets",  # as the core calls it
    reference=_buckets(),
    cases=(
        dict(sizes=(1, 2, 3, 4, 5), bucket_bytes=40),
        dict(sizes=(6, 1, 2, 3, 2), bucket_bytes=32),
        dict(sizes=(9, 4, 4), bucket_bytes=64),
        dict(sizes=(2, 2), bucket_bytes=10**6),
        dict(sizes=(9, 4, 4), bucket_bytes=8),
    ),
    words=(
        "gradients 0 to 4 of 8, 16, 24, 32 and 40 bytes, 40",
        "gradients 0 to 4 of 48, 8, 16, 24 and 16 bytes, 32",
        "gradients 0 to 2 of 72, 32 and 32 bytes, 64",
        "gradients 0 and 1 of 16 bytes, 1,000,000",
        "gradients 0 to 2 of 72, 32 and 32 bytes, 8",
    ),
    answer=_in_buckets,
    hint="Walk through the gradients from the last to the first, and ask after each: is the"
    " bucket full?",
    misconceptions=(
        Misconception(
            _buckets(order=iter),
            "these are the buckets of forward. Backward makes the last layer's gradients first, and"
            " a bucket that waits for the first layer leaves when all is over:"
            " reversed(gradients).",
        ),
        Misconception(
            _buckets(rest=False),
            "the gradients left at the end, which did not fill a bucket, are in no bucket: nobody"
            " sends those gradients, and the copies drift apart. Append them as a"
            " last bucket after the loop.",
        ),
        Misconception(
            _buckets(before=True),
            "you close a bucket before it would hold too much. That is a rule, too; here a bucket"
            " is closed as soon as it holds bucket_bytes or more, so append first and ask then.",
        ),
        Misconception(
            _before_and_from_an_empty_one,
            "you close a bucket before it would hold too much, and so put an empty one away before"
            " a gradient that is larger than a bucket. Here a bucket is closed as soon as it holds"
            " bucket_bytes or more: append first and ask then.",
        ),
        Misconception(
            _buckets(full=lambda nbytes, limit: nbytes / 8 >= limit),
            "you compare a number of elements with bytes: gradient.nbytes has the bytes.",
        ),
        Misconception(
            _buckets(full=lambda nbytes, limit: nbytes > limit),
            "a bucket that holds exactly bucket_bytes is full: >=, not >.",
        ),
        Misconception(
            _emptied_buckets,
            "all buckets are empty: clear() empties the list that you have just put away, for it is"
            " the same list. Begin a new one: current = [].",
        ),
        Misconception(
            _with_an_empty_one,
            "where the last bucket has just been filled, an empty one follows it: a message of no"
            " bytes costs a latency all the same. Append the rest only if there is one.",
        ),
        Misconception(
            lambda gradients, bucket_bytes: [[gradient] for gradient in reversed(gradients)],
            "a bucket for each gradient: that is as many messages as before.",
        ),
        Misconception(
            lambda gradients, bucket_bytes: [list(reversed(gradients))],
            "one bucket for everything: it leaves when the very last gradient is there, and nothing"
            " is hidden under backward. bucket_bytes are bytes: compare the bytes in a bucket with"
            " them, not how many gradients it has.",
        ),
        Misconception(
            _cleared,
            "clear() empties the list that you have just put away, for it is the same list, and"
            " later gradients then appear in every bucket. Begin a new one: current = [].",
        ),
        Misconception(
            _never_anew,
            "you never begin a new bucket, so later buckets send the same gradients again: after a"
            " bucket is put away, set current = [].",
        ),
        Misconception(
            lambda gradients, bucket_bytes: [
                bucket[::-1] for bucket in _buckets()(gradients, bucket_bytes)
            ],
            "the right buckets, and each is turned round: within a bucket, too, gradients are in"
            " the order in which backward makes them, the last one first.",
        ),
        Misconception(
            lambda gradients, bucket_bytes: _buckets(order=iter)(gradients, bucket_bytes)[::-1],
            "you have turned the buckets round, and not the gradients: they are filled from the"
            " last gradient on, the last gradient first in its bucket.",
        ),
        Misconception(
            _total_never_anew,
            "the total goes on over all buckets: with a new bucket it has to begin at 0 again.",
        ),
        Misconception(
            _by_last(lambda gradient, current: gradient.nbytes),
            "you weigh one gradient alone; a bucket is full by the sum over everything in it.",
        ),
        Misconception(
            _by_last(lambda gradient, current: sum(4 * one.numel() for one in current)),
            "an element does not always take 4 bytes, and here takes 8: gradient.nbytes knows.",
        ),
        Misconception(
            _buckets(order=lambda gradients: sorted(gradients, key=lambda g: -g.nbytes)),
            "sorted by size: a bucket then waits for gradients that backward makes at its very"
            " end. The order is that of backward.",
        ),
        Misconception(
            lambda gradients, bucket_bytes: _buckets()(gradients[1:], bucket_bytes),
            "gradient 0 is in no bucket: nobody sends it. reversed(gradients) has every gradient.",
        ),
    ),
    right="the order of backward, each bucket closed as soon as it is full, the rest in a last"
    " one.",
)


class OneMessage(NamedTuple):
    """The actions of a rank with a bucket."""

    messages: int
    gradients: list


def _sent_bucket(solution, n, shapes):
    """The bucket of each rank after solution(bucket, dist), a mean over the ranks."""

    def work(dist):
        bucket, start = [], 1.0
        for shape in shapes:
            size = torch.Size(shape).numel()
            numbers = torch.arange(start, start + size, dtype=torch.float64)
            bucket.append((numbers * (1 + dist.get_rank()) ** 2).reshape(shape))
            start += size
        given = list(bucket)
        solution(bucket, dist)
        return OneMessage(dist.reductions, [nine_digits(gradient) for gradient in given])

    return answer_of_ranks(n, work)


def _send_bucket(
    before=None, divide=True, back=True, moving=torch.Tensor.numel, reduce=True, scale=None
):
    def send(bucket, dist):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        if before:
            flat /= dist.get_world_size()
        if reduce:
            dist.all_reduce(flat)
        if scale:
            flat.copy_(scale(flat, bucket))
        elif divide:
            flat /= dist.get_world_size()
        start = 0
        for gradient in bucket if back else ():
            gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
            start += moving(gradient)

    return send


def _too_late(bucket, dist):
    flat = torch.cat([gradient.flatten() for gradient in bucket])
    flat /= dist.get_world_size()
    start = 0
    for gradient in bucket:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()
    dist.all_reduce(flat)


def _one_by_one(bucket, dist):
    for gradient in bucket:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


one_message_for_a_bucket = Exercise(
    name="send_bucket",
    reference=_send_bucket(),
    cases=(dict(n=2, shapes=((2, 3), (4,), (2, 2))), dict(n=3, shapes=((3,), (3,)))),
    words=("2 ranks, gradients of 2 x 3, 4 and 2 x 2", "3 ranks, two gradients of 3"),
    answer=_sent_bucket,
    hint="torch.cat lays flattened tensors one after the other. What was sent is a copy: the"
    " gradients themselves must have the means in the end.",
    misconceptions=(
        Misconception(
            _one_by_one,
            "the means are right, but each gradient had a message of its own, which is what a"
            " bucket avoids. Copy the gradients into one tensor and reduce that tensor.",
        ),
        Misconception(
            _send_bucket(divide=False),
            "that is the sum: divide by dist.get_world_size().",
        ),
        Misconception(
            _send_bucket(before=True),
            "divided twice, before the sum and after it: keep one of the two.",
        ),
        Misconception(
            _send_bucket(back=False),
            "the means are in the flat tensor, and nowhere else: torch.cat copies. Write each part"
            " back into its gradient, with gradient.copy_(...); gradient = ... only gives the"
            " name to another tensor.",
        ),
        Misconception(
            _send_bucket(moving=lambda gradient: 0),
            "each gradient gets the beginning of the flat tensor: move on by gradient.numel().",
        ),
        Misconception(
            lambda bucket, dist: None,
            "nothing was sent: each rank has its own gradients.",
        ),
        Misconception(
            _send_bucket(moving=lambda gradient: 1),
            "the next gradient begins after all elements of this one: move on by"
            " gradient.numel(), not by 1.",
        ),
        Misconception(
            _send_bucket(moving=len),
            "len() of a tensor is its number of rows: move on by gradient.numel().",
        ),
        Misconception(
            _send_bucket(scale=lambda flat, bucket: flat.mean()),
            "that is the mean over its elements; the mean over the ranks is wanted, for each"
            " element: divide by n.",
        ),
        Misconception(
            _send_bucket(scale=lambda flat, bucket: flat / len(bucket)),
            "divided by the number of gradients in the bucket, and not by that of the ranks,"
            " dist.get_world_size().",
        ),
        Misconception(
            _send_bucket(reduce=False),
            "divided, and nothing was sent: all_reduce(flat) makes the sum.",
        ),
        Misconception(
            _too_late,
            "the parts were written back before the sum was made: all_reduce comes first.",
        ),
    ),
    errors=(
        (
            "same number of dimensions|equal size|Sizes of tensors must match",
            "torch.cat joins what is flat: flatten each gradient first, gradient.flatten().",
        ),
        (
            "expanded size|must match|output with shape",
            "A part of the flat tensor is flat: give it its shape back, part.view_as(gradient).",
        ),
        (
            "is invalid for input of size",
            "The flat tensor is cut in the wrong places: the part of a gradient has"
            " gradient.numel() elements, and begins where the part before ends.",
        ),
    ),
    right="one tensor, one message, and each part back where it came from.",
)


# --- a mean over tokens ---------------------------------------------------------------------------

_TOKENS = {2: (10, 10), 3: (8, 2, 6), 4: (1, 1, 1, 13)}


def _losses(solution, n):
    """The losses on which the ranks call backward, each solution(loss_sum, tokens, dist) of its own
    tokens, and the gradient of loss_sum then."""

    def work(dist):
        rank = dist.get_rank()
        losses = torch.tensor(3.0 * (rank + 1), dtype=torch.float64, requires_grad=True)
        result = solution(losses.clone(), _TOKENS[n][rank], dist)
        if result is None or result is ...:
            return result
        if not (isinstance(result, torch.Tensor) and result.requires_grad and result.numel() == 1):
            what = (
                f"tensor of {result.numel()} elements"
                if isinstance(result, torch.Tensor)
                else type(result).__name__
            )
            raise TypeError(
                f"it returned a {what} without a graph: backward wants the one number that was made"
                " from loss_sum, a tensor."
            )
        result.sum().backward()
        return round(result.item(), 9), round(losses.grad.item(), 9)

    return value_of_ranks(n, work)


def _of_all(tokens, dist):
    total = torch.tensor([float(tokens)], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def _summed_losses(loss_sum, tokens, dist):
    dist.all_reduce(loss_sum.data)
    return loss_sum * dist.get_world_size() / _of_all(tokens, dist)


def _sum_of_losses(loss_sum, tokens, dist):
    everyone = _of_all(tokens, dist)
    dist.all_reduce(loss_sum)
    return loss_sum / everyone


loss_of_unequal_parts = Exercise(
    name="loss_for_backward",
    reference=lambda loss_sum, tokens, dist: (
        loss_sum * dist.get_world_size() / _of_all(tokens, dist)
    ),
    cases=(dict(n=2), dict(n=3), dict(n=4)),
    words=(
        "2 ranks, 10 tokens each",
        "3 ranks with 8, 2 and 6 tokens",
        "4 ranks, one with 13 tokens and three with 1",
    ),
    answer=_losses,
    hint="Write the mean over the tokens of all ranks as a formula. Then ask what the mean over"
    " the ranks divides by.",
    misconceptions=(
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum / tokens,
            "right where all ranks have equally many tokens. Elsewhere this is a mean of means:"
            " a token of a rank with few tokens counts more. Divide by the tokens of all ranks.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum / _of_all(tokens, dist),
            "the weights are right. But data parallelism then takes the mean over n ranks, which"
            " divides by n once more: multiply by dist.get_world_size().",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum / tokens * dist.get_world_size() * tokens,
            "this is n times the sum of the losses: divide by the tokens of all ranks.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: 4 * loss_sum / _of_all(tokens, dist),
            "4 is the number of this lab's ranks. dist.get_world_size() gives the number of ranks"
            " anywhere.",
        ),
        Misconception(
            _sum_of_losses,
            "you have summed the losses of all ranks. The loss that backward begins with is this"
            " rank's own; it is the gradients that data parallelism adds up.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum,
            "that is a sum: the more tokens a batch has, the longer the update.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum * tokens / _of_all(tokens, dist),
            "tokens / total is the weight of a rank's mean, and loss_sum is a sum, which has"
            " that weight already.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: (
                loss_sum / tokens * tokens / _of_all(tokens, dist) / dist.get_world_size()
            ),
            "the mean over ranks divides by n for you; you divide once more. Multiply by n"
            " instead.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: (
                loss_sum * tokens * dist.get_world_size() / _of_all(tokens, dist)
            ),
            "tokens / total is the weight of a rank's mean, and loss_sum is a sum, which has"
            " that weight already. Leave tokens out.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum * dist.get_world_size() / tokens,
            "n times a mean of means: multiplying by n is right, and it is the tokens of all"
            " ranks that loss_sum has to be divided by.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum / tokens / dist.get_world_size(),
            "a mean of this rank's tokens alone, and then divided by n: the mean over ranks"
            " divides by n for you. Divide by the tokens of all.",
        ),
        Misconception(
            _summed_losses,
            "you have summed loss_sum over the ranks as well. Each rank calls backward on its"
            " own part; the mean over the ranks adds the gradients up.",
        ),
        Misconception(
            lambda loss_sum, tokens, dist: loss_sum * _of_all(tokens, dist) / dist.get_world_size(),
            "upside down: divide by the tokens of all, and multiply by n.",
        ),
    ),
    right=(
        "the sum of this rank, divided by the tokens of all ranks, times n, because the mean over"
        " ranks divides by n."
    ),
)


# --- the start ------------------------------------------------------------------------------------


def _started(solution, n, seed):
    """The state of all ranks' networks, seeded differently, after solution(net, saved, dist); only
    rank 0 has read the file."""
    torch.manual_seed(seed)
    nets = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).double() for _ in range(n + 1)]
    for number, net in enumerate(nets):
        net[1].running_mean.fill_(number)
    saved = copy.deepcopy(nets[n].state_dict())

    def work(dist):
        solution(nets[dist.get_rank()], saved if dist.get_rank() == 0 else None, dist)
        return {
            name: nine_digits(value) for name, value in nets[dist.get_rank()].state_dict().items()
        }

    return answer_of_ranks(n, work)


def _load(net, saved, dist):
    if saved is not None:
        net.load_state_dict(saved)


def _send(tensors):
    def send(net, saved, dist):
        with torch.no_grad():
            for tensor in tensors(net):
                dist.broadcast(tensor, 0)

    return send


def _start(*steps):
    def start(net, saved, dist):
        for step in steps:
            step(net, saved, dist)

    return start


_EVERYTHING = _send(lambda net: net.state_dict().values())

same_start = Exercise(
    name="start",
    reference=_start(_load, _EVERYTHING),
    cases=(dict(n=2, seed=0), dict(n=3, seed=1)),
    words=(
        "2 ranks, of which rank 0 has a checkpoint",
        "3 ranks, of which rank 0 has a checkpoint",
    ),
    answer=_started,
    misconceptions=(
        Misconception(
            _start(_EVERYTHING, _load),
            "the broadcast is stale: it gives everyone the random start of rank 0, and then rank 0"
            " alone loads the checkpoint. Load first.",
        ),
        Misconception(
            _start(_load),
            "only rank 0 has the checkpoint; the others begin at random numbers of their own, and"
            " the mean of the gradients belongs to no model at all. Broadcast, and not into a copy"
            " such as tensor.clone(): that reaches nobody.",
        ),
        Misconception(
            _EVERYTHING,
            "all ranks start alike, from the random numbers of rank 0: nobody has loaded the"
            " checkpoint.",
        ),
        Misconception(
            _start(_load, _send(lambda net: net.parameters())),
            "the parameters are alike, the buffers are not: each rank keeps its own running mean."
            " state_dict() has both.",
        ),
        Misconception(
            _start(_load, _send(lambda net: net.buffers())),
            "the buffers are alike, the parameters are not: state_dict() has both.",
        ),
        Misconception(
            lambda net, saved, dist: None,
            "nothing was loaded or sent: each rank has a random start of its own.",
        ),
    ),
    right="first what rank 0 starts from, then a broadcast of parameters and buffers, in place.",
)


# --- epochs ---------------------------------------------------------------------------------------


def _orders(solution, n, examples, epochs):
    """The order in which each rank sees samples in each epoch: solution(sampler, epochs) on every
    rank's own sampler."""

    def sampler(rank):
        return DistributedSampler(range(examples), num_replicas=n, rank=rank, shuffle=True, seed=7)

    return unless_blank([solution(sampler(rank), epochs) for rank in range(n)])


def _epochs(number, after=False):
    def see(sampler, epochs):
        seen = []
        for epoch in range(epochs):
            if not after:
                sampler.set_epoch(number(epoch, sampler))
            seen.append(list(sampler))
            if after:
                sampler.set_epoch(number(epoch, sampler))
        return seen

    return see


another_order_each_epoch = Exercise(
    name="see",
    reference=_epochs(lambda epoch, sampler: epoch),
    cases=(dict(n=2, examples=12, epochs=3), dict(n=3, examples=10, epochs=2)),
    words=("2 ranks, 12 examples, 3 epochs", "3 ranks, 10 examples, 2 epochs"),
    answer=_orders,
    misconceptions=(
        Misconception(
            lambda sampler, epochs: [list(sampler) for _ in range(epochs)],
            "every epoch has the same order: the sampler makes it from its seed and the number of"
            " the epoch, and nobody has told it that number. Call sampler.set_epoch(epoch) before"
            " each epoch.",
        ),
        Misconception(
            _epochs(lambda epoch, sampler: epoch, after=True),
            "one epoch late: the sampler hears of an epoch when that is over, so the first two have"
            " the same order.",
        ),
        Misconception(
            _epochs(lambda epoch, sampler: epoch + sampler.rank),
            "each rank shuffles in another way, so some examples are seen by two ranks and some by"
            " none. The order is one for all ranks; the sampler itself gives each of them its"
            " part.",
        ),
        Misconception(
            _epochs(lambda epoch, sampler: epoch + 1),
            "a new order in each epoch, and the same on all ranks: that trains well. Count from 0"
            " here, as range does, so that a run can be compared with another.",
        ),
        Misconception(
            lambda sampler, epochs: [list(range(len(sampler.dataset))) for _ in range(epochs)],
            "every rank sees every example: that is n times the work for the same gradient. Iterate"
            " over the sampler.",
        ),
    ),
    right=(
        "the order follows from the seed and the epoch: new each time, and the same on all ranks,"
        " which share it out."
    ),
)


# --- bug hunt: ranks that drift apart -------------------------------------------------------------


class Replica(nn.Module):
    """A copy of a network on a thread rank: each backward sends its gradients, except under
    no_sync()."""

    def __init__(self, net, dist):
        super().__init__()
        self.net, self.dist, self.sends, self.messages = net, dist, True, 0
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(self._send)

    def forward(self, x):
        return self.net(x)

    @contextmanager
    def no_sync(self):
        self.sends = False
        try:
            yield
        finally:
            self.sends = True

    def _send(self, parameter):
        if self.sends:
            self.dist.all_reduce(parameter.grad)
            parameter.grad /= self.dist.get_world_size()
            self.messages += 1


class Trained(NamedTuple):
    """The state of the ranks after training."""

    all_alike: bool  # the parameters of all ranks
    messages_of_each_step: float
    length_of_the_update: float  # over that of one rank with the whole batch


def watch_replicas(train, n, microbatches) -> Trained | str:
    """Train a small network on n ranks with `train`(model, optimizer, steps), and compare them."""
    generator = torch.Generator().manual_seed(n)
    # steps, ranks, microbatches, rows
    data = torch.randn(2, n, microbatches, 4, 3, generator=generator, dtype=torch.float64)
    nets = [nn.Linear(3, 1).double() for _ in range(n + 1)]
    for net in nets:
        nn.init.constant_(net.weight, 0.5)
        nn.init.constant_(net.bias, 0.1)

    def work(dist):
        model = Replica(nets[dist.get_rank()], dist)
        steps = [[(x, x.sum(1, keepdim=True)) for x in step[dist.get_rank()]] for step in data]
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps)
        return model.messages

    # first the one rank: what PyTorch loads at a first step is not in the time that ranks have
    optimizer = torch.optim.SGD(nets[n].parameters(), lr=0.1)
    for step in data:
        x = step.reshape(-1, 3)
        nn.functional.mse_loss(nets[n](x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = answer_of_ranks(n, work)
    if not isinstance(found, list):
        return found
    ours, whole = (
        [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in nets[:n]],
        torch.cat([p.detach().flatten() for p in nets[n].parameters()]),
    )
    start = torch.tensor([0.5, 0.5, 0.5, 0.1], dtype=torch.float64)
    alike = all(torch.allclose(other, ours[0], rtol=1e-12) for other in ours)
    length = ((ours[0] - start).norm() / (whole - start).norm()).item()
    # a network has two parameters
    return Trained(alike, found[0] / len(data) / 2, round(length, 9))


def _train(quiet, divide=True, zero_each=False, over=1, order=("step", "zero"), each=False):
    def train(model, optimizer, steps):
        for microbatches in steps:
            for number, (x, y) in enumerate(microbatches):
                with model.no_sync() if quiet(number, len(microbatches)) else nullcontext():
                    loss = nn.functional.mse_loss(model(x), y)
                    (loss / len(microbatches) / over if divide else loss).backward()
                if zero_each and number < len(microbatches) - 1:
                    optimizer.zero_grad()
                if each:
                    finish(optimizer)
            if not each:
                finish(optimizer)

    def finish(optimizer):
        for what in order:
            optimizer.step() if what == "step" else optimizer.zero_grad()

    return train


def _divided_by_ranks(model, optimizer, steps):
    over = model.dist.get_world_size()
    _train(lambda number, k: number < k - 1, over=over)(model, optimizer, steps)


ranks_that_drift_apart = Exercise(
    name="train",
    reference=_train(lambda number, k: number < k - 1),
    cases=(dict(n=2, microbatches=3), dict(n=3, microbatches=2)),
    words=("2 ranks, 3 microbatches a step", "3 ranks, 2 microbatches a step"),
    answer=watch_replicas,
    hint="Which backward of a step sends what all microbatches have added up?",
    misconceptions=(
        Misconception(
            _train(lambda number, k: number == k - 1),
            "the last microbatch of a step is the one that must send: its backward sends what all"
            " of them have added up. Here it is the one that is silent, so each rank steps with a"
            " last part of its own, and the copies drift apart. Nothing raises.",
        ),
        Misconception(
            _train(lambda number, k: number > 0),
            "the first microbatch sends, and the sum goes on growing on each rank after it. What is"
            " added later is a rank's own: the copies drift apart.",
        ),
        Misconception(
            lambda model, optimizer, steps: None, "nothing was trained, and nothing was sent."
        ),
        Misconception(
            _train(lambda number, k: True),
            "no microbatch sends. Each rank trains a model of its own.",
        ),
        Misconception(
            _train(lambda number, k: False),
            "the copies stay alike, and every microbatch sends: that is as many all-reduces as"
            " there are microbatches, for the same gradient. no_sync() is for all but the last.",
        ),
        Misconception(
            _train(lambda number, k: number < k - 1, divide=False),
            "the copies stay alike. But the loss of each microbatch is a mean, and you add them up:"
            " divide by the number of microbatches, or the update is so many times too long.",
        ),
        Misconception(
            _train(lambda number, k: number < k - 1, zero_each=True),
            "the gradients of the earlier microbatches are thrown away: zero_grad() comes after the"
            " step.",
        ),
        Misconception(
            _train(lambda number, k: number == 0),
            "the copies stay alike, and more is sent than needed: only the last microbatch has"
            " to send, for its backward sends the sum of all.",
        ),
        Misconception(
            _train(lambda number, k: number < k - 2),
            "the copies stay alike, and the last two microbatches send: only the last microbatch"
            " has to, for its backward sends the sum of all.",
        ),
        Misconception(
            _train(lambda number, k: number < k - 1, each=True),
            "that is a step for each microbatch, with gradients that nobody has sent: step once,"
            " after the last of them.",
        ),
        Misconception(
            _train(lambda number, k: number < k - 1, order=("step",)),
            "the gradients are never cleared: those of the first step are in the second, too."
            " zero_grad() comes after the step.",
        ),
        Misconception(
            _train(lambda number, k: number < k - 1, order=("zero", "step")),
            "nothing was trained: step() is missing, or the gradients are cleared before the step,"
            " and the optimizer finds nothing. First step(), then zero_grad().",
        ),
        Misconception(
            _train(lambda number, k: number < k - 1, over=4),
            "the loss is a mean over its examples already: divide by the number of microbatches,"
            " and nothing else.",
        ),
        Misconception(
            _divided_by_ranks,
            "divided twice by the number of ranks: the model divides the sum that it has sent.",
        ),
    ),
    right=(
        "all are silent but the last microbatch, which sends the sum of all: one all-reduce a"
        " step, and copies that stay alike."
    ),
)


# --- task: two ranks of the reader's own ----------------------------------------------------------


def _list_of_ranks(given):
    """The numbers that were found, or a sentence about their form."""
    found = given()
    if found is None or found is ...:
        return found
    if not isinstance(found, (list, tuple)):
        return (
            "one number is one rank's: run(function) gives a list of what each rank returned, and"
            " check wants the list."
        )
    if any(isinstance(one, (dict, tuple, list)) for one in found):
        return "those are all operations: return log.totals()['all_reduce'].nbytes on each rank."
    return list(found)


def _found(*nbytes):
    return lambda: list(nbytes)


reduced_by_two_ranks = Exercise(
    name="found",
    reference=_found(224_480, 224_480),
    cases=({},),
    answer=_list_of_ranks,
    of_a_value=True,
    hint="Four steps: a function that wraps the model, runs two backwards under a log, the first of"
    " them under no_sync(), and returns the log's bytes; ranks(2); run; close.",
    misconceptions=(
        Misconception(
            _found(448_960, 448_960),
            "both microbatches send: run the first forward and backward inside with"
            " model.no_sync():.",
        ),
        Misconception(
            _found(0, 0),
            "nothing was sent: only the first microbatch is silent, and the last one's backward is"
            " outside no_sync().",
        ),
        Misconception(
            _found(1, 1),
            "those are messages: .nbytes of the total, not .messages.",
        ),
        Misconception(
            _found(224_480, 224_480, 224_480, 224_480),
            "those are four ranks, world's: start two of your own, with ranks(2) as two, and call"
            " two.run.",
        ),
        Misconception(_found(224_480), "that is one rank alone: start two, ranks(2)."),
        Misconception(
            _found(224_256, 224_256),
            "those are the gradients alone, as PyTorch's class sends them: take"
            " DistributedDataParallel of shardlab.data_parallel, and what the log counts.",
        ),
        Misconception(
            _found(112_240, 112_240),
            "those are gradients of 4 bytes: build the model in float64,"
            " small_gpt(torch.float64, **lab.SIZES).",
        ),
    ),
    right="two ranks of your own, one message for two microbatches.",
)
