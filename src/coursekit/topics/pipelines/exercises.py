"""Chapter 8: pipelines. What readers write makes schedules, which are simulated, or runs on thread
ranks: no check can hang."""

from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.answers import drawn, nine_digits
from coursekit.exercises.checker import Exercise, Failure, Misconception, is_blank
from coursekit.exercises.thread_ranks import answer_of_ranks
from coursekit.lab import batches, small_gpt
from shardlab.gpt import next_token_loss
from shardlab.pipelines.partition import check_order_of_messages
from shardlab.pipelines.schedules import Action, Kind, all_of, one_f_one_b, schedule, whole
from shardlab.pipelines.simulation import Costs, in_flight, simulate, validate_schedule

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
        return simulate(lists).seconds, in_flight(lists)
    except ValueError as error:
        return Failure.of(error)


warm_up_of_one_f_one_b = Exercise(
    name="warm_up",
    reference=lambda rank, ranks, microbatches: min(microbatches, ranks - rank - 1),
    cases=(
        dict(ranks=4, microbatches=8),
        dict(ranks=2, microbatches=3),
        dict(ranks=5, microbatches=12),
    ),
    words=("4 ranks, 8 microbatches", "2 ranks, 3 microbatches", "5 ranks, 12 microbatches"),
    answer=_run_with_warm_up,
    misconceptions=(
        Misconception(
            lambda rank, ranks, microbatches: max(0, ranks - rank - 2),
            "one forward too few. Nothing fails, every rank does its work in order, and a step"
            " of 4 ranks and 8 microbatches takes 54 units instead of 33: each rank waits for an"
            " answer before it hands on the next microbatch. A pair begins with its own forward,"
            " so rank r needs one warm-up for each rank after it: p - r - 1.",
        ),
        Misconception(
            lambda rank, ranks, microbatches: ranks - rank,
            "one forward too many. A pair begins with its own forward, so the warm-up is p - r - 1."
            " The step takes as long, and every rank holds one microbatch more than it needs.",
        ),
        Misconception(
            lambda rank, ranks, microbatches: ranks - 1,
            "the first rank's warm-up on every rank: the last one holds p microbatches, although it"
            " could begin its first backward at once.",
        ),
        Misconception(
            lambda rank, ranks, microbatches: microbatches,
            "all forwards first: that is GPipe. It takes as long, and every rank holds all m"
            " microbatches.",
        ),
        Misconception(
            lambda rank, ranks, microbatches: 2 * (ranks - rank - 1),
            "that is eager 1F1B, which holds almost twice as much to hide the time of messages."
            " Plain 1F1B does p - r - 1 forwards first.",
        ),
        Misconception(
            lambda rank, ranks, microbatches: rank,
            "the wrong way round: the first rank waits longest for its first gradient, so it needs"
            " the longest warm-up.",
        ),
        Misconception(
            lambda rank, ranks, microbatches: 0,
            "no warm-up: each microbatch goes all the way down and back before the next one starts,"
            " so one rank works at a time.",
        ),
    ),
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
    return simulate(lists).seconds, in_flight(lists)


def _list_of(
    warm=lambda r, p, m: min(m, p - r - 1),
    pair=lambda forward, backward: [forward, backward],
    own=False,
    cool_down=True,
):
    def actions_of_rank(rank, ranks, microbatches):
        forwards, backwards = (
            list(all_of(rank, kind, microbatches)) for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        first = warm(rank, ranks, microbatches)
        actions = forwards[:first]
        for forward, backward in zip(forwards[first:], backwards[first:] if own else backwards):
            actions += pair(forward, backward)
        rest = backwards[:first] if own else backwards[microbatches - first :]
        return actions + rest * cool_down

    return actions_of_rank


one_f_one_b_of_a_rank = Exercise(
    name="one_f_one_b",
    reference=_list_of(),
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
    misconceptions=(
        Misconception(
            _list_of(warm=lambda r, p, m: max(0, p - r - 2)),
            "one forward too few before the first pair. Nothing fails, and a step of 4 ranks and"
            " 8 microbatches takes 54 units instead of 33: each rank waits for an answer before"
            " it hands on the next microbatch. A pair begins with its own forward, so rank r"
            " needs one more for each rank after it: p - r - 1.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: min(m, p - r - 2)),
            "one forward too few before the first pair, and on the last rank -1: forwards[:-1] are"
            " all but the last. Rank r needs one for each rank after it: p - r - 1.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: min(m, p - r)),
            "one forward too many before the first pair, which begins with a forward of its own."
            " The step takes as long, and every rank holds one microbatch more than it needs.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: min(m, p - 1)),
            "the first rank's warm-up on every rank: the last one holds p microbatches, although it"
            " could begin its first backward at once.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: m),
            "all forwards first: that is GPipe. It takes as long, and every rank holds all m"
            " microbatches.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: min(m, r)),
            "the wrong way round: the first rank waits longest for its first gradient, so it needs"
            " the longest warm-up.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: 0),
            "no warm-up: each microbatch goes all the way down and back before the next one starts,"
            " so one rank works at a time.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: p - r - 1),
            "right, as long as there are enough microbatches: with 4 ranks and 2 of them, rank 0"
            " has only 2 forwards to begin with. The warm-up is at most m.",
        ),
        Misconception(
            _list_of(cool_down=False),
            "the backwards of the warm-up's microbatches are missing: when the forwards have run"
            " out, as many backwards are left as there were forwards in the warm-up.",
        ),
        Misconception(
            _list_of(pair=lambda forward, backward: [backward, forward]),
            "a pair begins with its forward. On the last rank, which has no warm-up, backward of"
            " microbatch 0 would come before its forward.",
        ),
        Misconception(
            _list_of(own=True),
            "you pair each forward with its own backward, and leave the warm-up's microbatches to"
            " the end. The oldest microbatch comes back first: the first pair has the backward of"
            " microbatch 0.",
        ),
        Misconception(
            _list_of(warm=lambda r, p, m: min(m, 2 * (p - r - 1))),
            "that is eager 1F1B, which holds almost twice as much to hide the time of messages."
            " Plain 1F1B does p - r - 1 forwards first.",
        ),
    ),
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


def _perform(
    needs_gradient=True,
    let_go=lambda kept, microbatch: kept.pop(microbatch),
    backward=lambda y, dy: y.backward(dy),
    hands_on=lambda x, dy: x.grad,
    sends=lambda x, y: y.detach(),
):
    def perform(action, stage, kept, take, give):
        if action.kind is Kind.FORWARD:
            x = take()
            x = x.requires_grad_() if needs_gradient else x
            y = stage(x)
            kept[action.microbatch] = x, y
            give(sends(x, y))
        else:
            x, y = let_go(kept, action.microbatch)
            dy = take()
            backward(y, dy)
            give(hands_on(x, dy))

    return perform


def _with_autograd_grad(action, stage, kept, take, give):
    if action.kind is Kind.FORWARD:
        _perform()(action, stage, kept, take, give)
    else:
        x, y = kept.pop(action.microbatch)
        give(torch.autograd.grad(y, x, take())[0])


def _forward_alone(action, stage, kept, take, give):
    if action.kind is Kind.FORWARD:
        _perform()(action, stage, kept, take, give)


actions_of_a_stage = Exercise(
    name="perform",
    reference=_perform(),
    cases=(dict(ranks=2, microbatches=4), dict(ranks=3, microbatches=5)),
    words=("2 ranks, 4 microbatches", "3 ranks, 5 microbatches"),
    answer=_stages_at_work,
    hint="Backward of a microbatch needs what its forward had and made: keep both under"
    " action.microbatch, and take them out when they have served.",
    misconceptions=(
        Misconception(
            _perform(needs_gradient=False),
            "what you send back is None. x came from another rank, so autograd does not know that"
            " anybody wants its gradient: call x.requires_grad_() before the stage. And what the"
            " rank before needs is x.grad, not the gradient of your own output.",
        ),
        Misconception(
            _perform(backward=lambda y, dy: y.backward()),
            "y is not a loss, but on the last rank: backward needs the gradient of y, which the"
            " next rank sends. y.backward(take()).",
        ),
        Misconception(
            _perform(backward=lambda y, dy: y.sum().backward()),
            "you call backward on a sum, or with ones, which takes the gradient of y for ones."
            " backward needs the gradient of y that take() gives.",
        ),
        Misconception(
            _perform(let_go=lambda kept, microbatch: kept[microbatch]),
            "the gradients are right, and nothing is ever let go: in the end the rank holds all m"
            " microbatches, as in GPipe. Take it out of `kept`: pop.",
        ),
        Misconception(
            _perform(let_go=lambda kept, microbatch: kept.popitem()[1]),
            "you take the newest microbatch, and the gradient that arrives is the oldest one's:"
            " the action says whose turn it is.",
        ),
        Misconception(
            _perform(hands_on=lambda x, dy: x if dy is None else dy),
            "you hand on the gradient of your own output. The rank before needs that of *its*"
            " output, which is your input: x.grad.",
        ),
        Misconception(
            _perform(sends=lambda x, y: x if y.ndim else y),
            "the next rank gets your input, not your output.",
        ),
        Misconception(
            _with_autograd_grad,
            "x gets its gradient and the stage's parameters get none: autograd.grad() computes what"
            " it is asked for. y.backward(take()) fills both.",
        ),
        Misconception(
            _perform(hands_on=lambda x, dy: x.detach()),
            "you hand on the input itself. The rank before needs its gradient, x.grad.",
        ),
        Misconception(
            lambda *_: None,
            "nothing was received, run or sent: fill in the two blanks, that of a forward and that"
            " of a backward.",
        ),
        Misconception(
            _forward_alone,
            "forwards are done, and no backward: fill in the second blank, too.",
        ),
    ),
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
    right="plain autograd on every rank, and one tensor between neighbours in each direction.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


def _losses(microbatches=4, ranks=2, of=lambda losses: losses, on_all=False):
    """The losses that two ranks of the lab's GPT find in a step: on the last rank."""

    def found():
        model, losses = small_gpt(torch.float64, layers=6, heads=4, tied_head=0), []
        for x, target in zip(*(both.chunk(microbatches) for both in next(batches(8)))):
            with torch.no_grad():
                losses.append(next_token_loss(model(x), target).item())
        return [of(losses) if on_all or rank == ranks - 1 else [] for rank in range(ranks)]

    return found


def _of_each_rank(solution):
    """A rank's losses as a list, whether they come as one, as a tensor or as a number."""
    found = solution()
    if isinstance(found, (list, tuple)) and all(
        isinstance(own, (list, tuple, torch.Tensor, int, float)) for own in found
    ):
        return [torch.as_tensor(own, dtype=torch.float64).flatten().tolist() for own in found]
    return found


losses_of_two_ranks = Exercise(
    name="found_by_two",
    reference=_losses(),
    cases=({},),
    answer=_of_each_rank,
    of_a_value=True,
    hint="A function that takes no argument does everything on a rank: layers, plan, Pipeline,"
    " step. `with ranks(2) as two:`, and two.run of that function gives a list for each rank.",
    misconceptions=(
        Misconception(
            _losses(microbatches=8),
            "those are the losses of eight microbatches: the schedule says into how many a batch is"
            " cut, one_f_one_b(2, 4).",
        ),
        Misconception(
            _losses(ranks=4),
            "four ranks have answered: that is the world of the first cell. ranks(2) starts two.",
        ),
        Misconception(
            _losses(ranks=4, microbatches=8),
            "four ranks have answered, with the losses of eight microbatches: start a world of your"
            " own by ranks(2), and give it the lists of one_f_one_b(2, 4).",
        ),
        Misconception(
            _losses(on_all=True),
            "both ranks have the losses, so each has run the whole model: a Pipeline keeps the"
            " layers of its rank, and the last rank alone has losses.",
        ),
        Misconception(
            lambda: _losses()()[1:],
            "that is what one rank returned: hand over all that run gives back, a list for each"
            " rank.",
        ),
        Misconception(
            lambda: _losses()()[1],
            "those are the losses of one rank: hand over all that run gives back, a list for each"
            " rank.",
        ),
        Misconception(
            _losses(of=lambda losses: [sum(losses) / len(losses)]),
            "that is their mean, which is the batch's loss: step gives the loss of each"
            " microbatch.",
        ),
        Misconception(
            _losses(of=lambda losses: [loss / 4 for loss in losses]),
            "divided by m: that is done before backward, and step gives the losses undivided.",
        ),
        Misconception(
            _losses(microbatches=2),
            "those are the losses of two microbatches: one_f_one_b(ranks, microbatches) takes four"
            " of them, one_f_one_b(2, 4).",
        ),
        Misconception(
            lambda: _losses()()[::-1],
            "the lists are in the wrong order: run gives those of rank 0 first, and the losses are"
            " on the last rank.",
        ),
        Misconception(
            _losses(of=lambda losses: [sum(losses)]),
            "that is their sum: step gives the loss of each microbatch.",
        ),
        Misconception(
            _losses(of=lambda losses: [4 * loss for loss in losses]),
            "multiplied by m: step gives the losses undivided already.",
        ),
        Misconception(
            lambda: [None, None],
            "the ranks return nothing: the function ends with return, and what step gives.",
        ),
        Misconception(
            lambda: [[], []],
            "no rank has a loss: the last rank returns what its step gives.",
        ),
    ),
    right="two ranks, half the layers each, and on the last rank the losses of the whole model.",
)


# --- dividing by m --------------------------------------------------------------------------------


def _trained(solution, microbatches):
    """The weights after a step of SGD."""
    torch.manual_seed(microbatches)
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs = torch.randn(microbatches, 4, 3, dtype=torch.float64)
    targets = torch.randn(microbatches, 4, 2, dtype=torch.float64)
    solution(model, list(zip(inputs, targets)), nn.functional.mse_loss, optimizer)
    return nine_digits(torch.cat([p.detach().flatten() for p in model.parameters()]))


def _step(
    loss_over=lambda m: m, gradient_over=lambda m: 1, clear=False, update=False, cleared=True
):
    def step(model, microbatches, loss_of, optimizer):
        m = len(microbatches)
        for x, target in microbatches:
            if clear:
                optimizer.zero_grad()
            (loss_of(model(x), target) / loss_over(m)).backward()
            if update:
                optimizer.step()
                if cleared:
                    optimizer.zero_grad()
        for p in model.parameters():
            if p.grad is not None:
                p.grad /= gradient_over(m)
        if cleared:
            optimizer.step()

    return step


def _adds_again(model, microbatches, loss_of, optimizer):
    total = 0
    for x, target in microbatches:
        total = total + loss_of(model(x), target) / len(microbatches)
        total.backward(retain_graph=True)
    optimizer.step()


def _divides_inside(model, microbatches, loss_of, optimizer):
    for x, target in microbatches:
        loss_of(model(x), target).backward()
        for p in model.parameters():
            p.grad /= len(microbatches)
    optimizer.step()


mean_over_microbatches = Exercise(
    name="step",
    reference=_step(),
    cases=(dict(microbatches=4), dict(microbatches=3)),
    words=("4 microbatches of 4 examples", "3 microbatches of 4 examples"),
    answer=_trained,
    hint="Each microbatch's loss is a mean over its own tokens. What do gradients of"
    " several backwards do in .grad?",
    misconceptions=(
        Misconception(
            _step(gradient_over=lambda m: m),
            "divided by m twice: each loss before its backward, and the gradients after the last."
            " AdamW hides it, because it divides each gradient by its own size; SGD takes steps"
            " that are m times too short.",
        ),
        Misconception(
            _step(loss_over=lambda m: 1),
            "never divided by m. Each loss is a mean over its microbatch, and their gradients add"
            " up: the step is m times too long. AdamW hides that, too.",
        ),
        Misconception(
            _step(loss_over=lambda m: 4 * m),
            "divided by the number of examples. The loss is a mean over its microbatch already:"
            " divide by the number of microbatches.",
        ),
        Misconception(
            _step(clear=True),
            "the gradients are cleared before each microbatch, so the step follows the last one"
            " alone.",
        ),
        Misconception(
            _step(update=True),
            "the optimizer steps after each microbatch: m small steps with weights that change"
            " between them. A microbatch's backward must see the weights of its forward.",
        ),
        Misconception(
            lambda model, microbatches, loss_of, optimizer: None,
            "no step was taken: optimizer.step() is missing, or the gradients were cleared before"
            " it.",
        ),
        Misconception(
            _step(loss_over=lambda m: 4),
            "right only where there are as many microbatches as examples in one. The loss is a"
            " mean over its examples already: divide by the number of microbatches, not by its"
            " examples.",
        ),
        Misconception(
            _step(update=True, cleared=False),
            "the optimizer steps after each microbatch, with gradients that are never cleared:"
            " the first one counts in every step. Step once, after the last.",
        ),
        Misconception(
            _step(loss_over=lambda m: 1 / m),
            "multiplied by m, and a mean is divided by that number.",
        ),
        Misconception(
            _step(loss_over=lambda m: 8),
            "divided by eight, whatever m is: a step may have another number of microbatches,"
            " len(microbatches).",
        ),
        Misconception(
            _divides_inside,
            "the gradients are divided inside the loop, so the first microbatch's are divided m"
            " times. Divide once, after the last, or divide each loss.",
        ),
        Misconception(
            _step(loss_over=lambda m: 1, clear=True),
            "the gradients are cleared before each microbatch, or only one has a backward: the"
            " step follows the last one alone.",
        ),
        Misconception(
            _adds_again,
            "each backward adds up earlier losses again: a running sum has them in it. backward"
            " of each loss alone, or of the sum once.",
        ),
    ),
    right="the gradient of the mean over the whole batch, whatever m is.",
)


# --- a weight on the first and the last rank ------------------------------------------------------


def _tied(solution, n):
    """The gradient of the tied weight on each rank, None where a rank has none."""

    def work(dist):
        rank = dist.get_rank()
        own = {0: [1.0, 2.0], n - 1: [10.0, 20.0]}.get(rank)
        gradient = None if own is None else torch.tensor(own, dtype=torch.float64)
        solution(gradient, dist)
        return None if gradient is None else nine_digits(gradient)

    return answer_of_ranks(n, work)


def _swap(of=lambda own, other: own + other, ends=(0, -1)):
    """The two ends send each other what they have; those of `ends` use it."""

    def tie(gradient, dist):
        n, rank = dist.get_world_size(), dist.get_rank()
        if gradient is None:
            return
        other = torch.empty_like(gradient)
        dist.isend(gradient, n - 1 - rank)
        dist.recv(other, n - 1 - rank)
        if rank in [end % n for end in ends]:
            gradient.copy_(of(gradient, other))

    return tie


def _everyone_adds(gradient, dist):
    dist.all_reduce(gradient)


def _twice(gradient, dist):
    _swap()(gradient, dist)
    _swap()(gradient, dist)


gradient_of_a_tied_weight = Exercise(
    name="tie",
    reference=_swap(),
    cases=(dict(n=2), dict(n=4)),
    words=("2 ranks", "4 ranks, two of which have the weight"),
    answer=_tied,
    misconceptions=(
        Misconception(
            lambda gradient, dist: None,
            "the copies are not added, so each end trains a weight of its own. The loss falls"
            " even a little faster, because the model has more parameters than intended: only a"
            " comparison of the two copies shows the fault.",
        ),
        Misconception(
            _twice,
            "counted twice: after the first exchange both have the sum, and the second one adds it"
            " to itself. With Adam nobody notices.",
        ),
        Misconception(
            _swap(of=lambda own, other: (own + other) / 2),
            "the mean of the two. They are two parts of one gradient, of its use in the embedding"
            " and of that in the head: add them.",
        ),
        Misconception(
            _swap(of=lambda own, other: other),
            "exchanged, not added: each end follows the other's gradient.",
        ),
        Misconception(
            _swap(ends=(0,)),
            "the first rank has the sum and the last one its own part: after one step the copies"
            " differ.",
        ),
        Misconception(
            _swap(ends=(-1,)),
            "the last rank has the sum and the first one its own part: after one step the copies"
            " differ.",
        ),
        Misconception(
            _everyone_adds,
            "an all-reduce of all ranks, but those in the middle have no copy to bring: only the"
            " two ends talk.",
        ),
    ),
    right="one gradient, in two parts, and the same sum on both ends: the copies stay equal.",
)


# --- what is in flight ----------------------------------------------------------------------------

_FLIGHTS = tuple(
    dict(name=name, rank=rank, ranks=4, microbatches=microbatches)
    for name in ("GPipe", "1F1B", "zero-bubble H1")
    for rank, microbatches in ((0, 8), (2, 8), (0, 3))
)


def _flight(one=lambda r, p, m: min(m, p - r), h1=lambda r, p, m: min(m, p), gpipe=None):
    def peak(name, rank, ranks, microbatches):
        of = {"GPipe": gpipe or (lambda r, p, m: m), "1F1B": one, "zero-bubble H1": h1}
        return of[name](rank, ranks, microbatches)

    return peak


microbatches_in_flight = Exercise(
    name="in_flight",
    reference=lambda name, rank, ranks, microbatches: in_flight(
        schedule(name, ranks, microbatches)
    )[rank],
    cases=_FLIGHTS,
    misconceptions=(
        Misconception(
            _flight(one=lambda r, p, m: m),
            "1F1B holds less than GPipe: that is what it is for. A rank begins backward as soon as"
            " each rank after it has a microbatch: p - r in flight.",
        ),
        Misconception(
            _flight(one=lambda r, p, m: min(m, p)),
            "p on every rank: right for the first. A later rank gets its first gradient sooner, so"
            " rank r holds p - r.",
        ),
        Misconception(
            _flight(one=lambda r, p, m: min(m, p - r - 1)),
            "that is the warm-up. The forward of the first pair comes on top before any backward.",
        ),
        Misconception(
            _flight(h1=lambda r, p, m: min(m, p - r)),
            "the gradients of inputs go back as early as in 1F1B, but what W needs stays until W:"
            " rank r puts off W by r microbatches, and holds p like the first rank.",
        ),
        Misconception(
            _flight(one=lambda r, p, m: p - r, h1=lambda r, p, m: p),
            "right if there are enough microbatches: with fewer than p, no rank holds more than"
            " there are.",
        ),
        Misconception(
            _flight(gpipe=lambda r, p, m: min(m, p - r)),
            "GPipe does all forwards first: every rank holds all m microbatches.",
        ),
    ),
    right="GPipe m, 1F1B p - r, zero-bubble H1 p on every rank, and never more than m.",
)


# --- which schedule for which link ----------------------------------------------------------------

_CHOICES = ("GPipe", "1F1B", "eager 1F1B")
_LINKS = tuple(
    dict(ranks=4, microbatches=16, transfer=transfer, room=room)
    for transfer, room in ((0, 16), (0, 4), (1, 16), (1, 7), (1, 4))
)


def _fastest_that_fits(ranks, microbatches, transfer, room):
    """The fastest, and of those that are equally fast the one that holds least."""
    fits = {}
    for name in _CHOICES:
        lists = schedule(name, ranks, microbatches)
        held = max(in_flight(lists))
        if held <= room:
            fits[name] = simulate(lists, Costs(1, 1, 1, transfer)).seconds, held
    return min(fits, key=fits.get)


schedule_for_a_link = Exercise(
    name="choose",
    reference=_fastest_that_fits,
    cases=_LINKS,
    misconceptions=(
        Misconception(
            lambda ranks, microbatches, transfer, room: "1F1B",
            "1F1B buys memory, not time. With exactly p - r microbatches in flight, a rank waits"
            " for an answer in almost every pair: where messages take time, eager 1F1B is faster,"
            " if there is room for its warm-up.",
        ),
        Misconception(
            lambda ranks, microbatches, transfer, room: "GPipe",
            "GPipe holds all microbatches. It does not fit where there is room for fewer, and is"
            " nowhere faster than a schedule that holds less.",
        ),
        Misconception(
            lambda ranks, microbatches, transfer, room: "eager 1F1B",
            "where messages take no time, eager 1F1B is as fast as 1F1B and holds almost twice as"
            " much; and it needs room for 2p - 1 microbatches.",
        ),
        Misconception(
            lambda ranks, microbatches, transfer, room: "1F1B" if transfer == 0 else "eager 1F1B",
            "right for the link, but the last case has room for only 4 microbatches: there 1F1B"
            " is the one that fits, and you pay for its waiting.",
        ),
        Misconception(
            lambda ranks, microbatches, transfer, room: (
                "GPipe" if room >= microbatches else "eager 1F1B" if room > 4 else "1F1B"
            ),
            "room that is there need not be used: of two schedules that are equally fast, take the"
            " one that holds less.",
        ),
        Misconception(
            lambda ranks, microbatches, transfer, room: (
                "1F1B" if transfer == 0 or room < microbatches else "GPipe"
            ),
            "GPipe hides the messages, and so does eager 1F1B, which holds 7 microbatches here"
            " instead of 16.",
        ),
    ),
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


def _moves(first, neighbours=lambda rank: (rank + 1, rank - 1)):
    """The moves with each neighbour: a send and a recv, in the order that `first` says."""

    def moves(rank, ranks):
        found = []
        for peer in neighbours(rank):
            if 0 <= peer < ranks:
                sends = first(rank, peer)
                found += [("send", peer), ("recv", peer)] if sends else []
                found += [] if sends else [("recv", peer), ("send", peer)]
        return found

    return moves


def _in_pairs(rank):
    """Even ranks talk to the right first, odd ones to the left: two of them, at the same time."""
    return (rank + 1, rank - 1) if rank % 2 == 0 else (rank - 1, rank + 1)


def _one_way(what):
    def moves(rank, ranks):
        peers = [rank + 1] if what == "send" else [rank - 1]
        return [(what, peer) for peer in peers if 0 <= peer < ranks]

    return moves


neighbours_that_send_first = Exercise(
    name="moves",
    reference=_moves(lambda rank, peer: rank < peer, _in_pairs),
    cases=(dict(ranks=2), dict(ranks=4), dict(ranks=5)),
    answer=_meets,
    hint="Draw an arrow from each rank to the one that it waits for. Of two neighbours,"
    " which one could receive first?",
    misconceptions=(
        Misconception(
            _moves(lambda rank, peer: True),
            "both neighbours send first, and each send waits for a recv that its neighbour would"
            " make next: draw who waits for whom, and the arrows make a circle. One of the two has"
            " to receive first.",
        ),
        Misconception(
            _moves(lambda rank, peer: False),
            "both neighbours receive first, and nobody sends: the same circle with the arrows the"
            " other way.",
        ),
        Misconception(
            _moves(lambda rank, peer: True, _in_pairs),
            "the ranks meet in pairs, as they should, but then both ranks of a pair send first."
            " Let the lower rank send and the higher rank receive, then the other way round.",
        ),
        Misconception(
            _one_way("send"),
            "every rank sends and none receives: a send waits until somebody takes the message.",
        ),
        Misconception(
            lambda rank, ranks: [],
            "no rank sends anything: the activation and the gradient must both arrive.",
        ),
        Misconception(
            _moves(lambda rank, peer: False, _in_pairs),
            "the ranks meet in pairs, as they should, but then both ranks of a pair receive"
            " first: nobody sends. Let the lower rank send and the higher rank receive, then the"
            " other way round.",
        ),
        Misconception(
            lambda rank, ranks: [("recv", peer) for peer in _in_pairs(rank) if 0 <= peer < ranks],
            "every rank receives and none sends: a recv waits until somebody sends.",
        ),
        Misconception(
            lambda rank, ranks: [("send", peer) for peer in _in_pairs(rank) if 0 <= peer < ranks],
            "every rank sends and none receives: a send waits until somebody takes the message.",
        ),
        Misconception(
            lambda rank, ranks: [
                ("send" if peer > rank else "recv", peer)
                for peer in (rank + 1, rank - 1)
                if 0 <= peer < ranks
            ],
            "one way only: activations go to the right, and the gradients have to come back, so"
            " each pair exchanges two messages.",
        ),
        Misconception(
            lambda rank, ranks: [
                (what, peer % ranks)
                for peer in (rank + 1, rank - 1)
                for what in (("send", "recv") if rank % 2 == 0 else ("recv", "send"))
            ],
            "a ring: the last rank and the first are no neighbours in a pipeline, so keep"
            " 0 <= peer < ranks.",
        ),
    ),
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
    right="of two neighbours one sends first and the other receives first: no circle, at any size.",
)
