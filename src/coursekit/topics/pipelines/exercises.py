"""Chapter 8: pipelines. What readers write makes schedules, which are simulated, or runs on thread
ranks: no check can hang."""

from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.answers import drawn, nine_digits
from coursekit.exercises.checker import Failure, is_blank
from coursekit.exercises.edits import Topic
from coursekit.exercises.thread_ranks import answer_of_ranks
from coursekit.lab import batches, small_gpt
from shardlab.gpt import next_token_loss
from shardlab.pipelines.partition import check_order_of_messages
from shardlab.pipelines.schedules import Action, Kind, all_of, one_f_one_b, schedule, whole
from shardlab.pipelines.simulation import Costs, in_flight, simulate, validate_schedule

topic = Topic(__name__)

# --- the warm-up of 1F1B --------------------------------------------------------------------------


class _Step(NamedTuple):
    seconds: float
    microbatches_held: list


def _run_of_lists(solution, ranks, microbatches):
    """(time of the step where F, I and W take 1 each, microbatches that each rank holds), of lists
    that a pipeline would run."""
    lists = []
    for rank in range(ranks):
        try:
            found = solution(rank, ranks, microbatches)
            if found is None or found is ...:
                return found
            lists.append([Action(*action) for action in found])
        except Exception as error:
            return ... if is_blank(error) else Failure.of(error)
    try:
        validate_schedule(lists, microbatches)
        check_order_of_messages(lists)
    except ValueError as error:
        return Failure.of(error)
    return _Step(simulate(lists).seconds, in_flight(lists))


