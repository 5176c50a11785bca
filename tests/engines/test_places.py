"""Places as data: the sums, the largest, where it is and what it is made of."""

import re

import pytest
from told import from_told, valued

from coursekit.formulas import Registry
from coursekit.formulas.places import Places, live
from coursekit.formulas.render import javascript, latex


@pytest.fixture
def book():
    """Three places: one with no gradient, one that is there only at times, one for the eye."""
    registry = Registry()
    for name in ("kept_bytes", "made_bytes", "scratch_bytes"):
        registry.quantity(name, name[0], "bytes", name, least=0)
    registry.quantity("there", "1", "count", "whether", least=0, most=1)
    usual = dict(activations="kept_bytes")
    step = Places("top", "_x", "at most", "here", "test", usual=usual, registry=registry)

    @step.place("early", symbol="_1", phase="forward")
    def early(q):
        """on the way: with scratch"""
        return live(temporaries=2 * q.scratch_bytes)

    @step.place("seen", symbol="_2", largest=False)
    def seen(q):
        """to be looked at"""
        return live(temporaries=1000 * q.scratch_bytes)

    @step.place("late", symbol="_3", when="there")
    def late(q):
        """on the way back"""
        return live(
            activations=0, gradients=q.made_bytes, temporaries=q.scratch_bytes + q.made_bytes
        )

    step.largest()
    registry.step = step
    return registry


TOP = ["top_bytes", "top_place", *(f"{part}_at_top_bytes" for part in ("gradients", "activations"))]


@from_told("kept, made, scratch, there, expected", valued)
def test_the_largest_and_its_parts(book, kept, made, scratch, there, expected):
    """Must catch: the last of equal places; a place that is not there, or is only shown, as the
    largest; a category that another place has; `usual` where the place says 0."""
    given = dict(kept_bytes=kept, made_bytes=made, scratch_bytes=scratch, there=there)
    assert book.evaluate(TOP, **given) == dict(zip(TOP, expected))
    found = book.evaluate([*TOP, "temporaries_at_top_bytes"], **given)
    parts = ("gradients", "activations", "temporaries")
    assert sum(found[f"{part}_at_top_bytes"] for part in parts) == found["top_bytes"]


def test_what_a_place_registers(book):
    """A formula where the category is more than one name, and none where it is one. Must catch:
    a twin of a quantity; a formula that needs what its expression does not name."""
    early, seen, late = book.step.places
    assert early.parts == dict(activations="kept_bytes", temporaries="temporaries_at_early_bytes")
    assert (early.phase, early.total) == ("forward", "live_at_early_bytes")
    assert late.parts == dict(gradients="made_bytes", temporaries="temporaries_at_late_bytes")
    assert book.formulas["temporaries_at_early_bytes"].needs == ("scratch_bytes",)
    assert book.formulas["live_at_early_bytes"].meaning == "bytes on the way: with scratch"
    assert book.formulas["temporaries_at_early_bytes"].meaning == "temporaries on the way"
    assert "seen" not in book.formulas["top_place"].meaning


def test_the_page_has_the_same(book):
    """The page has the formula as mathematics and as JavaScript. Must catch: numbers from 0 in one
    of the two."""
    assert latex("top_place", book) == r"i_x = \text{arg}\max\left(W_1, W_3\right)"
    assert latex("gradients_at_top_bytes", book) == (
        r"G_x = \begin{cases} 0 & \text{if } i_x = 1 \\ m & \text{if } i_x = 2 \end{cases}"
    )
    code = javascript(["gradients_at_top_bytes"], registry=book)
    early, late, place, made = (
        re.search(rf"(\w+) = \w+\(r, (?:q, )?\"{name}\"", code)[1]
        for name in ("live_at_early_bytes", "live_at_late_bytes", "top_place", "made_bytes")
    )
    assert f"([{early}, {late}].indexOf(Math.max({early}, {late})) + 1)" in code
    assert f"[0, {made}][{place} - 1]" in code


@pytest.mark.parametrize(
    "body",
    [
        "q.scratch_bytes",
        "live(temporaries=q.scratch_bytes // 2)",
        "live(temporaries=scratch_bytes)",
    ],
)
def test_what_leaves_the_subset_is_refused(tmp_path, body):
    """When it is defined. Must catch: a place whose expressions nobody checks."""
    registry = Registry()
    step = Places("top", "_x", "at most", "here", "test", registry=registry)
    source = tmp_path / "one.py"
    source.write_text(f'def one(q):\n    """there"""\n    return {body}\n')
    named = {"live": live}
    exec(compile(source.read_text(), source, "exec"), named)
    with pytest.raises((TypeError, AttributeError)):
        step.place("one", symbol="_1")(named["one"])


@pytest.fixture
def terms():
    """Two places and the terms of a technique."""
    registry = Registry()
    for name in ("kept_bytes", "made_bytes", "unit_bytes"):
        registry.quantity(name, name[0], "bytes", name, least=0)
    registry.quantity("copies", "n", "count", "copies", least=0)
    registry.quantity("there", "1", "count", "whether", least=0, most=1)
    usual = dict(activations="kept_bytes")
    step = Places("top", "_x", "at most", "here", "test", usual=usual, registry=registry)

    @step.place("early", symbol="_1")
    def early(q):
        """on the way"""
        return live(temporaries=q.made_bytes, unit=2 * q.unit_bytes)

    @step.place("late", symbol="_2", when="there")
    def late(q):
        """on the way back"""
        return live(activations=0, unit=q.unit_bytes)

    registry.step = step
    return registry


def test_a_term_is_added_at_its_places(terms):
    """Must catch: a term that takes the place of what is usual or of what the place says; the
    `unit` of another place; a term that is there where the place is not; a term added twice."""

    @terms.step.term("early", "late")
    def copied(q):
        return live(activations=3 * q.made_bytes, gathered=q.copies * q.unit)

    @terms.step.term("late")
    def more(q):
        return live(gathered=q.made_bytes)

    terms.step.largest()
    for there in (0, 1):
        given = dict(kept_bytes=100, made_bytes=10, unit_bytes=1, copies=7, there=there)
        found = terms.evaluate(["live_at_early_bytes", "live_at_late_bytes"], **given)
        assert found == dict(
            live_at_early_bytes=10 + (100 + 3 * 10) + 7 * 2,
            live_at_late_bytes=there * (3 * 10 + (7 * 1 + 10)),
        )
    assert terms.formulas["gathered_at_early_bytes"].needs == ("copies", "unit_bytes")
    assert latex("gathered_at_late_bytes", terms) == r"H_2 = 1\,\left(n\,u + m\right)"


def test_terms_and_places_that_do_not_meet_are_refused(terms):
    """Must catch: a misspelt category that is left out of all sums; a term at a place that nobody
    declared."""
    with pytest.raises(KeyError, match="lat"):

        @terms.step.term("lat")
        def lost(q):
            return live(gathered=q.unit)

    with pytest.raises(TypeError, match="place early: unit is no category or name in a term"):
        terms.step.largest()
