"""Chapter 5: data parallelism. What readers write runs on thread ranks (thread_ranks.py): no check
can hang."""

import copy
import math
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from coursekit.exercises.answers import (
    drawn,
    list_of_ranks,
    nine_digits,
    times_of_parts,
    unless_blank,
)
from coursekit.exercises.edits import Topic
from coursekit.exercises.numbers import same
from coursekit.exercises.thread_ranks import answer_of_ranks, value_of_ranks

topic = Topic(__name__)

# --- the mean of the gradients --------------------------------------------------------------------


def _no_mean(found, right, own, kept):
    """The cause of wrong means, by how often the gradients that the ranks had, `own`, are in those
    that they have; `kept` is said where no rank has anything of another."""
    n = len(found)
    wrong = [
        k for k in range(len(right[0])) if not all(same(f[k], r[k]) for f, r in zip(found, right))
    ]
    only = f"gradient {wrong[0]} alone is wrong: " if len(wrong) < len(right[0]) else ""
    givers = [rank for rank in range(n) if own[rank][wrong[0]].any()]
    mixed = [
        times_of_parts(one[wrong[0]], [own[rank][wrong[0]] for rank in givers]) for one in found
    ]
    if None in mixed:
        return None
    others = {t for r, row in enumerate(mixed) for giver, t in zip(givers, row) if giver != r}
    if others == {0}:
        mine = [mixed[rank][givers.index(rank)] for rank in givers]
        return only + kept.format(times="" if set(mine) == {1} else f" {_listed(mine)} times")
    if len({t for row in mixed for t in row if t}) == len({tuple(row) for row in mixed}) == 1 and (
        mixed[0].count(0) == len(givers) - 1 > 0
    ):
        giver = givers[next(k for k, times in enumerate(mixed[0]) if times)]
        return (
            f"{only}all ranks have rank {giver}'s gradient, as after a broadcast: all_reduce gives"
            " them the sum over all ranks."
        )
    rank = next(r for r, row in enumerate(mixed) if any(abs(t - 1 / n) > 1e-4 for t in row))
    if all(
        abs(times - (giver == rank) - 1 / n) < 1e-4 for giver, times in zip(givers, mixed[rank])
    ):
        return (
            f"{only}rank {rank} has the mean and, on top of it, its own gradient: write the mean"
            " over what was there, gradient.copy_(mean)."
        )
    if len(set(mixed[rank])) > 1:
        said = [
            f"{times:g} times that of rank {giver}" for giver, times in zip(givers, mixed[rank])
        ]
        return (
            f"{only}rank {rank} has {', '.join(said)}: a mean has 1/{n} of each. Sum the ranks' own"
            " gradients, as they are, and divide the sum, once, on each rank."
        )
    if any(row != mixed[0] for row in mixed):
        return (
            f"{only}rank by rank, the sum is there {_listed(row[0] for row in mixed)} times: every"
            f" rank divides it by the number of ranks, {n}, which dist.get_world_size() gives."
        )
    times = mixed[0][0]
    if times == 1:
        return (
            f"{only}that is the sum. With {n} ranks the update is {n} times too long, as if you had"
            f" multiplied the learning rate by {n}: divide by dist.get_world_size(), in place. grad"
            " = ... / n only gives the name to another tensor."
        )
    if abs(times - 1 / n**2) < 1e-4:
        return (
            f"{only}divided twice by the number of ranks: the update is {n} times too short, and"
            " the loss still falls, only slowly. Keep one of the two."
        )
    if times > 1:
        return f"{only}the sum is multiplied by {times:g}: divide it by the number of ranks, {n}."
    also = " Ranks without a gradient count, with zeros." if len(givers) < n else ""
    return (
        f"{only}the sum is divided by {1 / times:.4g}, and there are {n} ranks, as"
        f" dist.get_world_size() knows.{also}"
    )


def _listed(numbers):
    return ", ".join(f"{one:g}" for one in numbers)


class _Averaged(NamedTuple):
    parameters: list
    gradients: list
    reduced: list  # what the solution reduced, where gradients are wrong


def _gradients_of(rank, without):
    """Gradients of two parameters on a rank; the rank `without` has none of the first."""
    r = rank + 1.0
    first, second = torch.tensor([[3 * r, 4 * r**2, r**3], [5 * r**2, r, 2 * r**3]]).double()
    return [None if rank == without else first, second]


