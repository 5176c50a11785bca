"""The explorer of chapter "hardware": the roofline."""

from coursekit.show.pictures import CurveAxis, Curves, Line
from coursekit.show.spec import Choice, Control, ControlGroup, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two, steps_of_ten

MATRIX_SIZES = powers_of_two(1, 16_384)

ROOFLINE = Explorer(
    name="roofline",
    title="What bounds an operation: arithmetic or memory?",
    menus=(Menu("gpu", "GPU"), Menu("operation", "Operation")),
    controls=(
        Choice("matrix_product", "kind", ((0, "elementwise"), (1, "matrix product"))),
        Control("operation_rows", "rows", MATRIX_SIZES),
        Control("operation_columns", "columns", MATRIX_SIZES),
        Control(
            "operation_depth", "inner size (elementwise: operations per element)", MATRIX_SIZES
        ),
        Control("flops_per_second", "arithmetic", steps_of_ten(9, 16), "rate"),
        Control("memory_bytes_per_second", "memory", steps_of_ten(9, 13), "bandwidth"),
    ),
    groups=(
        ControlGroup(
            "Operation",
            ("matrix_product", "operation_rows", "operation_columns", "operation_depth"),
        ),
        ControlGroup("Chip", ("flops_per_second", "memory_bytes_per_second"), folded=True),
    ),
    begin=dict(gpu="H100 SXM 80GB", operation="square product", operation_element_bytes=2),
    pictures=(
        Curves(
            title="The roof over all operations",
            sweep="arithmetic_intensity",
            stops=(0.1, 10_000),
            corners=True,
            x=CurveAxis(
                "operations for each byte, logarithmic",
                "number",
                ticks=(0.1, 1, 10, 100, 1000, 10_000),
            ),
            y=CurveAxis("FLOP/s, logarithmic", "rate", unit="FLOP/s"),
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
            "That is above the ridge of this chip, {ridge_intensity:number}: the operation can run"
            " at the full {flops_per_second}, ",
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
            " {memory_bytes_per_second}. These are bounds: a real run is slower."
        ),
    ),
    table=ExplorerTable(
        "A product of two matrices of 4,096 × 4,096 numbers in 16 bits, by the datasheets of GPUs",
        "gpu",
        (
            ("arithmetic", "flops_per_second", "rate"),
            ("memory", "memory_bytes_per_second", "bandwidth"),
            ("ridge, operations for each byte", "ridge_intensity", "number"),
            ("the product takes at least", "operation_seconds", "short duration"),
        ),
    ),
    adds=(("operation_seconds", "the operation"),),
    outputs=(
        "arithmetic_intensity",
        "ridge_intensity",
        "attainable_flops_per_second",
        "operation_seconds",
    ),
)
