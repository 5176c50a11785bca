"""Still pictures of the chapter "Which layout?": the bar of a rank after each move, in rows of one
card; three published runs beside their predictions; and the tree of questions."""

from coursekit.planner.runs_published import PUBLISHED_RUNS
from coursekit.planner.speeds import SECONDS_BY_LOOK
from coursekit.show.drawing import Drawing
from coursekit.show.format import decimal_bytes as said
from coursekit.topics.which_layout.moves import MOVES
from coursekit.topics.which_layout.referee_pictures import draw_bytes_errors, draw_seconds_errors
from coursekit.topics.which_layout.tree import DONE, QUESTIONS

BAR_LEFT, CARD_WIDE = 1, 398  # a row is one card
ROW_HIGH, ROW_PITCH = 9, 11
KEY_COLUMN = 136


def draw_bars(name, title, moves):
    """A block for each move: its name and bytes, the rows, and the bytes of each kind."""
    drawing, top, sentences = Drawing(name, title), 0, []
    for label in moves:
        held = MOVES[label]
        card = held.values["gpu_memory_bytes"]
        cards = held.peak_bytes / card
        drawing.text(BAR_LEFT, top + 14, label, "bold")
        total = (
            f"{said(held.peak_bytes)}, {cards:.1f} cards" if cards > 1 else said(held.peak_bytes)
        )
        drawing.text(BAR_LEFT + CARD_WIDE, top + 14, total, "bold end")
        top = _rows(drawing, held, card, top + 22)
        top = _key(drawing, held, top) + 12
        kinds = ", ".join(f"{kind} {said(nbytes)}" for kind, nbytes in _seen(held))
        sentences.append(f"{label}: {total}, a line at {said(held.room_bytes)}, made of {kinds}")
    return drawing.svg(
        top - 8,
        f"A bar of the fullest rank for each layout, wrapped into rows of one card of"
        f" {said(card)}; a dashed line at what tensors may take. {'; '.join(sentences)}.",
    )


def _seen(held):
    """The kinds that are seen in the picture."""
    return [(kind, nbytes) for kind, nbytes in held.kinds.items() if nbytes > 5e8]


def _rows(drawing, held, card, top):
    rows = -(-held.peak_bytes // card)
    start = 0
    for kind, nbytes in held.kinds.items():
        places, end = [], start + nbytes
        while start < end:
            row = int(start // card)
            until = min(end, (row + 1) * card)
            wide = CARD_WIDE * (until - start) / card
            x = BAR_LEFT + CARD_WIDE * (start - row * card) / card
            if wide > 0.05:
                places.append((x, top + ROW_PITCH * row, wide, ROW_HIGH))
            start = until
        if places:
            drawing.boxes(places, kind)
    drawing.boxes(
        [(BAR_LEFT, top + ROW_PITCH * row, CARD_WIDE, ROW_HIGH) for row in range(rows)], "frame"
    )
    line = BAR_LEFT + CARD_WIDE * held.room_bytes / card
    bottom = top + ROW_PITCH * rows - ROW_PITCH + ROW_HIGH
    drawing.path(f"M{line:.1f} {top - 3}V{bottom + 3}", "line dashed")
    return bottom


def _key(drawing, held, top):
    """The kinds with their bytes, three in a line; the place below them."""
    seen = _seen(held)
    labels = [(kind, f"{kind} {said(nbytes)}") for kind, nbytes in seen]
    drawing.legend(BAR_LEFT, top + 7, labels, KEY_COLUMN, 3)
    return top + 17 + 18 * ((len(seen) - 1) // 3)


# --- published runs -------------------------------------------------------------------------------


def draw_runs():
    drawing, top, sentences = Drawing("layout-runs", "Published runs beside predictions"), 0, []
    drawing.legend(BAR_LEFT, 3, [(look, label) for look, (label, _) in SECONDS_BY_LOOK.items()])
    top = 30
    longest = max(max(run.predicted_seconds / run.seconds, 1) for run in PUBLISHED_RUNS.values())
    for run in PUBLISHED_RUNS.values():
        unit = CARD_WIDE / longest / run.seconds
        drawing.text(BAR_LEFT, top + 12, run.label, "bold small")
        drawing.text(
            BAR_LEFT + CARD_WIDE, top + 12, f"{run.error:+.1%}".replace("-", "−"), "bold small end"
        )
        seconds = {
            look: sum(run.parts[name] for name in parts)
            for look, (_, parts) in SECONDS_BY_LOOK.items()
        }
        drawing.bar(BAR_LEFT, top + 18, 16, [(look, unit * s) for look, s in seconds.items()])
        drawing.box(BAR_LEFT, top + 38, unit * run.seconds, 8, "quiet")
        words = f"predicted {run.predicted_seconds:.3g} s, published {run.seconds:.3g} s"
        drawing.text(BAR_LEFT, top + 61, words, "small soft")
        sentences.append(f"{run.label}: {words}")
        top += 76
    return drawing.svg(
        top - 8,
        "For each run the predicted step, in parts, above the published one, as long as all"
        f" published ones. {'; '.join(sentences)}.",
    )


# --- the tree -------------------------------------------------------------------------------------


def draw_tree():
    drawing, top, words = Drawing("layout-tree", "Which technique next?"), 1, []
    for question in QUESTIONS:
        drawing.box(BAR_LEFT, top, CARD_WIDE, 26, "quiet", corner=4)
        drawing.text(BAR_LEFT + 8, top + 18, question.asks, "bold small")
        drawing.text(BAR_LEFT + CARD_WIDE - 8, top + 18, question.formula, "small soft end")
        y = top + 44
        drawing.text(BAR_LEFT + 48, y, "no", "small")
        for condition, _, technique in question.techniques:
            drawing.text(BAR_LEFT + 160, y, f"{condition}:" if condition else "", "small soft end")
            drawing.text(BAR_LEFT + 166, y, technique, "small")
            y += 18
        drawing.arrow(BAR_LEFT + 16, top + 26, BAR_LEFT + 16, y + 2)
        drawing.text(BAR_LEFT + 22, y - 10, "yes", "small")
        lines = "; ".join(f"{one}: {what}" if one else what for one, _, what in question.techniques)
        words.append(f"{question.asks} ({question.formula}) If not, {lines}.")
        top = y + 2
    drawing.box(BAR_LEFT, top, CARD_WIDE, 26, "accent pale", corner=4)
    drawing.text(BAR_LEFT + 8, top + 18, DONE, "bold small")
    return drawing.svg(top + 27, f"Questions in order. {' '.join(words)} If all is well: {DONE}.")


def _bars(name, title, *moves):
    return lambda: draw_bars(name, title, moves)


PICTURES = {
    "layout-first-and-last": _bars(
        "layout-first-and-last",
        "Before the first move and after the last",
        "64 copies",
        "t = 4, stage 3",
    ),
    "layout-fp32": _bars(
        "layout-fp32", "One GPU, in fp32 and in bf16", "in fp32, on one GPU", "in bf16"
    ),
    "layout-shards": _bars(
        "layout-shards", "Stages of ZeRO on 64 GPUs", "stage 1", "stage 2", "stage 3"
    ),
    "layout-again": _bars("layout-again", "Each layer recomputed", "each layer again"),
    "layout-tensor": _bars("layout-tensor", "Four tensor-parallel ranks", "t = 4, stage 3"),
    "layout-pipeline": _bars("layout-pipeline", "Two pipeline ranks", "t = 8, p = 2, stage 1"),
    "layout-runs": draw_runs,
    "layout-tree": draw_tree,
    "referee-bytes": draw_bytes_errors,
    "referee-seconds": draw_seconds_errors,
}
