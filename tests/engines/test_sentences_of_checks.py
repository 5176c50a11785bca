"""Checks of an answer that is a sentence."""

import pytest
from told import told

from coursekit.exercises.checker import Exercise, Misconception, judge
from coursekit.exercises.decisions import decisions_of

BLOCKS = [
    "### each alone",
    "same(found, one + other)\n:   the sum.",
    "same(found, max(one, other))\n:   the larger one.",
]
OF_A_PRODUCT = Exercise(
    "product",
    lambda one, other: one * other,
    (dict(one=1, other=2), dict(one=3, other=3), dict(one=0, other=4)),
    (),
    "so it is.",
    properties=decisions_of(BLOCKS, "coursekit.exercises.answers", "a test").lists,
)


@pytest.mark.parametrize(
    "wrong, said",
    told(
        "test_sentences_of_checks::test_a_formula_is_named_where_it_gives_every_answer", globals()
    ),
)
def test_a_formula_is_named_where_it_gives_every_answer(wrong, said):
    """Must catch: a formula named for the one case that is wrong, though it would give another
    answer where the reader's is right."""
    assert said in judge(OF_A_PRODUCT, wrong).sentence


def test_a_task_does_not_say_its_answer():
    """Must catch: "should give 5, yours gives 2" of a number that the reader is to find."""
    task = Exercise("slowest", lambda: 5, ({},), (), "rank 5.", of_a_value=True)
    said = judge(task, lambda: 2).sentence
    assert said.startswith("slowest is not 2") and "5" not in said


def test_a_known_mistake_may_return_none():
    """Must catch: "returns nothing ... end with return" of a function that has returned None where
    its mistake is known."""
    wrong = (Misconception(lambda n: None if n > 1 else n, "where none fits, say so."),)
    exercise = Exercise("fits", lambda n: n, (dict(n=1), dict(n=2)), wrong, "so it is.")
    assert judge(exercise, lambda n: {1: 1}.get(n)).sentence == "where none fits, say so."
    assert "returns nothing" in judge(exercise, lambda n: None).sentence
