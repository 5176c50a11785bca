"""Chapter 16: sending less."""

import torch

from coursekit.exercises.edits import Topic

topic = Topic(__name__)


# --- a link on which a compressor pays ------------------------------------------------------------


def pays_below(plain_bytes, sent_bytes, seconds):
    return (plain_bytes - sent_bytes) / seconds


a_link_where_it_pays = topic.exercise(
    "a_link_where_it_pays",
    pays_below,
    cases=(
        dict(plain_bytes=1000, sent_bytes=200, seconds=4.0),
        dict(plain_bytes=995_515_392, sent_bytes=31_109_856, seconds=0.02),
        dict(plain_bytes=600, sent_bytes=300, seconds=0.5),
        dict(plain_bytes=900, sent_bytes=100, seconds=2.0),
    ),
    words=("a small model", "signs of GPT-2", "16 bits", "a ninth"),
    unit="bytes per second",
    hint="On which link does the time that it saves equal the time that it takes?",
    right="the bytes that stay at home, by the seconds that it takes to leave them out.",
)


# --- an error that is sent later ------------------------------------------------------------------


def compress(gradient, error, encode):
    wanted = gradient + error
    sent = encode(wanted)
    return sent, wanted - sent


def whole_numbers(x):
    """A compressor that rounds toward zero."""
    return x.trunc()


def only_largest(x):
    """A compressor that keeps one element, the largest."""
    return torch.where(x.abs() == x.abs().max(), x, 0)


def _sent(solution, gradients, encode):
    """All that was sent, step by step, and the last error."""
    error, every = torch.zeros(len(gradients[0])), []
    for gradient in gradients:
        sent, error = solution(torch.tensor(gradient), error, encode)
        every.append(sent.tolist())
    return every, [round(one, 4) for one in error.tolist()]


an_error_that_is_sent_later = topic.exercise(
    "an_error_that_is_sent_later",
    compress,
    cases=(
        dict(gradients=[[0.75, 2.5], [0.75, 0.0], [0.75, -3.0]], encode=whole_numbers),
        dict(gradients=[[1.0, 0.25], [0.0, 0.5], [0.5, 0.0]], encode=only_largest),
        dict(gradients=[[-0.5, 4.0, 1.25]], encode=whole_numbers),
    ),
    words=("rounded in three steps", "the largest element in three steps", "one step"),
    answer=_sent,
    hint="What should have been sent in this step, if nothing had ever been left out?",
    right="what was sent so far, and the error, are the sum of all gradients.",
)


# --- elements of a low rank -----------------------------------------------------------------------


def low_rank_elements(shapes, rank):
    sent = 0
    for shape in shapes:
        if len(shape) == 2:
            rows, columns = shape
            sent += rank * (rows + columns)
        else:
            sent += shape[0]
    return sent


elements_of_a_low_rank = topic.exercise(
    "elements_of_a_low_rank",
    low_rank_elements,
    cases=(
        dict(shapes=[(6, 4)], rank=1),
        dict(shapes=[(6, 4), (10,)], rank=2),
        dict(shapes=[(768, 3072), (3072,), (3072, 768), (768,)], rank=4),
        dict(shapes=[(5,), (8, 3), (7, 9)], rank=2),
    ),
    words=("one matrix", "a matrix and its bias", "an MLP of GPT-2", "two matrices"),
    unit="elements",
    hint="A gradient of m by n is sent as two thin matrices. A bias has one dim.",
    right="r (m + n) for a matrix, and vectors whole.",
)


# --- times fewer bytes in a run -------------------------------------------------------------------


def fewer_in_a_run(warm_up, times):
    return 1 / (warm_up + (1 - warm_up) / times)


times_fewer_bytes_in_a_run = topic.exercise(
    "times_fewer_bytes_in_a_run",
    fewer_in_a_run,
    cases=(
        dict(warm_up=0.15, times=16),
        dict(warm_up=0.5, times=4),
        dict(warm_up=0.2, times=32),
        dict(warm_up=0.0, times=8),
    ),
    words=("1-bit Adam", "half of the steps", "fp32 gradients", "no warm-up"),
    unit="times",
    hint="Let a step without compression send 1. What does the mean step send?",
    right="bytes are averaged, and not factors: the warm-up is most of what is sent.",
)


