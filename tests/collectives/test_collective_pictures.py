"""The pictures of collectives: two trees that complement each other, and a hierarchical all-reduce
whose bytes are the formula's."""

import re
from fractions import Fraction

import pytest

from coursekit.formulas import evaluate
from coursekit.topics.collectives import pictures


def words(svg):
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 10, 16])
def test_inner_ranks_of_one_tree_are_leaves_of_the_other(ranks):
    """Two trees are as the chapter says. A tree reaches all ranks from its root, and no rank has
    more than two below it.

    Must catch: one tree drawn twice; a rank that is its own parent."""
    inner = []
    for tree in (pictures.first_tree(ranks), pictures.second_tree(ranks)):
        assert sorted(tree) == list(range(ranks))
        assert list(tree.values()).count(None) == 1
        assert max(pictures.tree_depth(tree, rank) for rank in tree) <= ranks.bit_length()
        above = [parent for parent in tree.values() if parent is not None]
        assert max(above.count(rank) for rank in tree) <= 2
        inner.append(set(above))
    assert not inner[0] & inner[1]


def test_the_drawn_lines_are_the_trees():
    """Must catch: a line to a rank that is not the parent, or a line left out."""
    svg = pictures.draw_two_trees()
    assert svg.count('class="line communication thick"') == 2 * (pictures.TREE_RANKS - 1)
    labels = words(svg).split(" | ")
    assert all(labels.count(str(rank)) == 2 for rank in range(pictures.TREE_RANKS))
    assert "4 above 2 and 6" in svg and "3 above 1 and 5" in svg


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
    share = evaluate(
        ["hierarchical_link_share"],
        allow_unused=True,
        ranks=ranks,
        ranks_per_node=pictures.DRAWN_PLACES,
    )["hierarchical_link_share"]
    assert sent[1] * pictures.DRAWN_PLACES == share
    assert sent[0] == sent[2] == Fraction(pictures.DRAWN_PLACES - 1, pictures.DRAWN_PLACES)
    shown = words(pictures.draw_hierarchical())
    assert "a rank sends 3/4 S over NVLink" in shown and "1/4 S over the network" in shown
