"""Steps, times and bandwidths of the collectives against their plans, run on a clock that nobody
has to wait for."""

import math

import pytest
from solved import Given, value

from coursekit.formulas import ceil_log2, render
from shardlab import collective_plans as plans

MANY = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17)
LINK = dict(latency_seconds=3e-6, link_bytes_per_second=25e9)


def test_ceil_log2():
    """Mutation: bit_length of a instead of a - 1, which is one too many at every power of two;
    a float's log2."""
    for power in range(1, 33):
        assert [ceil_log2(2**power - 1), ceil_log2(2**power)] == [power if power > 1 else 0, power]
        assert power == 32 or ceil_log2(2**power + 1) == power + 1
    for wrong in (0, 2.0, 2**32 + 1):
        with pytest.raises(TypeError, match="must be a whole number from 1 to 2.32"):
            ceil_log2(wrong)
    assert (
        render.latex("tree_last_step")
        == r"q_\text{out} = \left\lceil \log_2 \left(N - r\right) \right\rceil"
    )
    assert "(32 - Math.clz32(a - 1))" in render.javascript(["tree_broadcast_steps"])


@pytest.mark.parametrize("n", MANY)
def test_steps(n):
    """Mutation: n for n - 1; log2 rounded down."""
    steps = Given(ranks=n)
    assert steps.ring_all_reduce_steps == len(plans.ring_all_reduce(n))
    assert steps.naive_all_reduce_steps == len(plans.naive_all_reduce(n))
    assert steps.tree_all_reduce_steps == len(plans.tree_all_reduce(n))
    for plan in (
        plans.ring_reduce_scatter,
        plans.ring_all_gather,
        plans.scatter,
        plans.gather,
        plans.all_to_all,
    ):
        assert steps.ring_pass_steps == len(plan(n))
    for plan in (plans.tree_broadcast, plans.tree_reduce, plans.barrier):
        assert steps.tree_broadcast_steps == len(plan(n))


def clock(plan, n, nbytes, latency_seconds, link_bytes_per_second):
    """Seconds until the last rank is done. A message leaves when both its ranks are done with their
    step before."""
    ready = [0.0] * n
    for moves in plan:
        done = list(ready)
        for move in moves:
            end = (
                max(ready[move.source], ready[move.target])
                + latency_seconds
                + nbytes / link_bytes_per_second
            )
            done[move.source], done[move.target] = (
                max(done[move.source], end),
                max(done[move.target], end),
            )
        ready = done
    return max(ready)


@pytest.mark.parametrize("nbytes", [0, 16 * 5040, 16 * 5040 * 17])
@pytest.mark.parametrize("n", MANY)
def test_seconds(n, nbytes):
    """Mutations: a latency more or less; the bytes of one way around the ring only; chunks in the
    tree."""
    found = Given(ranks=n, message_bytes=nbytes, **LINK)

    def same(seconds, plan, each):
        return math.isclose(seconds, clock(plan, n, each, **LINK), rel_tol=1e-12)

    assert same(found.ring_all_reduce_seconds, plans.ring_all_reduce(n), nbytes / n)
    for plan in (
        plans.ring_reduce_scatter,
        plans.ring_all_gather,
        plans.all_to_all,
        plans.scatter,
        plans.gather,
    ):
        assert same(found.ring_pass_seconds, plan(n), nbytes / n)
    assert same(found.tree_all_reduce_seconds, plans.tree_all_reduce(n), nbytes)
    for plan in (plans.tree_broadcast, plans.tree_reduce):
        assert same(found.tree_broadcast_seconds, plan(n), nbytes)
    assert same(found.naive_all_reduce_seconds, plans.naive_all_reduce(n), nbytes)
    assert found.message_seconds == clock([[plans.Move(0, 1, 0, "=")]], 2, nbytes, **LINK)


