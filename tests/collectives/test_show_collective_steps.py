"""The stepper's steps: the plans' pictures, the formulas' numbers, and what ranks really send; the
card before any script."""

import json
import re
import sys

import pytest

from coursekit.formulas import evaluate
from coursekit.topics.collectives.steps import (
    COLLECTIVES,
    DIGITS,
    RANKS,
    encode,
    page_data,
    stepper_steps,
)
from shardlab import collective_plans as plans
from shardlab.collective_plans import Move, follow

EVERY = [(name, n) for name in COLLECTIVES for n in RANKS]


def decode(text):
    """The plan that encode() wrote."""
    operators = {"+": "+=", "=": "="}
    return [
        [
            Move(int(move[0]), int(move[1]), DIGITS.index(move[2]), operators[move[3]])
            for move in re.findall("....", step)
        ]
        for step in text.split(" ")
    ]


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n"), EVERY)
def test_pictures_follow_the_plan_to_its_end(name, n):
    """Pictures follow the plan to its end; for a barrier they show who has heard of whom.
    Mutations: a plan of the wrong collective; `have` of a scatter for that of a gather; hearsay of
    the step itself, not of the steps before."""
    steps, shown = stepper_steps(name, n), COLLECTIVES[name]
    assert [step.number for step in steps] == list(range(len(steps)))
    assert [step.moves for step in steps[1:]] == shown.plan(n)
    if name == "barrier":
        heard = [{rank} for rank in range(n)]
        for step in steps[1:]:
            heard = [
                heard[rank].union(
                    *(heard[move.source] for move in step.moves if move.target == rank)
                )
                for rank in range(n)
            ]
            assert step.picture == [{0: frozenset(ranks)} for ranks in heard]
    else:
        assert [step.picture for step in steps] == follow(shown.plan(n), steps[0].picture)
    everyone = frozenset(range(n))
    last = steps[-1].picture
    done = {
        "broadcast": lambda rank, held: held == {0: {0}},
        "scatter": lambda rank, held: rank in held,
        "reduce": lambda rank, held: rank or held == {0: everyone},
        "gather": lambda rank, held: rank or len(held) == n,
        "ring all-reduce": lambda rank, held: held == dict.fromkeys(range(n), everyone),
        "all-gather": lambda rank, held: held == {chunk: {chunk} for chunk in range(n)},
        "reduce-scatter": lambda rank, held: held[rank] == everyone,
        "all-to-all": lambda rank, held: all(
            held[n * other + rank] == {other} for other in range(n)
        ),
    }
    assert all(
        done.get(name, lambda rank, held: held == {0: everyone})(rank, held)
        for rank, held in enumerate(last)
    )


# --- words ----------------------------------------------------------------------------------------

STEPS = {
    "naive all-reduce": "naive_all_reduce_steps",
    "tree all-reduce": "tree_all_reduce_steps",
    "ring all-reduce": "ring_all_reduce_steps",
    "broadcast": "tree_broadcast_steps",
    "reduce": "tree_broadcast_steps",
    "barrier": "tree_broadcast_steps",
}
SENT = {
    "naive all-reduce": "naive_all_reduce_sent_bytes",
    "tree all-reduce": "tree_all_reduce_sent_bytes",
    "ring all-reduce": "ring_all_reduce_sent_bytes",
    "all-gather": "ring_all_gather_sent_bytes",
    "reduce-scatter": "ring_reduce_scatter_sent_bytes",
    "all-to-all": "all_to_all_sent_bytes",
}
TIMES = {"nothing": 0, "once": 1}


