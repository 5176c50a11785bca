"""Communication: what each rank sends in a collective, in how many steps, how long that takes, and
the bandwidth that reports quote. Bytes are exact for every rank and every size: where the ranks do
not divide the size, the first chunks have one element more. Times are those of chunks
of equal size on links that take a latency for each message and then its bytes one after the other,
both ways at once.

The plans behind them are in collective_plans.py.
"""

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import (
    ceil_div,
    ceil_log2,
    maximum,
    minimum,
    next_rank,
    ring_pass,
    shard_of,
    where,
)

BOOK.given_beside(__file__)

_OURS = "shardlab.collectives"
_RING = "Patarasuk and Yuan 2009"
_TREE = "Thakur, Rabenseifner and Gropp 2005"
_NCCL = "nccl-tests, doc/PERFORMANCE.md"
_SENT = "tests/collectives/test_collectives.py::test_counted_bytes_are_the_formulas"
_STEPS = "tests/collectives/test_collective_formulas.py::test_steps"
_SECONDS = "tests/collectives/test_collective_formulas.py::test_seconds"
_BANDWIDTH = "tests/collectives/test_collective_formulas.py::test_bandwidths"
_NODES = "tests/collectives/test_collective_formulas.py::test_hierarchical"
_RINGS = "tests/collectives/test_published_times.py::test_rings_of_nodes"
_PUBLISHED = "tests/collectives/test_published_times.py::test_published_rows"
_CORE = "NCCL, src/graph/tuning.cc at 5067397"
_FASTEST = "tests/collectives/test_collective_formulas.py::test_the_fastest"


class WhatIsCut(BOOK.section(source=_OURS, measured_by=_SENT)):
    @BOOK.own(source=_NCCL)
    def message_bytes(q):
        """S | bytes | bytes of the whole array: what each rank has before an all-reduce, or after
        an all-gather"""
        return q.message_element_bytes * q.message_elements

    @BOOK.own(source=_OURS)
    def chunk_bytes(q):
        """S_r | bytes | bytes of the chunk that belongs to the rank: where the ranks do not divide
        the elements, the first chunks have one element more"""
        return q.message_element_bytes * shard_of(q.message_elements, q.ranks, q.rank)

    @BOOK.own(source=_OURS)
    def right_rank(q):
        r"""r_\text{right} | count | the rank's neighbour, to which it sends around a ring: after
        the last rank comes rank 0"""
        return next_rank(q.ranks, q.rank)

    @BOOK.own(source=_OURS)
    def right_chunk_bytes(q):
        r"""S_\text{right} | bytes | bytes of the neighbour's chunk: the one chunk that a rank never
        sends in an all-gather"""
        return q.message_element_bytes * shard_of(q.message_elements, q.ranks, q.right_rank)

    # --- bytes that one rank sends ----------------------------------------------------------------
    @BOOK.own(source=_RING)
    def ring_reduce_scatter_sent_bytes(q):
        r"""Q_\text{rs} | bytes | bytes a rank sends in a ring reduce-scatter: every chunk but its
        own"""
        return q.message_bytes - q.chunk_bytes

    @BOOK.own(source=_RING)
    def ring_all_gather_sent_bytes(q):
        r"""Q_\text{ag} | bytes | bytes a rank sends in a ring all-gather: every chunk but its
        neighbour's"""
        return q.message_bytes - q.right_chunk_bytes

    @BOOK.own(source=_RING)
    def ring_all_reduce_sent_bytes(q):
        r"""Q_\text{ring} | bytes | bytes a rank sends in a ring all-reduce: for many ranks about
        twice the message, whatever the number of ranks"""
        return q.ring_reduce_scatter_sent_bytes + q.ring_all_gather_sent_bytes

    def naive_all_reduce_sent_bytes(q):
        r"""Q_\text{naive} | bytes | bytes a rank sends in a naive all-reduce: rank 0 sends the sum
        to everyone, so that rank 0's link carries the bytes for all ranks"""
        return where(q.rank < 1, (q.ranks - 1) * q.message_bytes, q.message_bytes)

    @BOOK.own(source=_TREE)
    def tree_arrival_step(q):
        r"""q_\text{in} | count | step of a tree broadcast from rank 0 in which the message reaches
        the rank; 0 for rank 0 itself"""
        return ceil_log2(q.rank + 1)

    @BOOK.own(source=_TREE)
    def tree_last_step(q):
        r"""q_\text{out} | count | last step of a tree broadcast from rank 0 in which the rank still
        has a rank to send to"""
        return ceil_log2(q.ranks - q.rank)

    @BOOK.own(source=_TREE)
    def tree_children(q):
        r"""n_\text{child} | count | ranks to which the rank sends in a tree broadcast from rank
        0"""
        return maximum(q.tree_last_step - q.tree_arrival_step, 0)

    @BOOK.own(source=_TREE)
    def tree_all_reduce_sent_bytes(q):
        r"""Q_\text{tree} | bytes | bytes a rank sends in a tree all-reduce: the whole message to
        each child and, unless it is rank 0, to its parent"""
        return where(
            q.rank < 1, q.tree_children * q.message_bytes, (q.tree_children + 1) * q.message_bytes
        )

    def all_to_all_sent_bytes(q):
        r"""Q_\text{a2a} | bytes | bytes a rank sends in an all-to-all: every chunk but its own"""
        return q.message_bytes - q.chunk_bytes


