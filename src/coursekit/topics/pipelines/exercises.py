"""Chapter 8: pipelines. What readers write makes schedules, which are simulated, or runs on thread
ranks: no check can hang."""

from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.answers import drawn, nine_digits, share_of_each
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


def _run_with_warm_up(solution, ranks, microbatches):
    """(time of the step where F, I and W take 1 each, microbatches that each rank holds)."""
    lists = []
    for rank in range(ranks):
        try:
            warm = solution(rank, ranks, microbatches)
        except Exception as error:
            return Failure.of(error)
        if not isinstance(warm, int) or isinstance(warm, bool) or warm < 0:
            return warm if warm is None else Failure(f"a warm-up of {warm!r} on rank {rank}")
        forwards, backwards = (
            all_of(rank, kind, microbatches) for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        lists.append(list(whole(forwards, backwards, min(warm, microbatches))))
    try:
        return _Step(simulate(lists).seconds, in_flight(lists))
    except ValueError as error:
        return Failure.of(error)


class _Step(NamedTuple):
    seconds: float
    microbatches_held: list


def warm_up(rank, ranks, microbatches):
    return min(microbatches, ranks - rank - 1)


def _another_warm_up(found, right, ranks, microbatches):
    """Ranks that hold too much, or too little for the others to be at work."""
    held, enough = found.microbatches_held, right.microbatches_held
    if held == [microbatches] * ranks and held != enough:
        return (
            "all forwards first: that is GPipe. It takes as long, and every rank holds all m"
            " microbatches."
        )
    if max(held) == 1:
        return (
            "no warm-up: each microbatch goes all the way down and back before the next one starts,"
            " so one rank works at a time."
        )
    if held == enough[::-1] or held[0] < held[-1]:
        return (
            "the wrong way round: the first rank waits longest for its first gradient, so it needs"
            " the longest warm-up."
        )
    if len(set(held)) == 1:
        return (
            f"the first rank's warm-up on every rank: the last one holds {held[-1]} microbatches,"
            " although it could begin its first backward at once."
        )
    more = [rank for rank, pair in enumerate(zip(held, enough)) if pair[0] > pair[1]]
    if found.seconds > right.seconds:
        return (
            f"nothing fails, and the step takes {found.seconds:g} units instead of"
            f" {right.seconds:g}: a rank waits for an answer before it hands on the next"
            " microbatch. A pair begins with its own forward, so rank r needs one forward more"
            " before it for each rank after it: p - r - 1."
        )
    if more and held[0] > enough[0] + 1:
        return (
            f"rank 0 holds {held[0]} microbatches, and {enough[0]} are enough: as many as in eager"
            " 1F1B, which hides the time of messages. Plain 1F1B does p - r - 1 forwards first."
        )
    if more:
        return (
            f"the step takes as long, and rank {more[0]} holds {held[more[0]]} microbatches where"
            f" {enough[more[0]]} are enough: a forward too many comes before its first pair, which"
            " begins with a forward of its own."
        )
    return None


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
    properties=(_another_warm_up,),
    right="every rank has one forward under way for each rank after it, and one of its own.",
)


# --- 1F1B, a list ---------------------------------------------------------------------------------


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
    errors=(
        (
            r"\dF\d+: the rank has done it already",
            "The pairs begin with a forward that was in the warm-up: that does the forwards of"
            " the warm-up twice. forwards[warm_up:].",
        ),
        (
            r"B\d+: the rank has done it already|another order than they are sent",
            "Backwards come in order: the first pair has that of microbatch 0. The pairs have done"
            " the first m - warm_up of them; what is left, in the cool-down, is"
            " backwards[microbatches - warm_up:].",
        ),
        (
            "microbatches go from 0 to 7",
            "Microbatches are counted from 0: range(microbatches).",
        ),
        (
            "microbatches go from 0 to",
            "Where there are fewer microbatches than ranks, the warm-up is at most m:"
            " min(microbatches, ranks - rank - 1).",
        ),
        (
            "has no attribute '(value|rank)'",
            "Each action is an Action: Action(rank, Kind.FORWARD, 0), Action(rank, Kind.BACKWARD,"
            " 0).",
        ),
        (
            r"arguments but 1\d were given",
            "Those are the lists of all ranks: return the list of the rank that is asked for.",
        ),
        (
            r"stage \d is on rank \d already",
            "An action names its own rank first: Action(rank, Kind.FORWARD, microbatch).",
        ),
        (
            r"Action\.__new__\(\)|and 'Action'",
            "Something in the list is no action: the list is one flat list of this rank's actions,"
            " so += [forward, backward], and no append of a pair.",
        ),
    ),
    properties=(_another_warm_up,),
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


def _work_left_out(found, right, ranks, microbatches):
    """Actions that did nothing, and layers without a gradient."""
    if not any(one.most_held_at_a_time for one in found):
        return (
            "nothing was kept for a backward: fill in the two blanks, that of a forward and that of"
            " a backward."
        )
    without = [
        rank
        for rank, one in enumerate(found)
        if any(g is None for g in one.gradients_of_the_layers)
    ]
    if len(without) == ranks and all(one.held_in_the_end for one in found):
        return "forwards are done, and no backward: fill in the second blank, too."
    if without:
        return (
            f"the layer of rank {without[0]} gets no gradient: y.backward(take()) fills those of"
            " the stage's parameters and of x."
        )
    return None


