"""The stepper of the labs: what a step's picture shows, plans of one's own, the slider. No
browser."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from coursekit.show.palette import MEMORY, TIMELINE
from coursekit.topics.collectives.stepper import step_picture, stepper
from coursekit.topics.collectives.steps import COLLECTIVES, label, stepper_steps
from shardlab import collective_plans as plans
from shardlab.collective_plans import Move

SVG = "{http://www.w3.org/2000/svg}"


def drawn(name, n, number):
    """(cells in rows, bars, words, moves) of a picture; a cell is (x, fill, line)."""
    root = ElementTree.fromstring(step_picture(name, n, number).svg())
    rects = root.findall(f"{SVG}rect")
    rows = {}
    for box in rects:
        if box.get("class") == "cell":
            rows.setdefault(box.get("y"), []).append(
                (float(box.get("x")), box.get("fill"), box.get("stroke"))
            )
    return (
        list(rows.values()),
        [box.get("fill") for box in rects if box.get("class") != "cell"],
        [text.text for text in root.findall(f"{SVG}text")],
        root.findall(f"{SVG}path[@class='move']"),
    )


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_picture_shows_what_is_held(name, n):
    """At every step: as many full, partial and empty cells as the step has, a bar for each part,
    those that came in another colour, a line for each move. Mutations: the picture before the step;
    bars of the receiver's own parts coloured as come; a move left out."""
    shown, steps = COLLECTIVES[name], stepper_steps(name, n)
    width = None
    for number, step in enumerate(steps):
        rows, bars, words, moves = drawn(name, n, number)
        held = [parts for chunks in step.picture for parts in chunks.values()]
        cells = [cell for row in rows for cell in row]
        assert len(rows) == n
        assert width in (None, len(rows[0]))
        assert {len(row) for row in rows} == {len(rows[0])}
        width = len(rows[0])
        if name != "all-to-all":  # of which below
            full = sum(len(parts) >= shown.need(n) for parts in held)
            assert sum(fill == MEMORY["gathered"].light for _, fill, _ in cells) == full
            assert sum(line == TIMELINE["communication"].line for _, _, line in cells) == len(
                step.moves
            )
        assert len(moves) == len(step.moves)
        if shown.sums:
            came = 0
            for move in step.moves:
                chunk = 0 if shown.hearsay else move.chunk
                came += len(
                    steps[number - 1].picture[move.source][chunk] & step.picture[move.target][chunk]
                )
            assert len(bars) == sum(map(len, held))
            assert bars.count(TIMELINE["communication"].light) == came
        else:
            assert not bars
        if shown.cut:
            assert {label(shown, n, chunk) for chunks in step.picture for chunk in chunks} <= set(
                words
            )


def test_an_exchange_shows_what_one_has_and_what_one_got():
    """Mutation: a chunk that arrived drawn in the column of the rank that it is for."""
    for number, step in enumerate(stepper_steps("all-to-all", 4)):
        rows, _, _, moves = drawn("all-to-all", 4, number)
        for rank, row in enumerate(rows):
            there = [fill != "none" for _, fill, _ in row]
            assert there == [True] * 4 + [
                4 * source + rank in step.picture[rank] for source in range(4)
            ]
            assert [line == TIMELINE["communication"].line for _, _, line in row].count(
                True
            ) == bool(moves)


def test_a_plan_of_ones_own():
    """Mutations: the book's plan drawn in its place; `now each has` said of a plan that does not
    get there; a wrong plan drawn."""

    def to_the_left(n):
        return [
            [Move(rank, (rank - 1) % n, (rank + step) % n, "+=") for rank in range(n)]
            for step in range(1, n)
        ]

    done = stepper("reduce-scatter", 4, plan=to_the_left).steps[-1]
    assert done.sentence.endswith("Now each rank has its chunk of the sum.")
    assert done.moves != plans.ring_reduce_scatter(4)[-1]
    short = stepper("reduce-scatter", 4, plan=lambda n: [*to_the_left(n)[:-1], []]).steps
    assert short[-1].sentence == "Step 3 of 3: nobody sends."
    assert "0 of 4 chunks are complete" in short[-1].detail
    assert (
        "Now"
        not in stepper("reduce-scatter", 4, plan=lambda n: to_the_left(n)[:-1]).steps[-1].sentence
    )
    with pytest.raises(ValueError, match="step 2, .*: rank 1 has the part of rank 0 already."):
        stepper("reduce-scatter", 4, plan=lambda n: plans.ring_reduce_scatter(n)[:1] * 2)
    with pytest.raises(
        ValueError,
        match=re.escape(
            "step 1, Move(source=0, target=4, chunk=0, operator='='): there are ranks 0 to 3."
        ),
    ):
        stepper("scatter", 4, plan=lambda n: [[Move(0, n, 0, "=")]])