# --- bug hunt: a resume ---------------------------------------------------------------------------


def steps(gradients, state, encode):
    weight, error = state["weight"], state.get("error", 0.0)
    for gradient in gradients:
        sent = encode(gradient + error)
        error = gradient + error - sent
        weight -= 0.5 * sent
    return dict(weight=weight, error=error)


def _in_parts(solution, parts, encode):
    """The weight after each part of a run, which is saved and resumed between them."""
    state, weights = dict(weight=0.0), []
    for gradients in parts:
        state = dict(solution(gradients, dict(state), encode))
        weights.append(round(state["weight"], 6))
    return weights


def to_whole(x):
    """A compressor that rounds toward zero."""
    return float(int(x))


def to_halves(x):
    """A compressor that rounds toward zero, to halves."""
    return int(2 * x) / 2


a_run_that_is_resumed = topic.exercise(
    "a_run_that_is_resumed",
    steps,
    cases=(
        dict(parts=[[0.75, 0.75, 0.75, 0.75]], encode=to_whole),
        dict(parts=[[0.75], [0.75, 0.75], [0.75]], encode=to_whole),
        dict(parts=[[1.25, -0.5], [2.75, 0.25]], encode=to_whole),
        dict(parts=[[0.375], [0.375], [0.375], [0.375]], encode=to_halves),
    ),
    words=("never saved", "saved twice", "saved once", "saved after each step"),
    answer=_in_parts,
    hint="Which numbers does the second part begin with, and which did the first part end with?",
    right="errors are a part of the state: what was left out has still to be sent.",
)


# --- bug hunt: the outer gradient -----------------------------------------------------------------


def outer_step(start, ends, momentum, rate, keep):
    gradient = start - sum(ends) / len(ends)
    momentum = keep * momentum + gradient
    return start - rate * (gradient + keep * momentum), momentum


def _rounds(solution, start, moves, rate, keep):
    """The weight after each round, whose ranks have moved it by so much."""
    momentum, every = 0.0, []
    for moved in moves:
        start, momentum = solution(start, [start + by for by in moved], momentum, rate, keep)
        every.append(round(float(start), 6))
    return every


a_step_outward = topic.exercise(
    "a_step_outward",
    outer_step,
    cases=(
        dict(start=2.0, moves=[[-1.0, -0.5]], rate=1.0, keep=0.0),
        dict(start=2.0, moves=[[-1.0, -0.5], [-0.25, 0.5]], rate=0.7, keep=0.9),
        dict(start=-1.0, moves=[[0.5, 0.5, 2.0], [1.0, 1.0, 1.0]], rate=0.5, keep=0.5),
    ),
    words=("a plain average", "two ranks, two rounds", "three ranks"),
    answer=_rounds,
    hint="An optimizer subtracts its gradient. Where should it go if all ranks have moved to 1?",
    right="with rate 1 and no momentum the step ends at the ranks' mean.",
)


# --- the largest elements -------------------------------------------------------------------------


def keep_largest(gradient, k):
    places = gradient.flatten().abs().topk(k).indices
    return places, gradient.flatten()[places]


def _kept(solution, gradient, k):
    places, values = solution(torch.tensor(gradient), k)
    return sorted(zip(places.tolist(), values.tolist()))


elements_that_are_kept = topic.exercise(
    "elements_that_are_kept",
    keep_largest,
    cases=(
        dict(gradient=[0.1, -0.9, 0.4, 0.2], k=2),
        dict(gradient=[[3.0, -1.0], [-5.0, 2.0]], k=3),
        dict(gradient=[-0.5, -0.25, -1.0], k=1),
        dict(gradient=[[0.5, 0.125, -2.0]], k=3),
    ),
    words=("two of four", "a matrix", "all negative", "all of them"),
    answer=_kept,
    hint="A large negative element matters as much as a large positive one.",
    right="the largest by size, with their signs.",
)