actions_of_a_stage = topic.exercise(
    "actions_of_a_stage",
    cases=(dict(ranks=2, microbatches=4), dict(ranks=3, microbatches=5)),
    words=("2 ranks, 4 microbatches", "3 ranks, 5 microbatches"),
    answer=_stages_at_work,
    hint="Backward of a microbatch needs what its forward had and made: keep both under"
    " action.microbatch, and take them out when they have served.",
    errors=(
        (
            "'Action' object has no attribute",
            "An action has a kind and a microbatch: keep what belongs together under"
            " action.microbatch.",
        ),
        (
            "given None in BACKWARD",
            "x.grad is None there. Before give comes y.backward(take()), and x is what the stage"
            " was called with: take() once, x.requires_grad_(), y = stage(x).",
        ),
        ("'dict' object has no attribute", "kept is a dictionary: kept[action.microbatch] = x, y."),
        (
            "KeyError",
            "The forward of a microbatch comes first, and puts it into kept; its backward takes"
            " it out.",
        ),
        (
            "nobody can go on",
            "A rank waits in take() for what another rank has not sent: both kinds end with"
            " give(...), which returns nothing.",
        ),
        (
            "second time",
            "Several microbatches are in hand at a time, and each needs a place of its own:"
            " kept[action.microbatch].",
        ),
        (
            "cannot be converted to Scalar",
            "On the last rank y is the loss, and the loss is sent: give(y.detach()), not x.",
        ),
        (
            "unsupported operand.*NoneType",
            "In backward take() gives None on the last rank, because a loss needs no gradient"
            " from elsewhere: hand it on as it is, y.backward(take()).",
        ),
        (
            "implicitly created only",
            "backward needs the gradient of y, which the next rank sends: keep both x and y in"
            " forward, and then y.backward(take()).",
        ),
    ),
    properties=(_work_left_out,),
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


def _losses_of_others(found, right):
    """Losses of other ranks, other microbatches, or made into one."""
    if len(found) == 1 or not all(isinstance(own, list) for own in found):
        return (
            "that is what one rank returned: hand over all that run gives back, a list for each"
            " rank."
        )
    if len(found) != 2:
        return (
            f"{len(found)} ranks have answered, and two are wanted: a world of your own, by"
            " ranks(2)."
        )
    if not any(found):
        return "no rank has a loss: the last rank returns what its step gives."
    if found[0] and not found[1]:
        return (
            "the lists are in the wrong order: run gives those of rank 0 first, and the losses are"
            " on the last rank."
        )
    if found[0]:
        return (
            "both ranks have the losses, so each has run the whole model: a Pipeline keeps the"
            " layers of its rank, and the last rank alone has losses."
        )
    losses, wanted = found[1], right[1]
    if len(losses) == 1:
        kind = "sum" if losses[0] > 2 * wanted[0] else "mean"
        return f"that is one number, such as their {kind}: step gives the loss of each microbatch."
    if len(losses) != len(wanted):
        return (
            f"those are the losses of {len(losses)} microbatches: the schedule says into how many a"
            " batch is cut, one_f_one_b(2, 4)."
        )
    times = losses[0] / wanted[0]
    if abs(times - 1) > 0.2:
        return (
            f"those are {times:.3g} times the losses: a loss is divided by m before backward, and"
            " step gives the losses undivided already."
        )
    return (
        "those are the losses of another model or another batch: small_gpt and batches(8) as they"
        " are in the cell above, in float64, seed included."
    )


losses_of_two_ranks = topic.exercise(
    "losses_of_two_ranks",
    _losses(),
    name="found_by_two",
    cases=({},),
    answer=_of_each_rank,
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: layers, plan, Pipeline,"
    " step. `with ranks(2) as two:`, and two.run of that function gives a list for each rank.",
    properties=(_losses_of_others,),
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


def _shares_of_microbatches(found, right, microbatches):
    """How often the gradient of each microbatch is in the step."""
    model, pairs = _model_and_microbatches(microbatches)
    start, parts = _weights(model), {}
    for number, (x, target) in enumerate(pairs):
        loss = nn.functional.mse_loss(model(x), target)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        parts[f"that of microbatch {number}"] = torch.cat([g.flatten() for g in gradients])
    step = (start - torch.tensor(found, dtype=torch.float64)) / _RATE
    if words := share_of_each(step.tolist(), parts, 1 / microbatches):
        return (
            f"the step goes along a sum of the {microbatches} microbatches' gradients, which are"
            f" means over their examples already, each divided by m: {words}."
        )
    return (
        "the step is no sum of the microbatches' gradients at the weights of its begin: the"
        " optimizer steps more than once, or a loss is of something else than the outputs."
    )


mean_over_microbatches = topic.exercise(
    "mean_over_microbatches",
    cases=(dict(microbatches=4), dict(microbatches=3)),
    words=("4 microbatches of 4 examples", "3 microbatches of 4 examples"),
    answer=_trained,
    hint="Each microbatch's loss is a mean over its own tokens. What do gradients of"
    " several backwards do in .grad?",
    properties=(_shares_of_microbatches,),
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


def _parts_of_the_tied(found, right, n):
    """How often each end's part is in the gradient of the first and of the last rank."""
    first, last = (torch.tensor(_OWN[end]) for end in (0, -1))
    if found[0] == _OWN[0] and found[-1] == _OWN[-1]:
        return (
            "the copies are not added, so each end trains a weight of its own. The loss falls even"
            " a little faster, because the model has more parameters than intended: only a"
            " comparison of the two copies shows the fault."
        )
    said = [
        f"on the {where} rank {words}"
        for where, own in (("first", found[0]), ("last", found[-1]))
        if (words := share_of_each(own, {"the first's part": first, "the last's part": last}))
    ]
    return (
        f"the two are parts of one gradient, of the embedding and of the head, and both ends need"
        f" their sum: {'; '.join(said)}."
        if said
        else None
    )


gradient_of_a_tied_weight = topic.exercise(
    "gradient_of_a_tied_weight",
    tie,
    cases=(dict(n=2), dict(n=4)),
    words=("2 ranks", "4 ranks, two of which have the weight"),
    answer=_tied,
    properties=(_parts_of_the_tied,),
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


def _another_peak(found, right, name, rank, ranks, microbatches):
    """Numbers that are right for another schedule or another rank."""
    if found > microbatches:
        return (
            f"{found} microbatches of {microbatches}: with fewer than p of them no rank holds more"
            " than there are."
        )
    if name == "GPipe":
        return "GPipe does all forwards first: every rank holds all m microbatches."
    if name == "zero-bubble H1":
        return (
            f"rank {rank} holds {right}, and not {found}: the gradients of inputs go back as early"
            " as in 1F1B, but what W needs stays until W. Rank r puts off W by r microbatches, and"
            " holds p like the first rank."
        )
    if found == microbatches:
        return (
            "1F1B holds less than GPipe: that is what it is for. A rank begins backward as soon as"
            " each rank after it has a microbatch: p - r in flight."
        )
    if found == min(microbatches, ranks - rank - 1):
        return (
            "that is the warm-up. The forward of the first pair comes on top before any backward."
        )
    return (
        f"rank {rank} of {ranks} holds {right}, and not {found}: p - r in 1F1B. A later rank gets"
        " its first gradient sooner."
    )


microbatches_in_flight = topic.exercise(
    "microbatches_in_flight",
    _held_by,
    name="in_flight",
    cases=_FLIGHTS,
    properties=(_another_peak,),
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


def _another_schedule(found, right, ranks, microbatches, transfer, room):
    """A schedule that does not fit, is slower, or holds more than one that is as fast."""
    if found not in _CHOICES:
        return f"{found!r} is none of {', '.join(_CHOICES)}."
    seconds, held = _cost(found, ranks, microbatches, transfer)
    least, enough = _cost(right, ranks, microbatches, transfer)
    if held > room:
        return (
            f"{found} holds {held} microbatches, and there is room for {room}: of those that fit,"
            f" {right} is the fastest."
        )
    if seconds > least:
        return (
            f"{found} takes {seconds:g} units and {right} {least:g}, for which there is room, too:"
            " with p - r microbatches in flight a rank waits for an answer in almost every pair."
        )
    return (
        f"room that is there need not be used: {found} holds {held} microbatches and {right}"
        f" {enough}, and it is no faster."
    )


schedule_for_a_link = topic.exercise(
    "schedule_for_a_link",
    _choose,
    name="choose",
    cases=_LINKS,
    properties=(_another_schedule,),
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


def _messages_left_out(found, right, ranks):
    """Messages that are to arrive and do not, or that arrive too often."""
    missing = sorted(set(right[1]) - set(found[1]))
    if not found[1]:
        return "no rank sends anything: the activation and the gradient must both arrive."
    if missing:
        source, target = missing[0]
        return (
            f"nobody waits, and no message goes from rank {source} to rank {target}. Activations go"
            " to the right, and the gradients have to come back: each pair exchanges two messages."
        )
    twice = next((one for one in found[1] if found[1].count(one) > 1), None)
    if twice:
        return f"a message from rank {twice[0]} to rank {twice[1]} is sent more than once."
    return None


neighbours_that_send_first = topic.exercise(
    "neighbours_that_send_first",
    cases=(dict(ranks=2), dict(ranks=4), dict(ranks=5)),
    answer=_meets,
    hint="Draw an arrow from each rank to the one that it waits for. Of two neighbours,"
    " which one could receive first?",
    errors=(
        (
            "int\\(\\) with base 10",
            'A move is a pair (what, rank), in that order: ("send", peer).',
        ),
        (
            "int\\(\\)|unpack",
            "The rank's moves are one flat list of pairs (what, rank): += a list of pairs, and"
            " no append of a list.",
        ),
    ),
    properties=(_messages_left_out,),
    right="of two neighbours one sends first and the other receives first: no circle, at any size.",
)
