"""The explorers of what machines can do: the roofline of chapter 2, and of chapter 4 what an
all-reduce costs."""

from types import MappingProxyType

from .pictures import Axis, Curves, Line
from .spec import Choice, Control, Explorer, Group, Menu, Say, Table
from .stops import powers_of_two, spread, steps_of_ten

# --- chapter 2: the roofline ----------------------------------------------------------------------

SIZES = powers_of_two(1, 16_384)

ROOFLINE = Explorer(
    name="roofline",
    title="What bounds an operation: arithmetic or memory?",
    menus=(Menu("gpu", "GPU"), Menu("operation", "Operation")),
    controls=(
        Choice("matrix_product", "kind", ((0, "elementwise"), (1, "matrix product"))),
        Control("operation_rows", "rows m", SIZES),
        Control("operation_columns", "columns n", SIZES),
        Control("operation_depth", "inner size k; elementwise: operations on each element", SIZES),
        Control("flops_per_second", "arithmetic", steps_of_ten(9, 16), "rate"),
        Control("memory_bytes_per_second", "memory", steps_of_ten(9, 13), "bandwidth"),
    ),
    groups=(
        Group(
            "Operation",
            ("matrix_product", "operation_rows", "operation_columns", "operation_depth"),
        ),
        Group("Chip", ("flops_per_second", "memory_bytes_per_second"), folded=True),
    ),
    links=(),
    begin=MappingProxyType(
        dict(gpu="H100 SXM 80GB", operation="square product", operation_element_bytes=2)
    ),
    pictures=(
        Curves(
            title="The roof over all operations",
            sweep="arithmetic_intensity",
            stops=(0.1, 10_000),
            corners=True,
            x=Axis(
                "operations for each byte, logarithmic",
                "number",
                ticks=(0.1, 1, 10, 100, 1000, 10_000),
            ),
            y=Axis("FLOP/s, logarithmic", "rate", unit="FLOP/s"),
            lines=(Line("attainable_flops_per_second", "{flops_per_second}"),),
            note=(0.4, "{memory_bytes_per_second}"),
            point="attainable_flops_per_second",
            words="{operation_seconds:short duration}",
            marks=(("ridge_intensity", "ridge: {ridge_intensity:number}"),),
        ),
    ),
    sentence=(
        Say(
            "A product of {operation_rows:exact} × {operation_depth:exact} by"
            " {operation_depth:exact} × {operation_columns:exact} numbers",
            when=(("matrix_product", 1),),
        ),
        Say(
            "Work on {operation_rows:exact} × {operation_columns:exact} numbers,"
            " {operation_depth:exact} operation{operation_depth:s} on each,",
            when=(("matrix_product", 0),),
        ),
        Say(
            " does {arithmetic_intensity:number} operation{arithmetic_intensity:s} for each byte it"
            " moves. "
        ),
        Say(
            "This chip is bound by arithmetic from {ridge_intensity:number} on: it can run at its"
            " full {flops_per_second}, ",
            when=(("bound_by_memory", 0),),
        ),
        Say(
            "Below {ridge_intensity:number} this chip waits for memory: at best it does"
            " {attainable_flops_per_second}, {attainable_share} of its arithmetic, ",
            when=(("bound_by_memory", 1),),
        ),
        Say("in {operation_seconds:duration}."),
    ),
    detail=(
        Say(
            "{operation_flops:count} operations; {operation_bytes} that move once each,"
            " {operation_element_bytes:exact} bytes for each number; a memory of"
            " {memory_bytes_per_second}. What runs is slower: these are bounds."
        ),
    ),
    table=Table(
        "A product of two matrices of 4,096 × 4,096 numbers in 16 bits, by the datasheets of GPUs",
        "gpu",
        (
            ("arithmetic", "flops_per_second", "rate"),
            ("memory", "memory_bytes_per_second", "bandwidth"),
            ("ridge, operations for each byte", "ridge_intensity", "number"),
            ("the product takes at least", "operation_seconds", "short duration"),
        ),
    ),
    outputs=(
        "arithmetic_intensity",
        "ridge_intensity",
        "attainable_flops_per_second",
        "operation_seconds",
    ),
)

# --- chapter 4: what an all-reduce costs ----------------------------------------------------------

KIB, GIB = 1024, 1024**3

COLLECTIVE_COST = Explorer(
    name="collective-cost",
    title="What does an all-reduce cost?",
    menus=(Menu("link", "Link between nodes"), Menu("node_link", "Link inside a node")),
    controls=(
        Control("message_bytes", "message", powers_of_two(KIB, 4 * GIB), "bytes"),
        Control("ranks", "ranks", powers_of_two(2, 4096)),
        Choice("ranks_per_node", "ranks on a node", ((1, "1"), (2, "2"), (4, "4"), (8, "8"))),
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
    links=(),
    begin=MappingProxyType(
        dict(
            link="network, 400 Gbit/s",
            node_link="NVLink 4 (H100)",
            message_bytes=64 * 1024**2,
            ranks=32,
            ranks_per_node=8,
        )
    ),
    pictures=(
        Curves(
            title="Time of an all-reduce, by the size of its message",
            sweep="message_bytes",
            stops=spread(KIB, 4 * GIB, 45),
            x=Axis("message, logarithmic", "bytes", ticks=tuple(KIB * 32**k for k in range(5))),
            y=Axis("time, logarithmic", "short duration"),
            lines=(
                Line("ring_all_reduce_seconds", "ring"),
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
            marks=(
                ("ring_tree_crossover_bytes", "ring = tree: {ring_tree_crossover_bytes:bytes}"),
            ),
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
            "A tree beats a ring below {ring_tree_crossover_bytes:bytes}.",
            unless=(("ring_tree_crossover_bytes", 0),),
        ),
        Say(
            "No message is so small that a tree would beat a ring.",
            when=(("ring_tree_crossover_bytes", 0),),
        ),
    ),
    detail=(
        Say(
            "Ring {ring_all_reduce_seconds:short duration}, tree {tree_all_reduce_seconds:short"
            " duration}, naive {naive_all_reduce_seconds:short duration}"
        ),
        Say(
            ", hierarchical {hierarchical_all_reduce_seconds:short duration}",
            unless=(("ranks_per_node", 1),),
        ),
        Say(
            ". Between nodes {latency_seconds:short duration} and {link_bytes_per_second} each way"
        ),
        Say(
            "; inside a node {node_latency_seconds:short duration} and {node_bytes_per_second},"
            " which only the hierarchical one makes use of",
            unless=(("ranks_per_node", 1),),
        ),
        Say("."),
    ),
    table=Table(
        "64 MiB among 32 ranks, 8 on a node with NVLink 4, by the link between nodes",
        "link",
        (
            ("ring", "ring_all_reduce_seconds", "short duration"),
            ("tree", "tree_all_reduce_seconds", "short duration"),
            ("naive", "naive_all_reduce_seconds", "short duration"),
            ("hierarchical", "hierarchical_all_reduce_seconds", "short duration"),
            ("a tree beats a ring below", "ring_tree_crossover_bytes", "bytes"),
        ),
    ),
    outputs=(
        "fastest_all_reduce",
        "fastest_all_reduce_seconds",
        "fastest_bus_bytes_per_second",
        "ring_tree_crossover_bytes",
    ),
)
