"""The bar that closes each chapter: one model on GPUs of one kind, and what the fullest rank holds
after the moves of the chapters so far."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from coursekit.formulas import BOOK, MODELS, evaluate, quantities
from coursekit.planner.layout import RankLayout
from coursekit.show.drawing import Drawing
from coursekit.show.format import decimal_bytes as said

# Four microbatches of one sequence on a rank: gradients live from one to the next.
ONE_GPU = RankLayout(
    "Llama 3 8B",
    dict(MODELS["Llama 3 8B"].quantities),
    "H100 SXM 80GB",
    gpus=1,
    sequence=8192,
    zero_stage=0,
    accumulation_steps=4,
    recipe="fp32 Adam",
    kernels="PyTorch eager",
)
COPIES = replace(ONE_GPU, gpus=8)
SHARDED = replace(COPIES, zero_stage=3)
SPLIT = replace(SHARDED, tensor_parallel=2)
STAGED = replace(SPLIT, pipeline_parallel=2, zero_stage=1, accumulation_steps=16)
FEWER_BITS = replace(SPLIT, recipe="bf16 + fp32 master")
INPUTS_ONLY = replace(FEWER_BITS, recompute_policy=3)
FUSED = replace(INPUTS_ONLY, kernels="Megatron-LM, fused loss")
SHARED_SEQUENCE = replace(FUSED, tensor_parallel=1, context_parallel=8, sequence=131_072)


class ChapterMove(NamedTuple):
    """A chapter: its page, the words beside its bar, and the layout after it; None where the bar
    has model states alone."""

    page: str
    words: str
    layout: RankLayout | None


CHAPTER_MOVES = (
    ChapterMove("why-one-gpu", "model states, fp32", None),
    ChapterMove("hardware", "the card", None),
    ChapterMove("where-the-memory-goes", "with activations", ONE_GPU),
    ChapterMove("collectives", "eight cards, linked", ONE_GPU),
    ChapterMove("data-parallelism", "a copy on each", COPIES),
    ChapterMove("zero", "ZeRO, stage 3", SHARDED),
    ChapterMove("tensor-parallelism", "t = 2, stage 3", SPLIT),
    ChapterMove("pipelines", "p = 2, t = 2, stage 1", STAGED),
    ChapterMove("mixed-precision", "t = 2, stage 3, bf16", FEWER_BITS),
    ChapterMove("activation-checkpointing", "and recomputed", INPUTS_ONLY),
    ChapterMove("where-the-time-goes", "the same, timed", INPUTS_ONLY),
    ChapterMove("feeding-the-gpu", "the same, fed", INPUTS_ONLY),
    ChapterMove("kernels", "a fused loss", FUSED),
    ChapterMove("long-sequences", "131,072 tokens, c = 8", SHARED_SEQUENCE),
    ChapterMove("mixture-of-experts", "8,192, no experts", FUSED),
    ChapterMove("sending-less", "nothing is saved", FUSED),
)
BAR_PARTS = {  # look of a part -> its words, its quantities, its quantity among model states
    "parameters": ("parameters", ("rank_parameter_bytes",), "parameter_bytes"),
    "gradients": ("gradients", ("gradients_at_rank_peak_bytes",), "gradient_bytes"),
    "optimizer": ("optimizer", ("optimizer_at_rank_peak_bytes",), "optimizer_bytes"),
    "activations": ("activations", ("activations_at_rank_peak_bytes",), ""),
    "temporaries": (
        "temporaries",
        ("temporaries_at_rank_peak_bytes", "gathered_at_rank_peak_bytes", "rank_workspace_bytes"),
        "",
    ),
}


def bytes_of_bar(move):
    """Bytes of each of BAR_PARTS on the fullest rank, at its fullest."""
    if move.layout is None:
        given = quantities(model=ONE_GPU.model, recipe=ONE_GPU.recipe)
        named = {look: state for look, (_, _, state) in BAR_PARTS.items() if state}
        found = evaluate(list(named.values()), allow_unused=True, **given)
        return {look: found[named[look]] if look in named else 0 for look in BAR_PARTS}
    names = [name for _, parts, _ in BAR_PARTS.values() for name in parts]
    ranks = (
        BOOK.solve(names, {**move.layout.given, "pipeline_rank": rank}, allow_unused=True)
        for rank in range(move.layout.pipeline_parallel)
    )
    kept = (
        {look: sum(found[name] for name in parts) for look, (_, parts, _) in BAR_PARTS.items()}
        for found in ranks
    )
    return max(kept, key=lambda found: sum(found.values()))


def draw(page):
    """The bars of all chapters up to this one."""
    place = [move.page for move in CHAPTER_MOVES].index(page)
    rows = [(move, bytes_of_bar(move)) for move in CHAPTER_MOVES[: place + 1]]
    card = quantities(gpu=ONE_GPU.gpu)["gpu_memory_bytes"]
    drawing = Drawing(f"stand-{page}", f"{ONE_GPU.model}: what a GPU holds, chapter by chapter")
    left, pitch, top = 140, 22, 62
    unit = 204 / max(
        sum(bytes_of_bar(move).values()) for move in CHAPTER_MOVES
    )  # beyond it there is room for a sum
    drawing.legend(left, 3, [(look, words) for look, (words, *_) in BAR_PARTS.items()], 90, 3)
    edge, bottom = left + card * unit, top + pitch * len(rows) + 2
    drawing.path(f"M{edge:.1f} 44V{bottom}", "line dashed")
    drawing.text(edge + 5, 54, f"a card of {said(card)}", "small soft")
    for number, (move, parts) in enumerate(rows):
        y, newest = top + pitch * number, number == place
        drawing.text(0, y + 13, move.words, "bold small" if newest else "small soft")
        shade = "" if newest else " pale"
        at = drawing.bar(left, y, 16, [(f"{k}{shade}", b * unit) for k, b in parts.items()])
        beyond = edge if at < edge < at + 60 else at
        total = said(sum(parts.values()))
        drawing.text(beyond + 5, y + 13, total, "bold small" if newest else "small soft")
    each = "; ".join(
        f"{move.words}, {said(sum(parts.values()))} ("
        + ", ".join(
            f"{BAR_PARTS[look][0]} {said(nbytes)}" for look, nbytes in parts.items() if nbytes
        )
        + ")"
        for move, parts in rows
    )
    words = (
        f"A bar for each chapter so far, the newest in full colour: what the fullest GPU holds of"
        f" {ONE_GPU.model}, against a line at the {said(card)} of a card. {each}."
    )
    return drawing.svg(bottom + 2, words)


STANDS = {f"stand-{move.page}": partial(draw, move.page) for move in CHAPTER_MOVES}