def _averaged(solution, n, without):
    """Parameters and gradients on all ranks after solution(parameters, dist), and, where gradients
    are wrong, what the solution reduced."""

    def work(dist):
        rank = dist.get_rank()
        parameters = [
            nn.Parameter(torch.tensor(values, dtype=torch.float64))
            for values in ([1.0, 2.0, 4.0], [5.0, 7.0, 1.0])
        ]
        for parameter, gradient in zip(parameters, _gradients_of(rank, without)):
            parameter.grad = gradient
        reduced = _watched(dist, parameters)
        solution(parameters, dist)
        gradients = [None if p.grad is None else nine_digits(p.grad) for p in parameters]
        return _Averaged(
            [nine_digits(p) for p in parameters],
            gradients,
            [] if same(gradients, means) else reduced,
        )

    of_all = [_gradients_of(rank, without) for rank in range(n)]
    means = [nine_digits(sum(g for g in own if g is not None) / n) for own in zip(*of_all)]
    return answer_of_ranks(n, work)


def _watched(dist, parameters):
    """A list to which every all-reduce of this rank adds what it sums."""
    reduced, all_reduce = [], dist.all_reduce

    def noted(tensor, *args, **named):
        of = {p.data_ptr(): "a parameter" for p in parameters}
        of |= {p.grad.data_ptr(): "a gradient" for p in parameters if p.grad is not None}
        if isinstance(tensor, torch.Tensor):
            other = f"a tensor of {tensor.numel()}, which no parameter has"
            reduced.append(of.get(tensor.data_ptr(), other))
        return all_reduce(tensor, *args, **named)

    dist.all_reduce = noted
    return reduced


def _averaged_something_else(found, right, n, without):
    """Parameters changed, gradients missing, or no means."""
    summed = found[0].reduced
    if any(one.parameters != wanted.parameters for one, wanted in zip(found, right)):
        return (
            "the parameters are changed, and the mean is taken over gradients: take p.grad, both"
            " for the sum and for the division."
        )
    for rank, one in enumerate(found):
        if None in one.gradients:
            return (
                f"parameter {one.gradients.index(None)} of rank {rank} has no gradient afterwards:"
                " all_reduce returns nothing, the sum is in the tensor that it is given. And where"
                " p.grad was None, store zeros in it first."
            )
    if not summed:
        kept = (
            "nothing was sent: each rank has its own gradients, and after one update the models"
            " differ."
        )
    elif summed == ["a gradient"]:
        kept = (
            "each rank's is its own{times}, for one of two parameters alone has been reduced: every"
            " one of them needs that."
        )
    elif summed[0] == "a parameter":
        kept = (
            "you average the parameters. They are the same on all ranks, so nothing happens, and"
            " the gradients stay each rank's own{times}: take p.grad."
        )
    else:
        kept = (
            f"each rank has its own gradients{{times}}: what you have reduced is {summed[0]}, and"
            " the sum is in that. all_reduce works in place: give it p.grad itself."
        )
    own = [
        [torch.zeros(3).double() if g is None else g for g in _gradients_of(rank, without)]
        for rank in range(n)
    ]
    gradients = [[one.gradients for one in ranks] for ranks in (found, right)]
    said = _no_mean(*gradients, own, kept)
    if said is None and not all(math.isfinite(x) for g in found[0].gradients for x in g):
        return (
            "rank 0 has divided by 0: get_rank() is a rank's own number, from 0 on, and"
            " dist.get_world_size() is the number of ranks."
        )
    if said is None and same(*(ranks[0].gradients[1] for ranks in (found, right))):
        return (
            f"rank {without} has not used parameter 0, and brings something else than zeros to its"
            " all-reduce: p.grad = torch.zeros_like(p)."
        )
    return said


mean_of_the_gradients = topic.exercise(
    "mean_of_the_gradients",
    cases=(dict(n=3, without=None), dict(n=2, without=None), dict(n=3, without=1)),
    words=("3 ranks", "2 ranks", "3 ranks, one of which has not used a parameter"),
    answer=_averaged,
    hint="dist.all_reduce(tensor) leaves the sum of all ranks' tensors in each of them. Which"
    " tensor of a parameter differs between ranks? And a parameter without a gradient?",
    properties=(_averaged_something_else,),
    right="summed once, divided once, and every rank takes part in every all-reduce.",
)