# --- steps: how often a latency is paid -----------------------------------------------------------
class Steps(BOOK.section(source=_RING, measured_by=_STEPS)):
    def ring_pass_steps(q):
        r"""q_\text{pass} | count | steps of a reduce-scatter or an all-gather around a ring, and of
        an all-to-all, a scatter or a gather"""
        return q.ranks - 1

    def ring_all_reduce_steps(q):
        r"""q_\text{ring} | count | steps of a ring all-reduce, which goes around twice"""
        return 2 * q.ring_pass_steps

    @BOOK.own(source=_OURS)
    def naive_all_reduce_steps(q):
        r"""q_\text{naive} | count | steps of a naive all-reduce: rank 0 talks to one rank at a
        time"""
        return 2 * (q.ranks - 1)

    @BOOK.own(source=_TREE)
    def tree_broadcast_steps(q):
        r"""q_\text{bcast} | count | steps of a tree broadcast, a tree reduce or a barrier: each
        step doubles the number of ranks reached"""
        return ceil_log2(q.ranks)

    @BOOK.own(source=_TREE)
    def tree_all_reduce_steps(q):
        r"""q_\text{tree} | count | steps of a tree all-reduce: up the tree, and down again"""
        return 2 * q.tree_broadcast_steps


class InSeconds(BOOK.section(source=_TREE, measured_by=_SECONDS)):
    def message_seconds(q):
        r"""\tau_\text{msg} | seconds | time of one message from rank to rank"""
        return q.latency_seconds + q.message_bytes / q.link_bytes_per_second

    @BOOK.own(source=_RING)
    def ring_pass_seconds(q):
        r"""\tau_\text{pass} | seconds | time of a reduce-scatter or an all-gather around a ring,
        and of an all-to-all, a scatter or a gather"""
        return ring_pass(q.ranks, q.latency_seconds, q.message_bytes / q.link_bytes_per_second)

    @BOOK.own(source=_RING)
    def ring_all_reduce_seconds(q):
        r"""\tau_\text{ring} | seconds | time of a ring all-reduce: latency grows with the ranks,
        the time for the bytes barely does"""
        return 2 * ring_pass(q.ranks, q.latency_seconds, q.message_bytes / q.link_bytes_per_second)

    def tree_all_reduce_seconds(q):
        r"""\tau_\text{tree} | seconds | time of a tree all-reduce: few latencies, but the whole
        message in every step"""
        return q.tree_all_reduce_steps * q.message_seconds

    def tree_broadcast_seconds(q):
        r"""\tau_\text{bcast} | seconds | time of a tree broadcast, or of a tree reduce"""
        return q.tree_broadcast_steps * q.message_seconds

    @BOOK.own(source=_OURS)
    def naive_all_reduce_seconds(q):
        r"""\tau_\text{naive} | seconds | time of a naive all-reduce"""
        return q.naive_all_reduce_steps * q.message_seconds


# --- bandwidth, as nccl-tests quote it ------------------------------------------------------------
class Bandwidth(BOOK.section(source=_NCCL, measured_by=_BANDWIDTH)):
    def algorithm_bytes_per_second(q):
        r"""B_\text{alg} | bytes/s | algorithm bandwidth: bytes of the whole array over the time the
        collective took"""
        return q.message_bytes / q.collective_seconds

    def all_reduce_bus_bytes_per_second(q):
        r"""B_\text{bus}^\text{ar} | bytes/s | bus bandwidth of an all-reduce: the rate that the
        slowest link must have carried, whatever the number of ranks"""
        return 2 * (q.ranks - 1) / q.ranks * q.algorithm_bytes_per_second

    def pass_bus_bytes_per_second(q):
        r"""B_\text{bus}^\text{rs} | bytes/s | bus bandwidth of a reduce-scatter, an all-gather or
        an all-to-all; for a broadcast or a reduce it equals the algorithm bandwidth"""
        return (q.ranks - 1) / q.ranks * q.algorithm_bytes_per_second


