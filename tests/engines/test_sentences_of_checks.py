"""What a check says of an answer that is a sentence."""

from shardlab.exercises.checker import Exercise, judge


def test_a_sentence_is_said_alone_beside_a_tuple():
    """Must catch: a sentence shown as a value, "should give (2, True), yours gives '...'"."""
    pairs = Exercise("plan", lambda n: (n, True), (dict(n=2),), (), "so it is.")

    def my_plan(n):
        return "step 2 sends nothing."

    assert repr(judge(pairs, my_plan)) == "not yet: my_plan(n=2): step 2 sends nothing."