# --- buckets --------------------------------------------------------------------------------------


def _in_buckets(solution, sizes, bucket_bytes):
    """The numbers of the gradients in each bucket of solution(gradients, bucket_bytes)."""
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
    return named


def _closed_elsewhere(found, right, sizes, bucket_bytes):
    """Gradients in no bucket or in two, another order, and buckets that close too early or late."""
    in_buckets = [number for bucket in found for number in bucket]
    for number in range(len(sizes)):
        if number not in in_buckets:
            return (
                f"gradient {number} of {len(sizes)} is in no bucket: nobody sends it, and the"
                " copies drift apart. What is left at the end makes a last bucket."
            )
        if in_buckets.count(number) > 1:
            return (
                f"gradient {number} is in {in_buckets.count(number)} buckets: after a bucket is put"
                " away a new one begins, current = [], with a total of its own."
            )
    if not all(found):
        return (
            "one bucket is empty: a message of no bytes costs a latency all the same. Begin a"
            " bucket with its first gradient, and append the rest only if there is one."
        )
    if in_buckets == sorted(in_buckets):
        return (
            "these are the buckets of forward. Backward makes the last layer's gradients first, and"
            " a bucket that waits for the first layer leaves when all is over: reversed(gradients)."
        )
    if in_buckets != sorted(in_buckets, reverse=True):
        return (
            f"the gradients are in the order {in_buckets}. Backward makes the last one first, and"
            " so they are in the buckets and within a bucket."
        )
    nbytes = [[8 * sizes[number] for number in bucket] for bucket in found]
    for number, bucket in enumerate(nbytes):
        if sum(bucket[:-1]) >= bucket_bytes:
            return (
                f"bucket {number} holds {sum(bucket)} bytes, and was full with"
                f" {sum(bucket[:-1])}: it closes as soon as it holds {bucket_bytes} or more, the"
                " sum of .nbytes over everything in it. What is left in the end is a bucket, too."
            )
        if sum(bucket) < bucket_bytes and number < len(nbytes) - 1:
            return (
                f"bucket {number} is closed with {sum(bucket)} bytes, and is full with"
                f" {bucket_bytes} or more: append a gradient first, then ask by the bytes of all in"
                " this bucket, and of this alone: a total begins at 0 again with each."
            )
    return None