@pytest.mark.parametrize("n", [n for n in MANY if n > 1])
def test_bandwidths(n):
    """Mutation: 2n/(n - 1) for 2(n - 1)/n; the bytes of one rank's chunk for the whole array."""
    given = dict(ranks=n, message_bytes=10**9, latency_seconds=0, link_bytes_per_second=25e9)
    for seconds, bus in (
        ("ring_all_reduce_seconds", "all_reduce_bus_bytes_per_second"),
        ("ring_pass_seconds", "pass_bus_bytes_per_second"),
    ):
        took = value(seconds, **given)
        found = Given(collective_seconds=took, **given)
        assert math.isclose(found.algorithm_bytes_per_second, 10**9 / took)
        assert math.isclose(getattr(found, bus), 25e9)


@pytest.mark.parametrize("nodes, each", [(1, 4), (2, 1), (2, 2), (2, 8), (3, 4), (4, 2)])
def test_hierarchical(nodes, each):
    """Mutation: the whole array across nodes instead of the chunk; the bandwidths of the two links
    exchanged."""
    n, nbytes = nodes * each, 5040 * 16
    found = Given(
        ranks=n,
        ranks_per_node=each,
        node_latency_seconds=1e-6,
        node_bytes_per_second=400e9,
        message_bytes=nbytes,
        network_cards_per_node=1,
        **LINK,
    )
    assert found.nodes == nodes
    crossing = sum(
        nbytes / n
        for moves in plans.ring_all_reduce(n)
        for move in moves
        if (move.source + 1) == each == move.target
    )
    assert nodes == 1 or math.isclose(found.flat_link_share, crossing / nbytes)
    from_one = sum(
        nbytes / each / nodes
        for moves in plans.ring_all_reduce(nodes)
        for move in moves
        if move.source == 0
    )
    assert math.isclose(found.hierarchical_link_share, each * from_one / nbytes, abs_tol=1e-15)
    inside = dict(latency_seconds=1e-6, link_bytes_per_second=400e9)
    across = dict(latency_seconds=3e-6, link_bytes_per_second=25e9 / each)
    took = (
        clock(plans.ring_reduce_scatter(each), each, nbytes / each, **inside)
        + clock(plans.ring_all_reduce(nodes), nodes, nbytes / each / nodes, **across)
        + clock(plans.ring_all_gather(each), each, nbytes / each, **inside)
    )
    assert math.isclose(found.hierarchical_all_reduce_seconds, took, rel_tol=1e-12)


@pytest.mark.parametrize("n", MANY)
def test_the_fastest(n):
    """Mutations: the crossover without the factor n; `<` for `<=`, which has no winner in a tie;
    the naive one taken for a tree."""
    cross = Given(ranks=n, **LINK).ring_tree_crossover_bytes

    def found(nbytes, each=1):
        given = dict(ranks=n, ranks_per_node=each, message_bytes=nbytes, **LINK)
        given |= dict(node_latency_seconds=1e-6, node_bytes_per_second=400e9)
        took = Given(**given)
        assert took.naive_all_reduce_seconds >= took.tree_all_reduce_seconds
        seconds = {} if n == 1 else dict(collective_seconds=took.fastest_all_reduce_seconds)
        return Given(**seconds, **given)

    if n <= 3:
        assert cross == 0 and found(8).fastest_all_reduce == 1
        return
    at = found(round(cross))
    assert math.isclose(at.ring_all_reduce_seconds, at.tree_all_reduce_seconds, rel_tol=1e-4)
    for nbytes, which, name in (
        (round(cross / 2), 2, "tree_all_reduce_seconds"),
        (round(2 * cross), 1, "ring_all_reduce_seconds"),
    ):
        best = found(nbytes)
        assert best.fastest_all_reduce == which
        assert best.fastest_all_reduce_seconds == getattr(best, name)
        bus = best.all_reduce_bus_bytes_per_second
        assert math.isclose(best.fastest_bus_bytes_per_second, bus, rel_tol=1e-12)
    if n % 4 == 0 and n > 4:
        nodes = found(10**9, each=4)
        assert nodes.fastest_all_reduce == 3
        assert nodes.fastest_all_reduce_seconds == nodes.hierarchical_all_reduce_seconds
