"""Trials of the assignment: experts on several ranks. README.md beside this file says what a
learner builds."""

import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.exercises.assignments import Assignment
from coursekit.topics.mixture_of_experts.exercises import route
from ranklab.measure.communication import CommunicationLog
from shardlab.experts import core, core_parallel

from ..asking import Here, demand, expect, groups, refuses

ROUTE, PARALLEL = "route", "ExpertParallel"
REFERENCE = {ROUTE: route, PARALLEL: core_parallel.ExpertParallel}
ASSIGNMENT = Assignment(
    "mixture_of_experts",
    reference=REFERENCE,
    core=REFERENCE,
    forbidden=("torch.distributed.nn", "torch.distributed._functional_collectives"),
)
HIDDEN, INNER, EXPERTS = 5, 7, 12
CLOSE = 1e-12  # of sums of a few numbers in float64


def drawn(seed: int, *sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def all_experts(number: int = EXPERTS) -> core.Experts:
    """Experts with equal numbers on all ranks."""
    made = core.Experts(number, HIDDEN, INNER, gated=False, biases=True).double()
    for seed, parameter in enumerate(made.parameters()):
        parameter.data.copy_(drawn(seed, *parameter.shape))
    return made


def counts_of(rank: int) -> Tensor:
    """Rows of a rank for each expert: none for some, and unequally many."""
    return torch.tensor([(3 * expert + 5 * rank) % 4 for expert in range(EXPERTS)])


def losses(experts, rows: Tensor, counts: Tensor, rank: int) -> Tensor:
    """A mean loss that knows each place of a row."""
    made = experts(rows, counts)
    return (made.sin() * drawn(90 + rank, *made.shape)).sum() / 7


def rows_of(rank: int, counts: Tensor) -> Tensor:
    return drawn(50 + rank, int(counts.sum()), HIDDEN).requires_grad_()


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", ROUTE)
def choices_and_gates(mine):
    """the largest scores plus bias are chosen, and the scores alone weigh"""
    scores, bias = drawn(1, 9, 6).softmax(-1), 0.3 * drawn(2, 6)
    for k in (2, 3):
        chosen, gates = mine.route(scores, bias, k)
        right, weights = route(scores, bias, k)
        plain, _ = route(scores, 0 * bias, k)
        expect("the chosen experts", chosen, right, {"These ignore the bias.": plain})
        among = (scores + bias).gather(-1, right)
        expect(
            f"the gates of k = {k}",
            gates,
            weights,
            {
                "The bias is in these gates: it chooses, and weighs nothing.": among
                / among.sum(-1, keepdim=True),
                "They do not add up to 1: divide them by their sum.": scores.gather(-1, right),
            },
            CLOSE,
        )


@ASSIGNMENT.trial("parity", PARALLEL)
def rows_come_back(mine):
    """rows of all experts, in the order in which they were given"""
    for here in groups(4, 3, 2):
        counts = counts_of(here.me)
        rows = rows_of(here.me, counts)
        whole = all_experts()
        made = mine.ExpertParallel(whole, here.group)(rows, counts)
        what = f"what comes back to rank {here.me} of {here.n}"
        instead = {"These are the rows themselves: no expert computed.": rows.detach()}
        first = whole(rows, counts.roll(1)).detach()
        instead["Rows went through their neighbour's expert."] = first
        expect(what, made, whole(rows, counts).detach(), instead, CLOSE)


@ASSIGNMENT.trial("parity", PARALLEL)
def gradients_of_rows(mine):
    """each row gets the gradient of its own rank's loss"""
    for here in groups(4, 3, 2):
        counts = counts_of(here.me)
        rows, plain = rows_of(here.me, counts), rows_of(here.me, counts)
        losses(mine.ExpertParallel(all_experts(), here.group), rows, counts, here.me).backward()
        losses(all_experts(), plain, counts, here.me).backward()
        instead = {
            f"That is divided by {here.n}: only the experts' gradients are.": plain.grad / here.n,
            f"That is {here.n} times as much.": plain.grad * here.n,
        }
        what = f"the gradient of rank {here.me}'s rows"
        expect(what, rows.grad, plain.grad, instead, CLOSE)


@ASSIGNMENT.trial("parity", PARALLEL)
def gradients_of_experts(mine):
    """an expert gets the gradient of the mean of all ranks' losses"""
    for here in groups(4, 3, 2):
        counts = counts_of(here.me)
        model = mine.ExpertParallel(all_experts(), here.group)
        losses(model, rows_of(here.me, counts), counts, here.me).backward()
        for found, wanted in zip(own_of(model), mean_of(here)):
            what = f"the gradient of an expert's parameter {list(wanted.shape)}"
            sums = {
                f"That is the sum over {here.n} ranks' losses: divide by {here.n}.": here.n * wanted
            }
            expect(what, found.grad, wanted, sums, CLOSE)


def own_of(model) -> list[Tensor]:
    found = list(model.parameters())
    demand(len(found) == 4, f"ExpertParallel has {len(found)} parameters, and the experts have 4.")
    return found


def mean_of(here: Here) -> list[Tensor]:
    """This rank's part of the gradients of the mean loss."""
    whole = all_experts()
    for rank in range(here.n):
        counts = counts_of(rank)
        (losses(whole, rows_of(rank, counts), counts, rank) / here.n).backward()
    return [p.grad.chunk(here.n)[here.me] for p in whole.parameters()]


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", PARALLEL)
def messages(mine):
    """counts, rows and rows back in forward; rows twice in backward"""
    for here in groups(4):
        counts = counts_of(here.me)
        model = mine.ExpertParallel(all_experts(), here.group)
        with CommunicationLog() as log:
            loss = losses(model, rows_of(here.me, counts), counts, here.me)
        said = [message.operation for message in log.messages]
        demand(len(said) == 3, f"forward sends {len(said)} messages, and 3 are needed: {said}.")
        with CommunicationLog() as log:
            loss.backward()
        said = [message.operation for message in log.messages]
        demand(len(said) == 2, f"backward sends {len(said)} messages, and 2 are needed: {said}.")


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", PARALLEL)
def nothing_to_send(mine):
    """a rank without rows, and experts of one rank alone"""
    for here in groups(3):
        counts = torch.zeros(EXPERTS, dtype=torch.int64)
        counts[7] = 4 * here.me  # rank 0 has none
        rows, whole = rows_of(here.me, counts), all_experts()
        model = mine.ExpertParallel(whole, here.group)
        loss = losses(model, rows, counts, here.me)
        loss.backward()
        right = losses(whole, rows, counts, here.me)
        expect("the loss where some ranks have no rows", loss, right.detach(), None, CLOSE)
        dist.barrier(here.group)


@ASSIGNMENT.trial("faults", PARALLEL)
def experts_that_are_not_divided(mine):
    """10 experts on 4 ranks"""
    for here in groups(4):
        refuses("10 experts on 4 ranks", mine.ExpertParallel, all_experts(10), here.group)
