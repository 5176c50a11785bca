"""Chapter 15: mixture of experts."""

import math

import torch

from coursekit.exercises.edits import Topic

topic = Topic(__name__)


# --- parameters of a token ------------------------------------------------------------------------


def active(total, layers, experts, k, one):
    return total - layers * (experts - k) * one


parameters_of_a_token = topic.exercise(
    "parameters_of_a_token",
    active,
    cases=(
        dict(total=1000, layers=2, experts=8, k=2, one=50),
        dict(total=46_702_792_704, layers=32, experts=8, k=2, one=176_160_768),
        dict(total=700, layers=1, experts=4, k=4, one=100),
        dict(total=900, layers=3, experts=2, k=1, one=120),
    ),
    words=("eight small experts", "Mixtral 8x7B", "all experts", "one of two"),
    unit="parameters",
    hint="Which experts does a token skip in one layer, and in all layers?",
    right="a token skips all experts but k, in each layer.",
)


# --- a choice and its gates -----------------------------------------------------------------------


def route(scores, bias, k):
    chosen = (scores + bias).topk(k).indices
    gates = scores.gather(-1, chosen)
    return chosen, gates / gates.sum(-1, keepdim=True)


def _chosen(solution, scores, bias, k):
    chosen, gates = solution(torch.tensor(scores), torch.tensor(bias), k)
    return chosen.tolist(), [[round(one, 4) for one in row] for row in gates.tolist()]


a_choice_and_its_gates = topic.exercise(
    "a_choice_and_its_gates",
    route,
    cases=(
        dict(scores=[[0.5, 0.2, 0.2, 0.1]], bias=[0.0, 0.0, -0.01, 0.0], k=2),
        dict(scores=[[0.5, 0.3, 0.15, 0.05]], bias=[-0.3, 0.0, 0.0, 0.2], k=2),
        dict(scores=[[0.1, 0.6, 0.3], [0.3, 0.1, 0.6]], bias=[0.4, 0.0, 0.0], k=2),
        dict(scores=[[0.9, 0.8, 0.7]], bias=[0.0, 0.0, 0.25], k=1),
    ),
    words=("a small bias", "a bias that changes the choice", "two tokens", "scores of sigmoids"),
    answer=_chosen,
    hint="`scores + bias` says who is chosen. What says how much it weighs?",
    right="the bias chooses, and the score alone weighs.",
)


# --- rows to each rank ----------------------------------------------------------------------------


def dispatch(chosen, experts, ranks):
    flat = [expert for token in chosen for expert in token]
    order = sorted(range(len(flat)), key=lambda row: flat[row])
    local = experts // ranks
    return order, [sum(expert // local == rank for expert in flat) for rank in range(ranks)]


def _dispatched(solution, **case):
    order, counts = solution(**case)
    return [int(row) for row in order], [int(count) for count in counts]


rows_to_each_rank = topic.exercise(
    "rows_to_each_rank",
    dispatch,
    cases=(
        dict(chosen=[[0, 3], [0, 1]], experts=8, ranks=4),
        dict(chosen=[[5, 2], [2, 5], [4, 0]], experts=6, ranks=2),
        dict(chosen=[[1, 0], [1, 0]], experts=4, ranks=4),
        dict(chosen=[[7], [6], [7]], experts=8, ranks=2),
    ),
    words=("two tokens", "three tokens, two ranks", "ranks without a row", "one expert a token"),
    answer=_dispatched,
    hint="Row r is choice r % k of token r // k. Neighbouring experts are on one rank.",
    right="a stable sort keeps rows of one expert in the order of their tokens.",
)


# --- rows that are dropped ------------------------------------------------------------------------


def dropped(chosen, experts, capacity):
    flat = [expert for token in chosen for expert in token]
    most = math.ceil(round(capacity * len(flat) / experts, 6))
    return sum(max(0, flat.count(expert) - most) for expert in range(experts)) / len(flat)


rows_that_are_dropped = topic.exercise(
    "rows_that_are_dropped",
    dropped,
    cases=(
        dict(chosen=[[0, 1]] * 8, experts=4, capacity=1.0),
        dict(chosen=[[0, 1], [0, 2], [0, 3], [0, 1]], experts=4, capacity=1.25),
        dict(chosen=[[0, 1], [2, 3]], experts=4, capacity=1.0),
        dict(chosen=[[0], [0], [0], [1], [1], [2]], experts=3, capacity=1.0),
    ),
    words=("all tokens alike", "a limit that is rounded up", "in balance", "one expert a token"),
    unit="fraction",
    hint="How many rows is an even share, and how many does each expert get beyond its limit?",
    right="each expert drops what it gets beyond its limit; nothing moves to another expert.",
)


# --- bug hunt: a balance of all -------------------------------------------------------------------


def balance_loss(scores, counts, total):
    counts = total(counts)
    share = counts / counts.sum()
    return len(counts) * (share * scores.mean(0)).sum()


def _losses(solution, ranks):
    """The loss of each rank, whose scores and counts these are."""
    counts = [torch.tensor(rows) for _, rows in ranks]
    everyone = lambda mine: torch.stack(counts).sum(0) if mine.dtype == torch.long else mine
    return [
        round(float(solution(torch.tensor(scores), torch.tensor(rows), everyone)), 5)
        for scores, rows in ranks
    ]


a_balance_of_all = topic.exercise(
    "a_balance_of_all",
    balance_loss,
    cases=(
        dict(ranks=[([[0.5, 0.5], [0.9, 0.1]], [2, 0])]),
        dict(ranks=[([[0.9, 0.1], [0.8, 0.2]], [2, 0]), ([[0.1, 0.9], [0.3, 0.7]], [0, 2])]),
        dict(ranks=[([[0.7, 0.2, 0.1]], [3, 1, 0]), ([[0.1, 0.1, 0.8]], [0, 0, 4])]),
    ),
    words=("one rank", "two ranks, each with a favourite", "three experts"),
    answer=_losses,
    hint="On two ranks, each with a favourite expert of its own: is the load even?",
    right="shares are of all ranks' rows; the mean score may stay the rank's own.",
)


# --- bug hunt: whose average ----------------------------------------------------------------------


def gradient_factor(is_expert, ranks, expert_ranks):
    return (ranks // expert_ranks, expert_ranks) if is_expert else (ranks, 1)


whose_average = topic.exercise(
    "whose_average",
    gradient_factor,
    cases=(
        dict(is_expert=False, ranks=8, expert_ranks=4),
        dict(is_expert=True, ranks=8, expert_ranks=4),
        dict(is_expert=True, ranks=4, expert_ranks=4),
        dict(is_expert=True, ranks=4, expert_ranks=1),
    ),
    words=("the router", "experts on 4 of 8 ranks", "experts on all ranks", "whole experts"),
    answer=lambda solution, **case: list(solution(**case)),
    hint="On which ranks is the same expert? Whose tokens has it seen already?",
    right="divided by the ranks whose tokens it saw, then averaged over its copies.",
)
