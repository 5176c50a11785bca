"""The stepper of the labs, as what a cell shows. tests/browser/test_notebook.py opens it."""

import re

import pytest

from coursekit.show.embed import STORED
from coursekit.topics.collectives.stepper import stepper
from shardlab import collective_plans as plans
from shardlab.collective_plans import Move


def to_the_left(n):
    return [
        [Move(rank, (rank - 1) % n, (rank + step) % n, "+=") for rank in range(n)]
        for step in range(1, n)
    ]


def test_a_plan_of_ones_own():
    """Mutations: the book's plan drawn in its place; `now each has` said of a plan that does not
    get there; a wrong plan drawn; a plan without a step, or a step without a move, an error."""
    shown = stepper("reduce-scatter", 4, plan=to_the_left)
    assert shown.steps[-1].sentence.endswith("Now each rank has its chunk of the sum.")
    assert shown.steps[-1].moves != plans.ring_reduce_scatter(4)[-1]
    assert shown.data["moves"] == " 031+102+213+320+ 032+103+210+321+ 033+100+211+322+"
    short = stepper("reduce-scatter", 4, plan=lambda n: [*to_the_left(n)[:-1], []]).steps
    assert short[-1].sentence == "Step 3 of 3: nobody sends."
    assert "0 of 4 chunks are complete" in short[-1].detail
    cut = stepper("reduce-scatter", 4, plan=lambda n: to_the_left(n)[:-1]).steps
    assert "Now" not in cut[-1].sentence
    none = stepper("scatter", 2, plan=lambda n: [])
    assert none.data["moves"] == "" and none.sentence.startswith("Before step 1 of 0: ")
    assert stepper("scatter", 2, plan=lambda n: [[]]).data["moves"] == " "
    with pytest.raises(ValueError, match="step 2, .*: rank 1 has the part of rank 0 already."):
        stepper("reduce-scatter", 4, plan=lambda n: plans.ring_reduce_scatter(n)[:1] * 2)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "step 1, Move(source=0, target=4, chunk=0, operator='='): there are ranks 0 to 3."
        ),
    ):
        stepper("scatter", 4, plan=lambda n: [[Move(0, n, 0, "=")]])


def test_a_stored_stepper_is_its_words():
    """Must catch: sixty kilobytes of script in a stored lab; a stored lab without a word."""
    shown = stepper("ring all-reduce", 4)
    bundle = shown._repr_mimebundle_()
    assert bundle[STORED] == {"name": "ring all-reduce"} and len(bundle["text/html"]) < 65_000
    said = f"Ring all-reduce, step by step, on 4 ranks: {shown.steps[1].sentence}"
    assert repr(shown) == said and said.startswith(bundle["text/plain"][:-1])