def _run_with_warm_up(solution, ranks, microbatches):
    def of_rank(rank, ranks, microbatches):
        warm = solution(rank, ranks, microbatches)
        if warm is None or warm is ...:
            return warm
        if not isinstance(warm, int) or isinstance(warm, bool) or warm < 0:
            raise TypeError(f"it returned a warm-up of {warm!r} on rank {rank}.")
        forwards, backwards = (
            all_of(rank, kind, microbatches) for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        return whole(forwards, backwards, min(warm, microbatches))

    return _run_of_lists(of_rank, ranks, microbatches)


def warm_up(rank, ranks, microbatches):
    return min(microbatches, ranks - rank - 1)


warm_up_of_one_f_one_b = topic.exercise(
    "warm_up_of_one_f_one_b",
    warm_up,
    cases=(
        dict(ranks=4, microbatches=8),
        dict(ranks=2, microbatches=3),
        dict(ranks=5, microbatches=12),
    ),
    words=("4 ranks, 8 microbatches", "2 ranks, 3 microbatches", "5 ranks, 12 microbatches"),
    answer=_run_with_warm_up,
    right="every rank has one forward under way for each rank after it, and one of its own.",
)


# --- 1F1B, a list ---------------------------------------------------------------------------------


one_f_one_b_of_a_rank = topic.exercise(
    "one_f_one_b_of_a_rank",
    cases=(
        dict(ranks=4, microbatches=8),
        dict(ranks=2, microbatches=3),
        dict(ranks=5, microbatches=12),
        dict(ranks=4, microbatches=2),
    ),
    words=(
        "4 ranks, 8 microbatches",
        "2 ranks, 3 microbatches",
        "5 ranks, 12 microbatches",
        "4 ranks, 2 microbatches",
    ),
    answer=_run_of_lists,
    hint="How many forwards come before the first backward on the last rank, and on the"
    " first? Then pairs, one forward and one backward, and the backwards that are"
    " left.",
    right="warm-up, pairs, cool-down: every rank is at work as soon as anything has reached it.",
)


# --- what a stage does ----------------------------------------------------------------------------

_WIDTH = 3


class _Done(NamedTuple):
    gradients_of_the_layers: list
    losses: list
    most_held_at_a_time: int
    held_in_the_end: int


def _stages_at_work(solution, ranks, microbatches):
    """On each rank: the gradients of its layer, the most microbatches kept at a time, and those
    left in the end; on the last the losses, too."""
    inputs, targets = (drawn(seed, (microbatches, 2, _WIDTH))[0] for seed in (0, 1))

    def work(dist):
        rank = dist.get_rank()
        layer, losses, kept, most = _layer_of(rank), [], {}, 0

        def run(x):
            y = layer(x)
            if rank < ranks - 1:
                return y
            return nn.functional.mse_loss(y, targets[now.microbatch]) / microbatches

        def take():
            forward = now.kind is Kind.FORWARD
            peer = rank - 1 if forward else rank + 1
            if forward and rank == 0:
                return inputs[now.microbatch].clone()
            if not forward and rank == ranks - 1:
                return None  # a loss needs no gradient from elsewhere
            arrived = torch.empty(2, _WIDTH, dtype=torch.float64)
            dist.recv(arrived, peer)
            return arrived

        def give(tensor):
            forward = now.kind is Kind.FORWARD
            if forward and rank == ranks - 1:
                losses.append(tensor.item())
            elif forward or rank > 0:
                if not isinstance(tensor, torch.Tensor):
                    raise TypeError(f"give was given {tensor!r} in {now.kind.name}")
                dist.isend(tensor, rank + 1 if forward else rank - 1)

        for now in one_f_one_b(ranks, microbatches)[rank]:
            solution(now, run, kept, take, give)
            most = max(most, len(kept))
        gradients = [nine_digits(p.grad) if p.grad is not None else None for p in layer]
        return _Done(gradients, [round(loss, 9) for loss in losses], most, len(kept))

    return answer_of_ranks(ranks, work)


class _Layer(list):
    """weight and bias: calling it multiplies, adds and bends."""

    def __call__(self, x):
        weight, bias = self
        return torch.tanh(x @ weight + bias)


def _layer_of(rank):
    (both,) = drawn(10 + rank, (_WIDTH + 1, _WIDTH))
    weight, bias = both.split([_WIDTH, 1])
    return _Layer(tensor.clone().requires_grad_() for tensor in (weight, bias[0]))


actions_of_a_stage = topic.exercise(
    "actions_of_a_stage",
    cases=(dict(ranks=2, microbatches=4), dict(ranks=3, microbatches=5)),
    words=("2 ranks, 4 microbatches", "3 ranks, 5 microbatches"),
    answer=_stages_at_work,
    hint="Backward of a microbatch needs what its forward had and made: keep both under"
    " action.microbatch, and take them out when they have served.",
    right="plain autograd on every rank, and one tensor between neighbours in each direction.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


def _losses(microbatches=4, ranks=2):
    """The losses that two ranks of the lab's GPT find in a step: on the last rank."""

    def found():
        model, losses = small_gpt(torch.float64, layers=6, heads=4, tied_head=0), []
        for x, target in zip(*(both.chunk(microbatches) for both in next(batches(8)))):
            with torch.no_grad():
                losses.append(next_token_loss(model(x), target).item())
        return [losses if rank == ranks - 1 else [] for rank in range(ranks)]

    return found


def _of_each_rank(solution):
    """A rank's losses as a list, whether they come as one, as a tensor or as a number."""
    found = solution()
    if isinstance(found, (list, tuple)) and all(
        isinstance(own, (list, tuple, torch.Tensor, int, float)) for own in found
    ):
        return [torch.as_tensor(own, dtype=torch.float64).flatten().tolist() for own in found]
    return found


losses_of_two_ranks = topic.exercise(
    "losses_of_two_ranks",
    _losses(),
    name="found_by_two",
    cases=({},),
    answer=_of_each_rank,
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: layers, plan, Pipeline,"
    " step. `with ranks(2) as two:`, and two.run of that function gives a list for each rank.",
    right="two ranks, half the layers each, and on the last rank the losses of the whole model.",
)


# --- dividing by m --------------------------------------------------------------------------------


_RATE = 0.5


def _model_and_microbatches(microbatches):
    torch.manual_seed(microbatches)
    model = nn.Linear(3, 2).double()
    inputs = torch.randn(microbatches, 4, 3, dtype=torch.float64)
    targets = torch.randn(microbatches, 4, 2, dtype=torch.float64)
    return model, list(zip(inputs, targets))


def _weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _trained(solution, microbatches):
    """The weights after a step of SGD."""
    model, pairs = _model_and_microbatches(microbatches)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
    solution(model, pairs, nn.functional.mse_loss, optimizer)
    return nine_digits(_weights(model))


def _start_and_gradients(microbatches):
    """The weights before the step, and the gradient of each microbatch there."""
    model, pairs = _model_and_microbatches(microbatches)
    parts = {}
    for number, (x, target) in enumerate(pairs):
        loss = nn.functional.mse_loss(model(x), target)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        parts[f"that of microbatch {number}"] = torch.cat([g.flatten() for g in gradients])
    return _weights(model), parts


mean_over_microbatches = topic.exercise(
    "mean_over_microbatches",
    cases=(dict(microbatches=4), dict(microbatches=3)),
    words=("4 microbatches of 4 examples", "3 microbatches of 4 examples"),
    answer=_trained,
    hint="Each microbatch's loss is a mean over its own tokens. What do gradients of"
    " several backwards do in .grad?",
    right="the gradient of the mean over the whole batch, whatever m is.",
)


# --- a weight on the first and the last rank ------------------------------------------------------


_OWN = {0: [1.0, 2.0], -1: [10.0, 30.0]}  # of the first rank and of the last


def _tied(solution, n):
    """The gradient of the tied weight on each rank, None where a rank has none."""

    def work(dist):
        rank = dist.get_rank()
        own = {0: _OWN[0], n - 1: _OWN[-1]}.get(rank)
        gradient = None if own is None else torch.tensor(own, dtype=torch.float64)
        solution(gradient, dist)
        return None if gradient is None else nine_digits(gradient)

    return answer_of_ranks(n, work)


def tie(gradient, dist):
    n, rank = dist.get_world_size(), dist.get_rank()
    if gradient is None:
        return
    other = torch.empty_like(gradient)
    dist.isend(gradient, n - 1 - rank)
    dist.recv(other, n - 1 - rank)
    gradient += other


gradient_of_a_tied_weight = topic.exercise(
    "gradient_of_a_tied_weight",
    tie,
    cases=(dict(n=2), dict(n=4)),
    words=("2 ranks", "4 ranks, two of which have the weight"),
    answer=_tied,
    right="one gradient, in two parts, and the same sum on both ends: the copies stay equal.",
)


# --- what is in flight ----------------------------------------------------------------------------

_FLIGHTS = tuple(
    dict(name=name, rank=rank, ranks=4, microbatches=microbatches)
    for name in ("GPipe", "1F1B", "zero-bubble H1")
    for rank, microbatches in ((0, 8), (2, 8), (0, 3))
)


def _held_by(name, rank, ranks, microbatches):
    return in_flight(schedule(name, ranks, microbatches))[rank]


microbatches_in_flight = topic.exercise(
    "microbatches_in_flight",
    _held_by,
    name="in_flight",
    cases=_FLIGHTS,
    right="GPipe m, 1F1B p - r, zero-bubble H1 p on every rank, and never more than m.",
)


# --- which schedule for which link ----------------------------------------------------------------

_CHOICES = ("GPipe", "1F1B", "eager 1F1B")


def _cost(name, ranks, microbatches, transfer):
    lists = schedule(name, ranks, microbatches)
    return simulate(lists, Costs(1, 1, 1, transfer)).seconds, max(in_flight(lists))


_LINKS = tuple(
    dict(ranks=4, microbatches=16, transfer=transfer, room=room)
    for transfer, room in ((0, 16), (0, 4), (1, 16), (1, 7), (1, 4))
)


def _choose(ranks, microbatches, transfer, room):
    """The fastest, and of those that are equally fast the one that holds least."""
    fits = {}
    for name in _CHOICES:
        seconds, held = _cost(name, ranks, microbatches, transfer)
        if held <= room:
            fits[name] = seconds, held
    return min(fits, key=fits.get)


schedule_for_a_link = topic.exercise(
    "schedule_for_a_link",
    _choose,
    name="choose",
    cases=_LINKS,
    right="1F1B where messages are free or memory is short, else the eager warm-up.",
)


# --- bug hunt: both neighbours send first ---------------------------------------------------------


def _meets(solution, ranks):
    """The outcome of send and recv that wait for each other, as gloo's do at any size: the messages
    that have arrived when all lists are done, or which rank waits in what."""
    lists = []
    for rank in range(ranks):
        try:
            found = solution(rank, ranks)
            if found is None or found is ...:
                return found
            moves = [(what, int(peer)) for what, peer in found]
        except Exception as error:
            return Failure.of(error)
        if strange := [what for what, _ in moves if what not in ("send", "recv")]:
            return f'a move is ("send", rank) or ("recv", rank), not {strange[0]!r}.'
        if beyond := [peer for _, peer in moves if abs(peer - rank) != 1 or not 0 <= peer < ranks]:
            return f"rank {rank} of {ranks} has no neighbour {beyond[0]}."
        lists.append(moves)
    kinds = {what for moves in lists for what, _ in moves}
    arrived, going = [], True
    while going:
        going = False
        for rank, moves in enumerate(lists):
            if not moves or moves[0][0] != "send" or not 0 <= moves[0][1] < ranks:
                continue
            peer = moves[0][1]
            if lists[peer] and lists[peer][0] == ("recv", rank):
                arrived.append((rank, peer))
                lists[rank], lists[peer] = moves[1:], lists[peer][1:]
                going = True
    stuck = {rank: moves[0] for rank, moves in enumerate(lists) if moves}
    if stuck:
        waits = [f"rank {r} waits in {what} for rank {peer}" for r, (what, peer) in stuck.items()]
        both = {what for r, (what, peer) in stuck.items() if stuck.get(peer) == (what, r)}
        why = ""
        if len(kinds) == 1:
            why = " Every rank receives and none sends."
            if "send" in kinds:
                why = " Every rank sends and none receives."
        elif both:
            why = f" Both neighbours {'send' if 'send' in both else 'receive'} first."
        return f"on {ranks} ranks nobody goes on: {'; '.join(waits)}.{why}"
    return "done", sorted(arrived)


neighbours_that_send_first = topic.exercise(
    "neighbours_that_send_first",
    cases=(dict(ranks=2), dict(ranks=4), dict(ranks=5)),
    answer=_meets,
    hint="Draw an arrow from each rank to the one that it waits for. Of two neighbours,"
    " which one could receive first?",
    right="of two neighbours one sends first and the other receives first: no circle, at any size.",
)