buckets_in_the_order_of_backward = topic.exercise(
    "buckets_in_the_order_of_backward",
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
    properties=(_closed_elsewhere,),
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
        bucket = drawn(dist.get_rank(), *shapes)
        given = list(bucket)
        solution(bucket, dist)
        return OneMessage(dist.reductions, [nine_digits(gradient) for gradient in given])

    return answer_of_ranks(n, work)


def _parts_of_a_message(found, right, n, shapes):
    """Messages too many or none, and what is in the gradients instead of the means."""
    mine, means = [[one.gradients for one in ranks] for ranks in (found, right)]
    messages = found[0].messages
    if same(mine, means):
        return (
            f"the means are right, in {messages} messages: one for the bucket is wanted. Copy the"
            " gradients into one tensor and reduce that tensor."
        )
    if not messages:
        kept = "nothing was sent: each rank has its own gradients."
    elif messages == 1:
        kept = (
            "the gradients are each rank's own{times}: the means are in the flat tensor, and"
            " nowhere else, for torch.cat copies. After the all-reduce write each part back into"
            " its gradient, with gradient.copy_(...); gradient = ... only gives the name to another"
            " tensor."
        )
    else:
        kept = (
            f"{messages} messages were sent, where one is wanted, and what they brought is written"
            " over: the flat tensor is what is reduced, and then written back."
        )
    if said := _no_mean(mine, means, [drawn(rank, *shapes) for rank in range(n)], kept):
        return said
    flat, wanted = [[x for gradient in ranks[0] for x in gradient] for ranks in (mine, means)]
    if all(any(same(x, mean) for mean in wanted) for x in flat):
        place = next(k for k, pair in enumerate(zip(flat, wanted)) if not same(*pair))
        return (
            f"the means are right, in other places, from element {place} of the bucket on: the part"
            " of a gradient has gradient.numel() elements, and begins where the part before it"
            " ends: move on by gradient.numel()."
        )
    return None


one_message_for_a_bucket = topic.exercise(
    "one_message_for_a_bucket",
    cases=(
        dict(n=2, shapes=((2, 3), (4,), (2, 2))),
        dict(n=3, shapes=((4,), (4,))),
        dict(n=2, shapes=((3,),)),
    ),
    words=(
        "2 ranks, gradients of 2 x 3, 4 and 2 x 2",
        "3 ranks, two gradients of 4",
        "2 ranks, one gradient of 3",
    ),
    answer=_sent_bucket,
    hint="torch.cat lays flattened tensors one after the other. What was sent is a copy: the"
    " gradients themselves must have the means in the end.",
    properties=(_parts_of_a_message,),
    right="one tensor, one message, and each part back where it came from.",
)


# --- a mean over tokens ---------------------------------------------------------------------------

_TOKENS = {2: (10, 10), 3: (8, 2, 6), 4: (1, 1, 1, 13)}


class _Backward(NamedTuple):
    loss: float
    gradient_of_loss_sum: float


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
            raise TypeError(
                "it returned something without a graph: backward wants the one number that was made"
                " from loss_sum, a tensor."
            )
        result.sum().backward()
        return _Backward(round(result.item(), 9), round(losses.grad.item(), 9))

    return value_of_ranks(n, work)


# where the weight of loss_sum has other powers of n, a rank's tokens and the tokens of all
_WEIGHTS = {
    (0, -1, 0): "divided by its own tokens, a mean of means: a token of a rank with few tokens"
    " counts more. Divide by the tokens of all ranks, and multiply by n.",
    (0, 0, -1): "the weights are right. But data parallelism then takes the mean over n ranks,"
    " which divides by n once more: multiply by dist.get_world_size().",
    (-1, 0, -1): "the mean over ranks divides by n for you; you divide once more. Multiply by n"
    " instead.",
    (2, 0, -1): "multiplied by n twice: the mean over ranks divides by n once.",
    (1, -1, 0): "multiplying by n is right, and it is the tokens of all ranks that loss_sum has to"
    " be divided by.",
    (-1, -1, 0): "divided by this rank's tokens alone, and by n: the mean over ranks divides by n"
    " for you. Divide by the tokens of all, and multiply by n.",
    (0, 1, -1): "tokens / total is the weight of a rank's mean, and loss_sum is a sum, which has"
    " that weight already: multiply by n instead.",
    (1, 1, -1): "tokens / total is the weight of a rank's mean, and loss_sum is a sum, which has"
    " that weight already. Leave tokens out.",
    (-1, 0, 1): "upside down: divide by the tokens of all, and multiply by n.",
    (0, 0, 0): "that is a sum: the more tokens a batch has, the longer the update.",
    (1, 0, 0): "that is n times the sum of the losses: divide by the tokens of all ranks.",
}


loss_of_unequal_parts = topic.exercise(
    "loss_of_unequal_parts",
    cases=(dict(n=2), dict(n=3), dict(n=4)),
    words=(
        "2 ranks, 10 tokens each",
        "3 ranks with 8, 2 and 6 tokens",
        "4 ranks, one with 13 tokens and three with 1",
    ),
    answer=_losses,
    hint="Write the mean over the tokens of all ranks as a formula. Then ask what the mean over"
    " the ranks divides by.",
    right="the sum of this rank, divided by the tokens of all ranks, times n, because the mean over"
    " ranks divides by n.",
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


def _start(net, saved, dist):
    if saved is not None:
        net.load_state_dict(saved)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            dist.broadcast(tensor, 0)


same_start = topic.exercise(
    "same_start",
    _start,
    name="start",
    cases=(dict(n=2, seed=0), dict(n=3, seed=1)),
    words=(
        "2 ranks, of which rank 0 has a checkpoint",
        "3 ranks, of which rank 0 has a checkpoint",
    ),
    answer=_started,
    right="first what rank 0 starts from, then a broadcast of parameters and buffers, in place.",
)


# --- epochs ---------------------------------------------------------------------------------------


def _orders(solution, n, examples, epochs):
    """The order in which each rank sees samples in each epoch: solution(sampler, epochs) on every
    rank's own sampler."""

    def sampler(rank):
        return DistributedSampler(range(examples), num_replicas=n, rank=rank, shuffle=True, seed=7)

    orders = unless_blank([solution(sampler(rank), epochs) for rank in range(n)])
    if any(isinstance(epoch, DistributedSampler) for own in orders or () for epoch in own):
        return "an epoch of yours is the sampler itself: list(sampler) is the order it gives."
    return orders


def _see(sampler, epochs):
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen


def _seen_twice_or_never(found, right, n, examples, epochs):
    """Examples of an epoch that several ranks see, or none, and epochs that are alike."""
    if any(len(own) != epochs for own in found):
        return f"{len(found[0])} orders, and one for each of the {epochs} epochs is wanted."
    for epoch in range(epochs):
        seen = [example for own in found for example in own[epoch]]
        missing = set(range(examples)) - set(seen)
        if missing:
            return (
                f"in epoch {epoch} nobody sees example {min(missing)}: the order is one for all"
                " ranks, and the sampler itself gives each of them its part."
            )
        wanted = [own[epoch] for own in right]
        if len(seen) > sum(map(len, wanted)):
            return "the ranks see examples several times: iterate over the sampler, once an epoch."
        orders = [own[epoch] for own in found]
        if orders != wanted and [sorted(one) for one in orders] == [sorted(w) for w in wanted]:
            return (
                f"in epoch {epoch} the ranks see the examples that they should, in another order:"
                " it is the sampler that shuffles. Keep the order that it gives."
            )
    alike = [epoch for epoch in range(1, epochs) if found[0][epoch] == found[0][epoch - 1]]
    if alike:
        return (
            f"epochs {alike[0] - 1} and {alike[0]} have the same order: the sampler makes it from"
            " its seed and the number of the epoch. Call sampler.set_epoch(epoch) before each"
            " epoch."
        )
    return (
        "a new order in each epoch, and the same on all ranks: that trains well. Count from 0 here,"
        " as range does, so that a run can be compared with another."
    )


another_order_each_epoch = topic.exercise(
    "another_order_each_epoch",
    _see,
    name="see",
    cases=(dict(n=2, examples=12, epochs=3), dict(n=3, examples=10, epochs=2)),
    words=("2 ranks, 12 examples, 3 epochs", "3 ranks, 10 examples, 2 epochs"),
    answer=_orders,
    properties=(_seen_twice_or_never,),
    right="the order follows from the seed and the epoch: new each time, and the same on all ranks,"
    " which share it out.",
)


# --- bug hunt: ranks that drift apart -------------------------------------------------------------


class Replica(nn.Module):
    """A copy of a network on a thread rank: each backward sends its gradients, unless it and its
    forward are under no_sync()."""

    def __init__(self, net, dist):
        super().__init__()
        self.net, self.dist, self.messages = net, dist, 0
        self.sends = self.forward_sends = True
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(self._send)

    def forward(self, x):
        self.forward_sends = self.sends
        return self.net(x)

    @contextmanager
    def no_sync(self):
        self.sends = False
        try:
            yield
        finally:
            self.sends = True

    def _send(self, parameter):
        if self.sends or self.forward_sends:
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


ranks_that_drift_apart = topic.exercise(
    "ranks_that_drift_apart",
    cases=(dict(n=2, microbatches=3), dict(n=3, microbatches=2)),
    words=("2 ranks, 3 microbatches a step", "3 ranks, 2 microbatches a step"),
    answer=watch_replicas,
    hint="Which backward of a step sends what all microbatches have added up?",
    right="all are silent but the last microbatch, which sends the sum of all: one all-reduce a"
    " step, and copies that stay alike.",
)


# --- task: two ranks of the reader's own ----------------------------------------------------------


def _list_of_ranks(given):
    many = "those are all operations: return log.totals()['all_reduce'].nbytes on each rank."
    return list_of_ranks(given, (lambda one: isinstance(one, (dict, tuple, list)), many))


reduced_by_two_ranks = topic.exercise(
    "reduced_by_two_ranks",
    [224_480, 224_480],
    name="found",
    cases=({},),
    answer=_list_of_ranks,
    of_a_value=True,
    hint="Four steps: a function that wraps the model, runs two backwards under a log, the first of"
    " them under no_sync(), and returns the log's bytes; ranks(2); run; close.",
    right="two ranks of your own, one message for two microbatches.",
)
