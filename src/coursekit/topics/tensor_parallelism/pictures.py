"""Still picture of the chapter on tensor parallelism: along a block, the activations of which a
rank keeps all and those of which it keeps a part, without and with sequence parallelism."""

from typing import NamedTuple

from coursekit.formulas import evaluate, quantities
from coursekit.show.drawing import Drawing

COUNTED_BLOCK = (
    dict(  # a layer of the chapter's model, with dropout and stored scores as the paper counts
        layers=1,
        hidden=6144,
        heads=64,
        key_value_heads=64,
        feed_forward=24_576,
        vocabulary=51_200,
        max_sequence=2048,
        learned_positions=1,
        biases=1,
        gated_mlp=0,
        tied_head=1,
        recipe="bf16 + fp32 master",
        microbatch=4,
        sequence=2048,
        dropout=0.1,
        fused_attention=0,
        tensor_rank=0,
    )
)
BLOCK_RANKS = 8


class CutWay(NamedTuple):
    """A way to cut the block: its name in two lines, what the formulas take, and the functions of
    pairs.py before columns and after rows."""

    name: tuple[str, str]
    given: dict
    before: str
    after: str


CUT_WAYS = (
    CutWay(("tensor", "parallel"), dict(sequence_parallel=0, regather=0), "enter", "leave"),
    CutWay(
        ("sequence", "parallel"), dict(sequence_parallel=1, regather=0), "gather", "reduce_scatter"
    ),
    CutWay(
        ("gathered", "again"),
        dict(sequence_parallel=1, regather=1),
        "gather, twice",
        "reduce_scatter",
    ),
)
BEFORE_COLUMNS, AFTER_ROWS = "before columns", "after rows"
BLOCK_ROWS = {  # what is kept, in the order of forward; where the pairs stand
    "attention": ("norm", BEFORE_COLUMNS, "qkv", "q, k, v", "scores", "output", AFTER_ROWS, "mask"),
    "MLP": ("mlp norm", BEFORE_COLUMNS, "up", "GELU", "down", AFTER_ROWS, "mlp mask"),
}
BLOCK_WORDS = {
    "norm": "into norm",
    "mlp norm": "into norm",
    "qkv": "into qkv",
    "output": "into output",
    "up": "into up",
    "GELU": "into GELU",
    "down": "into down",
    "mlp mask": "mask",
}


def kept_of_a_block(ranks=BLOCK_RANKS, **way):
    """Tensor -> the bytes that a rank keeps of it for backward, and the bytes of one sbh on one
    GPU. Statistics of the norms are left out."""
    names = (
        "tensor_norm_bytes",
        "tensor_own_tokens",
        "layer_norm_statistic_element_bytes",
        "tensor_input_bytes",
        "tensor_mask_bytes",
        "tensor_feed_forward",
        "query_key_value_bytes",
        "score_bytes",
        "score_dropout_bytes",
        "linear_input_bytes",
        "microbatch_tokens",
        "compute_element_bytes",
    )
    given = quantities(**COUNTED_BLOCK, tensor_parallel=ranks, **way)
    found = {**given, **evaluate(names, allow_unused=True, **given)}
    statistics = 2 * found["layer_norm_statistic_element_bytes"]
    norm = found["tensor_norm_bytes"] - statistics * found["tensor_own_tokens"]
    element, tokens = found["compute_element_bytes"], found["microbatch_tokens"]
    inner = element * tokens * found["tensor_feed_forward"]
    kept = {
        "norm": norm,
        "qkv": found["tensor_input_bytes"],
        "q, k, v": found["query_key_value_bytes"] // ranks,
        "scores": (found["score_bytes"] + found["score_dropout_bytes"]) // ranks,
        "output": found["linear_input_bytes"] // ranks,
        "mask": found["tensor_mask_bytes"],
        "mlp norm": norm,
        "up": found["tensor_input_bytes"],
        "GELU": inner,
        "down": inner,
        "mlp mask": found["tensor_mask_bytes"],
    }
    return kept, tokens * found["hidden"]


class KeptTensor(NamedTuple):
    """How a tensor lies on the ranks: "whole" on each, cut by "columns", or by "tokens", which is
    what sequence parallelism adds; on one GPU its sbh; what a rank keeps in words: "2", "2/t"."""

    cut: str
    sbh: float
    amount: str


