"""The explorers of chapter 13: a chain of operations, and attention in tiles."""

from coursekit.show.pictures import CurveAxis, Curves, Line
from coursekit.show.spec import Choice, Control, Explorer, ExplorerTable, Menu, Say
from coursekit.show.stops import powers_of_two

ROWS_OF_A_CHAIN = powers_of_two(1, 2**20)  # of 1,024 elements
FUSION = Explorer(
    name="fusion",
    title="What does fusing save: bytes or launches?",
    menus=(Menu("chain_kind", "Chain"), Menu("gpu", "GPU")),
    controls=(
        Control("operation_rows", "rows of 1,024 elements", ROWS_OF_A_CHAIN),
        Control("operation_depth", "operations", (*range(1, 17), 20, 24, 32)),
        Control("chain_operands", "operands that are read besides", (*range(9), 12, 16)),
        Choice("operation_element_bytes", "bytes of an element", ((2, "2"), (4, "4"))),
    ),
    begin=dict(
        chain_kind="relu(x + b) · 0.5 + x",
        gpu="H100 SXM 80GB",
        operation_rows=2**14,
        operation_columns=1024,
        operation_element_bytes=4,
        launch_seconds=5e-6,
    ),
    pictures=(
        Curves(
            title="Time by the size of the tensor",
            sweep="operation_rows",
            stops=ROWS_OF_A_CHAIN,
            x=CurveAxis(
                "rows of 1,024 elements, logarithmic",
                "count",
                ticks=(1, 2**5, 2**10, 2**15, 2**20),
            ),
            y=CurveAxis("time, logarithmic", "short duration"),
            lines=(
                Line("chain_seconds", "a kernel each"),
                Line("fused_chain_seconds", "one kernel"),
            ),
            point="chain_seconds",
            words="{chain_seconds:short duration}",
        ),
    ),
    sentence=(
        Say(
            "{operation_depth:exact} operation{operation_depth:s} on {kernel_elements:count}"
            " elements move {chain_tensors:exact} tensors, {chain_bytes}, and take"
            " {chain_seconds:short duration}. One kernel moves 2, {fused_chain_bytes}, and takes"
            " {fused_chain_seconds:short duration}: {fused_times_faster:number} times faster."
        ),
    ),
    detail=(
        Say(
            "{fused_share:percent} of the bytes are left. A launch takes"
            " {launch_seconds:short duration}. These are bounds: its launches, or its bytes at"
            " {memory_bytes_per_second}, whichever take longer. A cache may keep small tensors on"
            " the chip."
        ),
    ),
    table=ExplorerTable(
        "Chains of 16 million elements in fp32 on an H100",
        "chain_kind",
        (
            ("tensors moved", "chain_tensors", "exact"),
            ("bytes, MB", "chain_bytes", "MB"),
            ("takes", "chain_seconds", "short duration"),
            ("fused", "fused_chain_seconds", "short duration"),
        ),
    ),
    adds=(("chain_bytes", "bytes of the chain"),),
    why=(
        "chain_tensors",
        "chain_bytes",
        "fused_chain_bytes",
        "chain_seconds",
        "fused_chain_seconds",
    ),
    outputs=("chain_bytes", "fused_chain_bytes", "chain_seconds", "fused_chain_seconds"),
)

ROWS_OF_A_TILE = powers_of_two(16, 256)
SHARED = tuple((kib * 1024, f"{kib}") for kib in (64, 99, 163, 227))
ATTENTION_TILES = Explorer(
    name="attention-tiles",
    title="How many bytes does attention move, by its tile?",
    menus=(Menu("attention_kind", "Attention"), Menu("gpu", "GPU")),
    controls=(
        Control("tile_rows", "rows of a tile", ROWS_OF_A_TILE),
        Control("head_size", "columns of a head (0: hidden / heads)", (0, 16, 32, 64, 128, 256)),
        Control("sequence", "tokens", powers_of_two(128, 1_048_576)),
        Choice("causal", "sees", ((0, "all tokens"), (1, "earlier ones"))),
        Choice("operation_element_bytes", "bytes of an element", ((2, "2"), (4, "4"))),
        Choice("shared_memory_bytes", "KiB on the chip for a program", SHARED),
    ),
    begin=dict(
        attention_kind="GPT-2 124M, 1,024 tokens",
        gpu="H100 SXM 80GB",
        tile_rows=64,
        tile_columns=64,
        causal=0,
        microbatch=1,
        operation_element_bytes=2,
        shared_memory_bytes=227 * 1024,
    ),
    pictures=(
        Curves(
            title="Bytes by the rows of a tile",
            sweep="tile_rows",
            stops=ROWS_OF_A_TILE,
            x=CurveAxis("rows of a tile, logarithmic", "exact", ticks=ROWS_OF_A_TILE),
            y=CurveAxis("bytes moved, logarithmic", "decimal bytes"),
            lines=(
                Line("scores_moved_bytes", "scores stored"),
                Line("attention_moved_bytes", "in tiles"),
            ),
            point="attention_moved_bytes",
            words="{attention_moved_bytes}",
        ),
    ),
    sentence=(
        Say(
            "In tiles of {tile_rows:exact} rows attention moves {attention_moved_bytes}; with"
            " scores in memory, {stored_scores_bytes} of them, it moves {scores_moved_bytes}. "
        ),
        Say(
            "A tile takes {tile_bytes:KiB} of {shared_memory_bytes:KiB} on the chip.",
            when=(("tile_fits", 1),),
        ),
        Say(
            "A tile takes {tile_bytes:KiB}, which {shared_memory_bytes:KiB} do not hold.",
            when=(("tile_fits", 0),),
        ),
    ),
    detail=(
        Say(
            "At least {attention_kernel_seconds:short duration} in tiles:"
            " {attention_tile_flops:count} operations at {flops_per_second}, or the bytes at"
            " {memory_bytes_per_second}. The bytes of stored scores take"
            " {stored_scores_seconds:short duration}. Keys come in tiles of {tile_columns:exact};"
            " stored scores are there for all pairs of tokens."
        ),
    ),
    table=ExplorerTable(
        "Tiles of 64 rows, 2 bytes an element, one sequence, all tokens seen",
        "attention_kind",
        (
            ("scores stored, GB", "scores_moved_bytes", "GB"),
            ("in tiles, GB", "attention_moved_bytes", "GB"),
            ("a tile, KiB", "tile_bytes", "KiB"),
        ),
    ),
    adds=(
        ("attention_moved_bytes", "in tiles"),
        ("attention_read_bytes", "read"),
        ("attention_written_bytes", "written"),
    ),
    why=(
        "row_tiles",
        "attention_read_bytes",
        "attention_written_bytes",
        "stored_scores_bytes",
        "scores_moved_bytes",
        "tile_bytes",
        "attention_kernel_seconds",
    ),
    outputs=("attention_moved_bytes", "scores_moved_bytes", "tile_bytes"),
)
