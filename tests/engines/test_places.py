"""Places as data: the sums, the largest, where it is and what it is made of."""

import pytest

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


@pytest.mark.parametrize(
    ("kept", "made", "scratch", "there", "expected"),
    [
        (10, 3, 1, 1, [12, 1, 0, 10]),
        (1, 5, 1, 1, [11, 2, 5, 0]),
        (1, 5, 1, 0, [3, 1, 0, 1]),  # the place is not there
        (5, 2, 1, 1, [7, 1, 0, 5]),
        (3, 2, 1, 1, [5, 1, 0, 3]),  # equal: the first
    ],
)
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
    assert early.categories() == dict(
        activations="kept_bytes", temporaries="temporaries_at_early_bytes"
    )
    assert (early.phase, early.total) == ("forward", "live_at_early_bytes")
    assert late.categories() == dict(
        gradients="made_bytes", temporaries="temporaries_at_late_bytes"
    )
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
    assert (
        "([live_at_early_bytes, live_at_late_bytes]"
        ".indexOf(Math.max(live_at_early_bytes, live_at_late_bytes)) + 1)"
    ) in code
    assert "[0, made_bytes][top_place - 1]" in code


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
    with pytest.raises(TypeError, match="place one|formula one"):
        step.place("one", symbol="_1")(named["one"])
