"""The explorer of chapter "collectives": what an all-reduce costs."""

from coursekit.show.links import Divides
from coursekit.show.pictures import CurveAxis, Curves, Line
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import GIB, IN_A_NODE, KIB, MIB, powers_of_two, spread, steps_of_ten

COLLECTIVE_COST = Explorer(
    name="collective-cost",
    title="What does an all-reduce cost?",
    menus=(Menu("link", "Between nodes"), Menu("node_link", "Inside a node")),
    controls=(
        Control("message_bytes", "message", powers_of_two(KIB, 4 * GIB), "bytes"),
        Control("ranks", "ranks", powers_of_two(2, 4096)),
        Choice("ranks_per_node", "ranks on a node", ((1, "1"), (2, "2"), (4, "4"), (8, "8"))),
        Choice(
            "network_cards_per_node", "cards of a node", ((1, "1"), (2, "2"), (4, "4"), (8, "8"))
        ),
        Control(
            "latency_seconds",
            "latency between nodes",
            tuple(float(f"{digit}e{power}") for power in range(-6, -2) for digit in (1, 2, 5)),
            "short duration",
        ),
        Control(
            "link_bytes_per_second", "bandwidth between nodes", steps_of_ten(7, 12), "bandwidth"
        ),
    ),
    groups=(
        ControlGroup("What is summed", ("message_bytes", "ranks")),
        ControlGroup("Nodes", ("ranks_per_node", "network_cards_per_node")),
        ControlGroup("A network card", ("latency_seconds", "link_bytes_per_second"), folded=True),
    ),
    links=(Divides("ranks_per_node", "ranks", among=IN_A_NODE),),
    begin=dict(
        link="network, 400 Gbit/s",
        node_link="NVLink 4 (H100)",
        message_bytes=64 * MIB,
        ranks=32,
        ranks_per_node=8,
        network_cards_per_node=8,
        base_latency_seconds=0,
        carried_share=1,
    ),
    pictures=(
        Curves(
            title="Time of an all-reduce, by the size of its message",
            sweep="message_bytes",
            stops=spread(KIB, 4 * GIB, 45),
            x=CurveAxis(
                "message, logarithmic", "bytes", ticks=tuple(KIB * 32**k for k in range(5))
            ),
            y=CurveAxis("time, logarithmic", "short duration"),
            lines=(
                Line("nodes_ring_all_reduce_seconds", "ring"),
                Line("tree_all_reduce_seconds", "tree"),
                Line("naive_all_reduce_seconds", "naive"),
                Line(
                    "hierarchical_all_reduce_seconds",
                    "hierarchical",
                    unless=(("ranks_per_node", 1),),
                ),
            ),
            point="fastest_all_reduce_seconds",
            words="{fastest_all_reduce_seconds:short duration}",
            above=False,
            marks=(("nodes_crossover_bytes", "ring = tree: {nodes_crossover_bytes:bytes}"),),
        ),
    ),
    sentence=(
        Say("For {message_bytes:bytes} among {ranks:exact} ranks "),
        Say("a ring is fastest", when=(("fastest_all_reduce", 1),)),
        Say("a tree is fastest", when=(("fastest_all_reduce", 2),)),
        Say("a hierarchical all-reduce is fastest", when=(("fastest_all_reduce", 3),)),
        Say(
            ": {fastest_all_reduce_seconds:duration}, a bus bandwidth of"
            " {fastest_bus_bytes_per_second}. "
        ),
        Say(
            "A tree beats a ring below {nodes_crossover_bytes:bytes}.",
            unless=(("nodes_crossover_bytes", 0),),
        ),
        Say(
            "No message is so small that a tree would beat a ring.",
            when=(("nodes_crossover_bytes", 0),),
        ),
    ),
    detail=(
        Say(
            "Ring {nodes_ring_all_reduce_seconds:short duration}, tree"
            " {tree_all_reduce_seconds:short duration}, naive"
            " {naive_all_reduce_seconds:short duration}"
        ),
        Say(
            ", hierarchical {hierarchical_all_reduce_seconds:short duration}",
            unless=(("ranks_per_node", 1),),
        ),
        Say(
            ". Between nodes {latency_seconds:short duration} and {link_bytes_per_second} each way"
        ),
        Say(
            "; inside a node {node_latency_seconds:short duration} and {node_bytes_per_second}. All"
            " rings together have {ring_bytes_per_second}: the slower of the link inside a node and"
            " {network_cards_in_use:exact} network card{network_cards_in_use:s}. The tree"
            " and the naive way use one link each and ignore nodes; the parts of the hierarchical"
            " all-reduce come one after another, its upper bound",
            unless=(("ranks_per_node", 1),),
        ),
        Say("."),
    ),
    table=ExplorerTable(
        "64 MiB among 32 ranks, 8 on a node with NVLink 4, by the link between nodes",
        "link",
        (
            ("ring", "nodes_ring_all_reduce_seconds", "short duration"),
            ("tree", "tree_all_reduce_seconds", "short duration"),
            ("naive", "naive_all_reduce_seconds", "short duration"),
            ("hierarchical", "hierarchical_all_reduce_seconds", "short duration"),
            ("a tree beats a ring below", "nodes_crossover_bytes", "bytes"),
        ),
    ),
    adds=(("fastest_all_reduce_seconds", "the fastest all-reduce"),),
    outputs=(
        "fastest_all_reduce",
        "fastest_all_reduce_seconds",
        "fastest_bus_bytes_per_second",
        "nodes_crossover_bytes",
    ),
)
