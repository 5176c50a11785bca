"""The sentences of the checks for answers that plausible learners give: tests/answers."""

import pytest

from bench.answers import FOLDER, NAMED, RIGHT, WRONG, answers, shares

TOPICS = sorted(path.stem for path in FOLDER.glob("*.txt"))


def test_there_are_enough_answers():
    """Must catch: a file that is not read, a line of it that counts as part of another."""
    right = [answer.right for answer in answers()]
    assert right.count(False) >= WRONG and right.count(True) >= RIGHT
    assert {answer.topic for answer in answers()} == set(TOPICS) and len(TOPICS) >= 10


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about wrong answers
@pytest.mark.parametrize("topic", TOPICS)
def test_checks_name_the_misconception(topic):
    """Must catch: a check that calls one of the wrong answers right or refuses one of the right
    ones, a misconception taken out."""
    found = shares(answer for answer in answers() if answer.topic == topic)
    assert found.called_right == [] and found.refused == []
    assert found.named >= NAMED * found.wrong