class Nodes(BOOK.section(source="definition", measured_by=_NODES)):
    def nodes(q):
        r"""n_\text{nodes} | count | nodes that the ranks fill"""
        return ceil_div(q.ranks, q.ranks_per_node)

    @BOOK.own(least=1, choice=True)
    def network_cards_per_node(q):
        r"""n_\text{cards} | count | network cards of a node: one for each rank unless it is
        given"""
        return q.ranks_per_node

    @BOOK.own(source="a rank drives one card", measured_by=_RINGS)
    def network_cards_in_use(q):
        r"""n_\text{used} | count | network cards of a node through which its ranks send"""
        return minimum(q.network_cards_per_node, q.ranks_per_node)

    @BOOK.own(source=_CORE, measured_by=_RINGS)
    def ring_network_steps(q):
        r"""q_\text{net} | count | steps of a ring all-reduce in which a chunk crosses from node to
        node, as NCCL counts them: in each round once for each node but one"""
        return 2 * (q.nodes - 1)

    @BOOK.own(source=_CORE, measured_by=_RINGS)
    def ring_node_steps(q):
        r"""q_\text{node} | count | steps of a ring all-reduce in which a chunk stays inside a
        node"""
        return 2 * (q.ranks - q.nodes)

    @BOOK.own(source=_CORE, measured_by=_RINGS)
    def ring_latency_seconds(q):
        r"""\alpha_\text{ring} | seconds | latency of a ring all-reduce through all ranks of all
        nodes"""
        return (
            q.base_latency_seconds
            + q.ring_node_steps * q.node_latency_seconds
            + q.ring_network_steps * q.latency_seconds
        )

    @BOOK.own(source=_CORE, measured_by=_RINGS)
    def ring_bytes_per_second(q):
        r"""B_\text{ring} | bytes/s | bandwidth of all rings that run at once, one through each
        card: the bandwidth of the link inside a node, or of all cards of a node together if the
        cards are slower"""
        return where(
            q.nodes < 2,
            q.node_bytes_per_second,
            where(
                q.ranks_per_node < 2,
                q.link_bytes_per_second,
                minimum(q.node_bytes_per_second, q.network_cards_in_use * q.link_bytes_per_second),
            ),
        )

    @BOOK.own(source=_CORE, measured_by=_PUBLISHED)
    def nodes_ring_all_reduce_seconds(q):
        r"""\tau_\text{rings} | seconds | time of an all-reduce around rings through all ranks of
        all nodes"""
        return q.ring_latency_seconds + 2 * (q.ranks - 1) / q.ranks * (
            q.message_bytes / (q.carried_share * q.ring_bytes_per_second)
        )

    @BOOK.own(source=_CORE, measured_by=_PUBLISHED)
    def two_trees_all_reduce_seconds(q):
        r"""\tau_\text{trees} | seconds | time of an all-reduce by two trees over nodes, up and
        down: each tree takes half of the array, with a chain inside each node"""
        return (
            q.base_latency_seconds
            + 2
            * (
                (q.ranks_per_node - 1) * q.node_latency_seconds
                + ceil_log2(q.nodes) * q.latency_seconds
            )
            + 2 * (q.message_bytes / (q.carried_share * q.ring_bytes_per_second))
        )

    @BOOK.own(source=_CORE, measured_by=_PUBLISHED)
    def in_switch_all_reduce_seconds(q):
        r"""\tau_\text{switch} | seconds | time of an all-reduce inside one node whose switches
        compute the sums (NVLS): a rank sends the array once, and one chunk more to hand its result
        out"""
        return q.switch_seconds + (q.ranks + 1) / q.ranks * (
            q.message_bytes / (q.switch_share * q.node_bytes_per_second)
        )

    @BOOK.own(source="Graham et al. 2020", measured_by=_PUBLISHED)
    def in_network_all_reduce_seconds(q):
        r"""\tau_\text{net} | seconds | time of an all-reduce between nodes whose network switches
        compute the sums (SHARP): a rank sends the array once, while the sum comes back"""
        return q.switch_seconds + q.message_bytes / (q.switch_share * q.link_bytes_per_second)

    @BOOK.own(source=_RING)
    def inside_nodes_seconds(q):
        r"""\tau_\text{in} | seconds | time of the first and the last part of a hierarchical
        all-reduce: a reduce-scatter and an all-gather in each node"""
        return 2 * ring_pass(
            q.ranks_per_node, q.node_latency_seconds, q.message_bytes / q.node_bytes_per_second
        )

    @BOOK.own(source=_RING)
    def across_nodes_seconds(q):
        r"""\tau_\text{across} | seconds | time of the middle part of a hierarchical all-reduce: the
        chunks of all ranks of a node are summed across nodes at once, through all cards of the
        node"""
        return 2 * ring_pass(
            q.nodes,
            q.latency_seconds,
            q.message_bytes / (q.network_cards_in_use * q.link_bytes_per_second),
        )

    @BOOK.own(source="sum of its three parts")
    def hierarchical_all_reduce_seconds(q):
        r"""\tau_\text{hier} | seconds | time of a hierarchical all-reduce whose parts come one
        after another: the upper bound"""
        return q.inside_nodes_seconds + q.across_nodes_seconds

    @BOOK.own(source="the longer of its parts")
    def hierarchical_all_reduce_at_least_seconds(q):
        r"""\tau_\text{least} | seconds | time of a hierarchical all-reduce whose parts overlap
        piece by piece: the lower bound"""
        return maximum(q.inside_nodes_seconds, q.across_nodes_seconds)

    @BOOK.own(source="definition", measured_by=_RINGS)
    def hierarchical_wire_bytes_per_second(q):
        r"""B_\text{card} | bytes/s | bandwidth of a network card that a quoted bus bandwidth
        implies, if the all-reduce was hierarchical and every rank has a card"""
        return q.bus_bytes_per_second * (q.nodes - 1) / (q.ranks - 1)

    @BOOK.own(source="definition", measured_by=_PUBLISHED)
    def switch_wire_bytes_per_second(q):
        r"""B_\text{sw} | bytes/s | bandwidth of a rank's link that a quoted bus bandwidth implies,
        if a switch computed the sums"""
        return q.bus_bytes_per_second * (q.ranks + 1) / (2 * (q.ranks - 1))

    def flat_link_share(q):
        r"""\rho_\text{flat} | fraction | bytes that a ring through all ranks sends over a node's
        link, each way, as a multiple of the message"""
        return 2 * (q.ranks - 1) / q.ranks

    def hierarchical_link_share(q):
        r"""\rho_\text{hier} | fraction | bytes that a hierarchical all-reduce sends over a node's
        link, each way, as a multiple of the message"""
        return 2 * (q.nodes - 1) / q.nodes


