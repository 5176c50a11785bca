"""The pictures of collectives: two trees that complement each other, and a hierarchical all-reduce
whose bytes are the formula's."""

import math
from fractions import Fraction

import pytest
from pages import words
from solved import Given

from coursekit.topics.collectives import pictures
from coursekit.topics.collectives.figures import message_figure, race_figure


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 10, 16])
def test_inner_ranks_of_one_tree_are_leaves_of_the_other(ranks):
    """Must catch: one tree drawn twice; a rank that is its own parent, or has three below it."""
    inner = []
    for tree in (pictures.first_tree(ranks), pictures.second_tree(ranks)):
        assert sorted(tree) == list(range(ranks))
        assert list(tree.values()).count(None) == 1
        assert max(pictures.tree_depth(tree, rank) for rank in tree) <= ranks.bit_length()
        above = [parent for parent in tree.values() if parent is not None]
        assert max(above.count(rank) for rank in tree) <= 2
        inner.append(set(above))
    assert not inner[0] & inner[1]


def test_each_card_sends_in_one_of_the_rings_and_receives_in_another():
    """Must catch: two rings that leave a node by the same card; a ring that misses a rank, or that
    crosses the border more than twice."""
    world = range(pictures.DRAWN_NODES * pictures.DRAWN_PLACES)
    rings = pictures.rings_through_nodes(pictures.DRAWN_PLACES)
    assert all(sorted(ring) == [*world] for ring in rings)
    crossings = [pictures.border_crossings(ring) for ring in rings]
    assert all(len(hops) == 2 for hops in crossings)
    for side in (0, 1):
        assert sorted(hop[side] for hops in crossings for hop in hops) == [*world]
    letters = words(pictures.draw_many_rings()).split(" | ")
    assert all(letters.count(letter) == 2 for letter in "ABCD")


def test_a_hierarchical_all_reduce_ends_with_all_sums():
    """Must catch: an all-reduce across nodes among ranks with different places."""
    states, _ = pictures.hierarchical_states()
    world = set(range(pictures.DRAWN_NODES * pictures.DRAWN_PLACES))
    assert all(chunk == world for rank in states[-1] for chunk in rank)
    for rank, chunks in enumerate(states[1]):
        node = rank // pictures.DRAWN_PLACES
        mine = {other for other in world if other // pictures.DRAWN_PLACES == node}
        assert [chunk for chunk in chunks if chunk] == [mine]


def test_what_crosses_a_nodes_border_is_the_formulas():
    """Must catch: 3/4 S over the network, the share of the flat ring's chunk."""
    _, sent = pictures.hierarchical_states()
    ranks = pictures.DRAWN_NODES * pictures.DRAWN_PLACES
    share = Given(ranks=ranks, ranks_per_node=pictures.DRAWN_PLACES).hierarchical_link_share
    assert sent[1] * pictures.DRAWN_PLACES == share
    assert sent[0] == sent[2] == Fraction(pictures.DRAWN_PLACES - 1, pictures.DRAWN_PLACES)
    shown = words(pictures.draw_hierarchical())
    assert "a rank sends 3/4 S over NVLink" in shown and "1/4 S over the network" in shown


SIZES, SECONDS = [4, 1_000, 1_000_000], [1e-4, 1.1e-4, 1.2e-3]


def test_messages_and_their_line():
    """Mutations: the line without its latency; the crossing at latency / bandwidth; a linear axis,
    which shows the largest only."""
    figure = message_figure("Messages", SIZES, SECONDS, 1e-4, 1e9)
    line, discs = figure.data
    assert list(discs.x) == SIZES and list(discs.y) == SECONDS
    assert line.y[0] == pytest.approx(1e-4, rel=1e-3)
    assert line.y[-1] == pytest.approx(1.1e-3, rel=1e-3)
    assert figure.layout.shapes[0].x0 == pytest.approx(1e5)
    assert "100 kB: latency = bytes" in figure.layout.annotations[0].text
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert math.log10(min(SECONDS)) > figure.layout.yaxis.range[0]
    assert "100 µs" in figure.layout.yaxis.ticktext and "1 ms" in figure.layout.yaxis.ticktext
    assert message_figure("Messages", SIZES, SECONDS, 1e-4, 1e9).to_json() == figure.to_json()
    # the crossing lies outside
    assert not message_figure("Messages", SIZES, SECONDS, 1.0, 1e9).layout.shapes
    with pytest.raises(ValueError, match="all must be above 0"):
        message_figure("Messages", [0, 4], [1.0, 1.0], 0.1, 1e9)


def test_a_race():
    """Mutations: bars that do not begin at zero; predicted and measured exchanged; the unit of one
    row for all."""
    figure = race_figure(
        "All-reduce", [("ring", 0.12, 0.13), ("tree", None, 0.32), ("hierarchical", 0.08, None)]
    )
    found = {bar.name: bar.x[0] for bar in figure.data}
    assert found == {
        "ring, predicted": 120,
        "ring, measured": 130,
        "tree, measured": 320,
        "hierarchical, predicted": 80,
    }
    assert figure.layout.xaxis.range[0] == 0 and figure.layout.xaxis.title.text == "milliseconds"
    assert figure.layout.yaxis.ticktext[0] == "ring<br>130 ms, predicted 120 ms"
    assert (
        race_figure("All-reduce", [("ring", None, 2e-5)]).layout.xaxis.title.text == "microseconds"
    )
    with pytest.raises(ValueError, match="a race has at least one row"):
        race_figure("All-reduce", [])
