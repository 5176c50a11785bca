"""Checks of an answer that is a sentence."""

from typing import NamedTuple

from coursekit.exercises.checker import Exercise, OfRanks, judge


class Made(NamedTuple):
    output: list
    gradient_of_x: list


def test_a_sentence_is_said_alone_beside_a_tuple():
    """Must catch: a sentence shown as a value, "should give (2, True), yours gives '...'"."""
    pairs = Exercise("plan", lambda n: (n, True), (dict(n=2),), (), "so it is.")

    def my_plan(n):
        return "step 2 sends nothing."

    assert repr(judge(pairs, my_plan)) == "not yet: my_plan(n=2): step 2 sends nothing."


def test_what_a_rank_has_is_called_by_its_name():
    """Must catch: "at place 1, 0" of a pair that the check has made, and the reader never returned,
    where the gradient of x is meant."""

    def on_two_ranks(solution):
        return OfRanks(Made([1.0, 2.0], [solution(rank), 4.0]) for rank in range(2))

    exercise = Exercise("half", lambda rank: rank / 2, ({},), (), "so it is.", answer=on_two_ranks)
    assert judge(exercise, lambda rank: rank).sentence == (
        "half() should give 0.5 on rank 1 for the gradient of x at place 0 (counted from 0), yours"
        " gives 1: the output is right; the gradient of x is wrong on rank 1 alone."
    )