@pytest.mark.parametrize(("name", "n"), EVERY)
def test_steps_and_shares_are_the_formulas(name, n):
    """The sentence's number of steps, and of the rank that sends most the share of the array.

    Mutations: count a step's messages over all ranks; shares of n - 1; the steps of a tree for
    those of a ring."""
    steps = stepper_steps(name, n)
    formula = STEPS.get(name, "ring_pass_steps")
    assert len(steps) - 1 == evaluate([formula], ranks=n)[formula]
    assert [step.sentence.partition(":")[0] for step in steps] == [
        f"Before step 1 of {len(steps) - 1}",
        *(f"Step {k} of {len(steps) - 1}" for k in range(1, len(steps))),
    ]
    said = re.match(
        r"Sent by the rank that sends most: (?:the array )?(\S+)(?: times| of the array|"
        r" bytes?)? so far, "
        r"(\S+?)(?: times)? in the end\. ",
        steps[-1].detail,
    )
    assert said[1] == said[2]
    if name not in SENT:
        return
    parts, of = (
        (int(said[1].split("/")[0]), n)
        if "/" in said[1]
        else (TIMES.get(said[1]) or int(said[1]), 1)
    )
    message = dict(ranks=n, message_elements=n, message_element_bytes=1)
    sent = [evaluate([SENT[name]], rank=rank, **message)[SENT[name]] for rank in range(n)]
    assert parts * n == max(sent) * of


def test_what_a_step_says():
    """Mutations: `keeps` where a partial sum is overwritten; the end said at every step; the digit
    of an all-to-all left out."""
    ring, everyone = stepper_steps("ring all-reduce", 3), stepper_steps("all-to-all", 3)
    assert (
        ring[0].sentence
        == "Before step 1 of 4: each rank has an array of its own, cut into 3 chunks, and all want"
        " the sum."
    )
    assert (
        ring[1].sentence
        == "Step 1 of 4: rank 0 sends chunk C to rank 1, rank 1 chunk A to rank 2 and rank 2 chunk"
        " B to rank 0. Each adds what arrives to its own."
    )
    assert (
        ring[1].detail
        == "Sent by the rank that sends most: 1/3 of the array so far, 4/3 in the end. 0 of 9"
        " chunks are complete."
    )
    assert ring[4].sentence.endswith("its own with what arrives. Now all have the sum.")
    assert (
        everyone[1].sentence
        == "Step 1 of 2: rank 0 sends chunk B0 to rank 1, rank 1 chunk C1 to rank 2 and rank 2"
        " chunk A2 to rank 0. Each keeps what arrives."
    )
    reduce, naive = stepper_steps("reduce", 2), stepper_steps("naive all-reduce", 2)
    assert (
        reduce[1].sentence
        == "Step 1 of 1: rank 1 sends what it has to rank 0, which adds it to its own. "
        "Now rank 0 has the sum."
    )
    assert (
        naive[2].detail
        == "Sent by the rank that sends most: the array once so far, once in the end. 2 of 2"
        " ranks have the sum."
    )


@pytest.mark.parametrize("n", RANKS)
def test_how_far_it_is(n):
    """From what was there at first to all that is wanted. Mutation: chunks counted where nobody
    wants them."""

    def progress(name, number):
        return re.search(
            r"(\d+) of (\d+) (?=[a-z]+ (?:are|have|know)|arrays)",
            stepper_steps(name, n)[number].detail,
        ).groups()

    wanted = {"ring all-reduce": n * n, "all-gather": n * n, "all-to-all": n * n}
    at_first = {
        "broadcast": 1,
        "reduce": 1,
        "scatter": 1,
        "gather": 1,
        "all-gather": n,
        "all-to-all": n,
    }
    for name in COLLECTIVES:
        assert progress(name, 0) == (str(at_first.get(name, 0)), str(wanted.get(name, n))), name
        assert progress(name, -1) == (str(wanted.get(name, n)),) * 2, name


# --- what ranks really send -----------------------------------------------------------------------


