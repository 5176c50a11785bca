"""Chapter 5: data parallelism. What readers write runs on thread ranks (thread_ranks.py): no check
can hang."""

import copy
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


class _Mixed(NamedTuple):
    """How often the gradients that ranks brought are in those that they have, of the first that is
    wrong."""

    only: str  # which one that is, where others are right
    givers: list[int]  # the ranks that brought more than zeros
    times: list[list[float]]  # on each rank, of each giver
    nothing_of_others: bool  # a rank has at most its own
    own: str  # how often a giver has its own, unless that is once


def _mixed(found, right) -> _Mixed | None:
    """None where a gradient is no sum of those that were brought."""
    means = right[0].gradients
    right_on_all = [
        all(same(one.gradients[k], mean) for one in found) for k, mean in enumerate(means)
    ]
    wrong = right_on_all.index(False)
    brought = [torch.tensor(one.brought[wrong]) for one in found]
    givers = [rank for rank, gradient in enumerate(brought) if gradient.any()]
    parts = [brought[rank] for rank in givers]
    times = [times_of_parts(one.gradients[wrong], parts) for one in found]
    if None in times:
        return None
    others = {t for r, row in enumerate(times) for giver, t in zip(givers, row) if giver != r}
    own = [times[rank][k] for k, rank in enumerate(givers)]
    return _Mixed(
        f"gradient {wrong} alone is wrong: " if any(right_on_all) else "",
        givers,
        times,
        others == {0},
        "" if set(own) == {1} else f" {_listed(own)} times",
    )


def _listed(numbers):
    return ", ".join(f"{one:g}" for one in numbers)


class _Averaged(NamedTuple):
    parameters: list
    brought: list  # the gradients before, with zeros for none
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
        own = _gradients_of(rank, without)
        brought = [nine_digits(torch.zeros(3) if g is None else g) for g in own]
        for parameter, gradient in zip(parameters, own):
            parameter.grad = gradient
        reduced = _watched(dist, parameters)
        solution(parameters, dist)
        gradients = [None if p.grad is None else nine_digits(p.grad) for p in parameters]
        return _Averaged(
            [nine_digits(p) for p in parameters],
            brought,
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


mean_of_the_gradients = topic.exercise(
    "mean_of_the_gradients",
    cases=(dict(n=3, without=None), dict(n=2, without=None), dict(n=3, without=1)),
    words=("3 ranks", "2 ranks", "3 ranks, one of which has not used a parameter"),
    answer=_averaged,
    hint="dist.all_reduce(tensor) leaves the sum of all ranks' tensors in each of them. Which"
    " tensor of a parameter differs between ranks? And a parameter without a gradient?",
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
    right="the order of backward, each bucket closed as soon as it is full, the rest in a last"
    " one.",
)


class OneMessage(NamedTuple):
    """The actions of a rank with a bucket."""

    messages: int
    brought: list
    gradients: list


def _sent_bucket(solution, n, shapes):
    """The bucket of each rank after solution(bucket, dist), a mean over the ranks."""

    def work(dist):
        bucket = drawn(dist.get_rank(), *shapes)
        given, brought = list(bucket), list(map(nine_digits, bucket))
        solution(bucket, dist)
        return OneMessage(dist.reductions, brought, list(map(nine_digits, given)))

    return answer_of_ranks(n, work)


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


another_order_each_epoch = topic.exercise(
    "another_order_each_epoch",
    _see,
    name="see",
    cases=(dict(n=2, examples=12, epochs=3), dict(n=3, examples=10, epochs=2)),
    words=("2 ranks, 12 examples, 3 epochs", "3 ranks, 10 examples, 2 epochs"),
    answer=_orders,
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