def block_of(way):
    """Tensor -> KeptTensor; and the sum of what a rank keeps at BLOCK_RANKS, in sbh."""
    whole, sbh = kept_of_a_block(1, **way)
    plain, _ = kept_of_a_block(**CUT_WAYS[0].given)
    kept, _ = kept_of_a_block(**way)
    found = {}
    for tensor, nbytes in whole.items():
        cut = "columns" if plain[tensor] < nbytes else "tokens"
        if kept[tensor] == nbytes:
            cut = "whole"
        if tensor == "scores":  # their number of sbh differs from model to model
            of_scores = (
                sbh * COUNTED_BLOCK["heads"] * COUNTED_BLOCK["sequence"] / COUNTED_BLOCK["hidden"]
            )
            amount = f"{nbytes / of_scores:g}as/h" + "t" * (cut != "whole")
        else:
            amount = f"{nbytes / sbh:g}" + "/t" * (cut != "whole")
        found[tensor] = KeptTensor(cut, nbytes / sbh, amount)
    return found, sum(kept.values()) / sbh


def sum_of_a_block(found):
    """The bytes that a rank keeps of all tensors, in two lines: "10 + 24/t", "+ 5as/ht"."""
    sums = {"whole": 0, "cut": 0}
    for tensor, one in found.items():
        if tensor != "scores":
            sums["whole" if one.cut == "whole" else "cut"] += one.sbh
    terms = [f"{sums['whole']:g}"] * bool(sums["whole"]) + [f"{sums['cut']:g}/t"]
    return " + ".join(terms), f"+ {found['scores'].amount}"


def draw_block():
    drawing = Drawing("tensor-block", "What a rank keeps along a block: whole tensors and parts")
    starts, unit, high, pitch, most = (84, 190, 296), 7.5, 16, 22, 6
    columns = [(x, way, *block_of(way.given)) for x, way in zip(starts, CUT_WAYS)]
    outlines, fills, breaks, y = [], [], "", 40
    for x, way, _, _ in columns:
        for line, words in enumerate(way.name):
            drawing.text(x, 14 + 16 * line, words, "bold small")
    for part, rows in BLOCK_ROWS.items():
        drawing.path(f"M0 {y}H400", "grid")
        drawing.text(0, y + 18, part, "bold")
        y += 26
        for row in rows:
            if row not in (BEFORE_COLUMNS, AFTER_ROWS):
                drawing.text(0, y + 13, BLOCK_WORDS.get(row, row), "small")
            for x, way, found, _ in columns:
                if row in (BEFORE_COLUMNS, AFTER_ROWS):
                    drawing.box(x - 2, y, 102, high + 4, "line communication thick", 4)
                    name = way.before if row == BEFORE_COLUMNS else way.after
                    drawing.text(x + 49, y + 14, name, "middle small")
                    continue
                cut, sbh, amount = found[row]
                wide = unit * (most if row == "scores" else sbh)
                outlines.append((x, y, wide, high))
                across = wide / BLOCK_RANKS if cut == "columns" else wide
                down = high / BLOCK_RANKS if cut == "tokens" else high
                fills.append((x, y, across, down))
                if row == "scores":
                    breaks += f"M{x + 0.6 * wide:.1f} {y + high + 2}l6 -20h5l-6 20z"
                drawing.text(x + wide + 5, y + 13, amount, "small")
            y += pitch + 5 * (row in (BEFORE_COLUMNS, AFTER_ROWS))
        y += 6
    drawing.boxes(outlines, "frame dashed")
    drawing.boxes(fills, "activations")
    drawing.path(breaks, "blank")
    drawing.path(breaks.replace("h5", "m5 0").replace("z", ""))
    drawing.path(f"M0 {y}H400")
    drawing.text(0, y + 17, "together", "small bold")
    drawing.text(0, y + 52, f"at t = {BLOCK_RANKS}", "small")
    listed = []
    for x, way, found, number in columns:
        terms = sum_of_a_block(found)
        drawing.text(x, y + 17, terms[0], "small bold")
        drawing.text(x, y + 33, terms[1], "small bold")
        drawing.text(x, y + 52, f"{number:.3g} sbh", "small")
        pairs = {BEFORE_COLUMNS: f"({way.before})", AFTER_ROWS: f"({way.after})"}
        each = [
            pairs.get(row) or f"{BLOCK_WORDS.get(row, row)} {found[row].amount}"
            for rows in BLOCK_ROWS.values()
            for row in rows
        ]
        listed.append(
            f"{' '.join(way.name)}: {', '.join(each)}; together {' '.join(terms)}, which is"
            f" {number:.3g} at t = {BLOCK_RANKS}"
        )
    words = (
        "Three columns. From top to bottom, the tensors that a rank keeps of attention and of the"
        " MLP, in units of sbh bytes, and in brackets the functions that send. A box is a tensor,"
        f" filled as far as one of {BLOCK_RANKS} ranks keeps it: all of it, a part of the columns,"
        f" or a part of the tokens. {'. '.join(listed)}."
    )
    return drawing.svg(y + 60, words)


PICTURES = {"tensor-block": draw_block}
