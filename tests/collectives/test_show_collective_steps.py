"""The steps of the stepper: pictures of plans, numbers of formulas, the plans that ranks run; the
card before any script."""

import json
import re

import pytest

from bookkit import stepper
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
        for step in text.split(" ")[1:]
    ]


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n"), EVERY)
def test_pictures_follow_the_plan(name, n):
    """Pictures follow the plan; for a barrier they show who has heard of whom. test_collectives.py
    looks at the ends of plans. Mutation: hearsay of the step itself, not of the steps before."""
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


# --- words ----------------------------------------------------------------------------------------

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
def test_shares_are_the_formulas(name, n):
    """Mutations: count a step's messages over all ranks; shares of n - 1."""
    steps = stepper_steps(name, n)
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


@pytest.mark.parametrize("n", RANKS)
def test_how_far_it_is(n):
    """From what was there at first to all that is wanted. Mutations: chunks counted where nobody
    wants them; `have` of a scatter for that of a gather."""

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


# --- what is drawn is what runs -------------------------------------------------------------------

RUN = {  # test_collectives.py compares these plans with the messages of ranks
    "broadcast": plans.tree_broadcast,
    "reduce": plans.tree_reduce,
    "naive all-reduce": plans.naive_all_reduce,
    "tree all-reduce": plans.tree_all_reduce,
    "ring all-reduce": plans.ring_all_reduce,
    "scatter": plans.scatter,
    "gather": plans.gather,
    "all-gather": plans.ring_all_gather,
    "reduce-scatter": plans.ring_reduce_scatter,
    "all-to-all": plans.all_to_all,
    "barrier": plans.barrier,
}


# the data of the stepper's page: collective -> number of ranks -> data
PAGE = json.loads(
    re.fullmatch(r"BOOK\.steppers\.add\((.*)\);\n", stepper.script(), flags=re.DOTALL)[1]
)


@pytest.mark.parametrize(("name", "n"), EVERY)
def test_a_plan_goes_to_the_page_whole(name, n):
    """Mutation: chunks above 35 written with two digits, the operator left out; a plan drawn that
    is not the plan that runs, such as a tree for the naive way."""
    plan = RUN[name](n)
    assert COLLECTIVES[name].plan(n) == plan and decode(encode(plan)) == plan
    data, steps = PAGE[name][str(n)], stepper_steps(name, n)
    assert decode(data["moves"]) == plan and data == json.loads(json.dumps(page_data(name, n)))
    assert [len(row) for row in data["have"]] == [len(row) for row in steps[0].picture]
    assert len(data["say"]) == len(steps)
    assert all({move.operator for move in moves} in ({"+="}, {"="}) for moves in plan)


# --- the card -------------------------------------------------------------------------------------


def test_the_weight_of_a_stepper():
    """Less than 25 kB with script and style. Mutation: all collectives in the card."""
    import rcssmin
    import rjsmin

    from coursekit.show.embed import STATIC

    own = sum(
        len(rjsmin.jsmin((STATIC / f"{name}.js").read_text()))
        + len(rcssmin.cssmin((STATIC / f"{name}.css").read_text()))
        for name in ("stepper", "chunks")
    )
    assert (
        own
        + max(
            len(stepper.card(name, "../_static/collective-steps.js").encode())
            for name in COLLECTIVES
        )
        < 25_000
    )
