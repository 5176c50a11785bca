"""The parts of topics that engines and pages find."""

from types import SimpleNamespace

import pytest

from coursekit import topics


def test_a_name_that_finds_a_topic_is_in_one(monkeypatch):
    """Must catch: a second topic that takes a card of pages over in silence; a topic that is gone
    and gives a StopIteration."""
    made = [SimpleNamespace(__name__=name, moves=1) for name in ("one.steps", "two.steps")]
    made.append(SimpleNamespace(__name__="three.steps", cuts=1))
    monkeypatch.setattr(topics, "modules", lambda part: made)
    assert topics.the_one_with("cuts", "steps") is made[2]
    with pytest.raises(LookupError, match="is to have moves, .* in one.steps and two.steps: give"):
        topics.the_one_with("moves", "steps")
    with pytest.raises(LookupError, match="it is in none"):
        topics.the_one_with("waits", "steps")