class WhichOne(BOOK.section(source="definition", measured_by=_FASTEST)):
    @BOOK.own(source="where both times are equal")
    def ring_tree_crossover_bytes(q):
        r"""S_\text{cross} | bytes, any number | message size at which a ring and a tree take
        equally long: the tree is faster below this size, the ring above"""
        return (
            q.latency_seconds
            * q.link_bytes_per_second
            * q.ranks
            * (q.ranks - (q.tree_broadcast_steps + 1))
            / maximum(q.ranks * (q.tree_broadcast_steps - 1) + 1, 1)
        )

    def ring_seconds_a_byte(q):
        r"""\sigma_\text{ring} | s/byte | seconds for each byte of an all-reduce around the rings of
        all nodes"""
        return 2 * (q.ranks - 1) / (q.ranks * q.carried_share * q.ring_bytes_per_second)

    def tree_seconds_a_byte(q):
        r"""\sigma_\text{tree} | s/byte | seconds for each byte of a tree all-reduce over one link
        for each rank"""
        return 2 * maximum(q.tree_broadcast_steps, 1) / q.link_bytes_per_second

    def tree_latency_seconds(q):
        r"""\alpha_\text{tree} | seconds | latency of a tree all-reduce"""
        return q.tree_all_reduce_steps * q.latency_seconds

    @BOOK.own(source="where both times are equal")
    def nodes_crossover_bytes(q):
        r"""S_\text{nodes} | bytes, any number | message size at which the rings of all nodes and a
        tree take equally long: the tree is faster below this size; 0 where the tree is never
        faster"""
        return maximum(q.ring_latency_seconds - q.tree_latency_seconds, 0) / (
            q.tree_seconds_a_byte - minimum(q.ring_seconds_a_byte, q.tree_seconds_a_byte / 2)
        )

    def fastest_all_reduce_seconds(q):
        r"""\tau_\text{best} | seconds | time of the fastest all-reduce; the naive all-reduce is
        never the fastest, since it has a tree's messages and at least as many steps"""
        return minimum(
            q.nodes_ring_all_reduce_seconds,
            q.tree_all_reduce_seconds,
            q.hierarchical_all_reduce_seconds,
        )

    def fastest_all_reduce(q):
        r"""i_\text{best} | count | the fastest all-reduce: 1 the ring, 2 the tree, 3 the
        hierarchical one; the first of equals"""
        return where(
            q.nodes_ring_all_reduce_seconds <= q.fastest_all_reduce_seconds,
            1,
            where(q.tree_all_reduce_seconds <= q.fastest_all_reduce_seconds, 2, 3),
        )

    @BOOK.own(source=_NCCL)
    def fastest_bus_bytes_per_second(q):
        r"""B_\text{bus}^\text{best} | bytes/s | bus bandwidth of the fastest all-reduce"""
        return 2 * (q.ranks - 1) / q.ranks * (q.message_bytes / q.fastest_all_reduce_seconds)