def collectives_of(group, n, me):
    """Name -> a call of our collective on the group's n ranks, of which this is number `me`."""
    import torch

    from shardlab import collectives

    full, mine = torch.zeros(n + 3), torch.zeros(len(range(me, n + 3, n)))
    root = full if me == 0 else None
    return {
        "broadcast": lambda: collectives.broadcast(full, group=group),
        "reduce": lambda: collectives.reduce(full, group=group),
        "naive all-reduce": lambda: collectives.all_reduce(full, group, plans.naive_all_reduce),
        "tree all-reduce": lambda: collectives.all_reduce(full, group, plans.tree_all_reduce),
        "ring all-reduce": lambda: collectives.all_reduce(full, group),
        "scatter": lambda: collectives.scatter(mine, root, group=group),
        "gather": lambda: collectives.gather(mine, root, group=group),
        "all-gather": lambda: collectives.all_gather(full, mine, group),
        "reduce-scatter": lambda: collectives.reduce_scatter(mine, full, group),
        "all-to-all": lambda: collectives.all_to_all(torch.zeros(n * mine.numel()), full, group),
        "barrier": lambda: collectives.barrier(group),
    }


def sent_and_received(most):
    """On each of the groups {0 ... n - 1}, of each collective, in order: (operation, peer,
    chunk)."""
    import torch.distributed as dist

    from ranklab.measure.communication import CommunicationLog

    found = {}
    for n in range(2, most + 1):
        group = dist.new_group(range(n))
        me = dist.get_rank()
        if me >= n:
            continue
        for name, work in collectives_of(group, n, me).items():
            with CommunicationLog() as log:
                work()
            found[name, n] = [
                (message.operation, message.peer, message.chunk) for message in log.messages
            ]
    return found


def drawn(plan, me):
    """The messages that are drawn of a plan: in each step those that the rank receives, then those
    that it sends."""
    for moves in plan:
        yield from (("recv", move.source, move.chunk) for move in moves if move.target == me)
        yield from (("send", move.target, move.chunk) for move in moves if move.source == me)


def carried():
    """The data of the stepper's page: collective -> number of ranks -> data."""
    from bookkit.stepper import script

    return json.loads(re.fullmatch(r"BOOK\.steppers\.add\((.*)\);\n", script(), flags=re.DOTALL)[1])


@pytest.mark.ranks
def test_the_steps_drawn_are_the_messages_sent():
    """Every collective runs on real ranks, 2 to 8 of them; the recorded log of every rank is what
    the page draws.

    Mutations: a plan drawn that is not the plan run (a ring that turns the other way, a tree for
    the naive way, another root, a step less); a chunk's number written with the wrong digit;
    collectives.py running another plan."""
    import cloudpickle

    from ranklab.ranks import ranks

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    page = carried()
    with ranks(RANKS[-1], device="cpu", announce=False) as world:
        logs = world.run(sent_and_received, RANKS[-1])
    for me, found in enumerate(logs):
        assert list(found) == [(name, n) for n in RANKS if me < n for name in COLLECTIVES]
        for (name, n), log in found.items():
            assert log == list(drawn(decode(page[name][str(n)]["moves"]), me)), (name, n, me)


@pytest.mark.parametrize(("name", "n"), EVERY)
def test_a_plan_goes_to_the_page_whole(name, n):
    """Mutation: chunks above 35 written with two digits, the operator left out."""
    plan = COLLECTIVES[name].plan(n)
    assert decode(encode(plan)) == plan
    data, steps = page_data(name, n), stepper_steps(name, n)
    assert [len(row) for row in data["have"]] == [len(row) for row in steps[0].picture]
    assert len(data["say"]) == len(steps)
    assert all({move.operator for move in moves} in ({"+="}, {"="}) for moves in plan)


# --- the card -------------------------------------------------------------------------------------


@pytest.fixture
def stepper():
    from bookkit import stepper

    return stepper


def test_the_weight_of_a_stepper(stepper):
    """A stepper costs a page less than 25 kB, before a reader asks for another collective, with
    script and style.

    Mutation: all collectives in the card."""
    import rcssmin
    import rjsmin

    from bookkit.look import STATIC

    own = sum(
        len(rjsmin.jsmin((STATIC / f"{name}.js").read_text()))
        + len(rcssmin.cssmin((STATIC / f"{name}.css").read_text()))
        for name in ("stepper", "chunks")
    )
    assert (
        own
        + max(
            len(stepper.card(name, 4, "../_static/collective-steps.js").encode())
            for name in COLLECTIVES
        )
        < 25_000
    )
