"""Still pictures of chapter 16, out of recordings: the loss of ten ways to send less at equal
steps, and at equal seconds on three links; the loss of large batches."""

from statistics import fmean
from typing import NamedTuple

from coursekit.recordings.recordings import recording_of
from coursekit.show.drawing import PICTURE_WIDTH, Drawing
from coursekit.show.format import format_as
from coursekit.topics.sending_less.figures import (
    CHART_LINKS,
    recorded_chart,
    recorded_large,
    shortest_seconds,
)

_ROW, _TOP, _DOT, _GAP = 24, 44, 4, 10


class LossColumn(NamedTuple):
    """Losses of all seeds by row, under two lines of words."""

    head: str
    under: str
    losses: dict[str, list[float]]


def draw_losses(
    name, title, columns: list[LossColumn], names: dict[str, str], left, foot, words, over=("", "")
):
    """A row for each name, with the words beside it; a mark in each column goes from the least to
    the most of its losses, with a dot at their mean."""
    drawing = Drawing(name, title)
    wide, bottom = (PICTURE_WIDTH - left) / len(columns), _TOP + _ROW * len(names)
    for line, word in enumerate(over):
        drawing.text(left - 6, 16 + 18 * line, word, "small end")
    for row, (one, beside) in enumerate(names.items()):
        drawing.text(0, _TOP + _ROW * row + 17, one, "small")
        drawing.text(left - 6, _TOP + _ROW * row + 17, beside, "small end")
    for number, (head, under, losses) in enumerate(columns):
        begin, every = left + wide * number + _GAP, [x for one in losses.values() for x in one]
        low, high = int(5 * min(every)) / 5, int(5 * max(every) + 1) / 5
        scale = (wide - 2 * _GAP) / (high - low)
        x = lambda loss, begin=begin, low=low, scale=scale: begin + (loss - low) * scale
        drawing.text(begin - _GAP + wide / 2, 16, head, "small bold middle")
        drawing.text(begin - _GAP + wide / 2, 34, under, "small middle")
        for tick, anchor in ((low, ""), (high, " end")):  # apart from the next column's
            drawing.path(f"M{x(tick):.1f} {_TOP}V{bottom}", "grid")
            drawing.text(x(tick), bottom + 16, f"{tick:.1f}", f"small soft{anchor}")
        for row, one in enumerate(names):
            y, found = _TOP + _ROW * row + 12, losses[one]
            drawing.path(f"M{x(min(found)):.1f} {y}H{x(max(found)):.1f}", "line thick")
            drawing.dots([(x(fmean(found)), y)], _DOT, "accent")
    drawing.text(0, bottom + 36, foot, "small soft")
    said = [
        f"{head}, {under}: "
        + ", ".join(
            f"{one} {fmean(of):.2f} ({min(of):.2f} to {max(of):.2f})" for one, of in by.items()
        )
        for head, under, by in columns
    ]
    return drawing.svg(bottom + 42, f"{words} {'; '.join(said)}.")


def draw_loss_by_bytes():
    """A row for each way, by bytes: its loss after all steps."""
    chart = sorted(recorded_chart().values(), key=lambda way: -way.step_bytes)
    steps = max(chart[0].curves[0])
    column = LossColumn(
        "validation loss, nats", f"after {steps} steps", {way.name: way.ends for way in chart}
    )
    return draw_losses(
        "loss-by-bytes",
        f"The loss of {len(chart)} ways to send less after {steps} steps",
        [column],
        {way.name: f"{way.step_bytes:.2f}" for way in chart},
        156,
        recording_of("sending_less.sent").label,
        "Mean losses of three seeds, with the least and the most.",
        ("bytes per", "parameter"),
    )


def draw_loss_by_seconds():
    """A row for each way, a column for each link: losses once the fastest has made all steps."""
    ways = recorded_chart()
    chart = sorted(ways.values(), key=lambda way: -way.step_bytes)
    columns = []
    for link in CHART_LINKS:
        seconds = shortest_seconds(ways, link)
        losses = {way.name: way.after(seconds, link) for way in chart}
        columns.append(LossColumn(link.name, f"after {format_as(seconds, 'duration')}", losses))
    return draw_losses(
        "loss-by-seconds",
        "The loss of ten ways to send less after equal seconds, on three links",
        columns,
        {way.name: "" for way in chart},
        88,
        "seconds: GPT-2 on four H100s, by formula",
        "Mean losses of three seeds, with the least and the most.",
    )


def draw_large_batches():
    """A row for each way to train with a large batch, a column for each batch."""
    found, recording = recorded_large(), recording_of("sending_less.large")
    first = recording.find("sending_less.large")[0]
    names = list(next(iter(found.values())))
    return draw_losses(
        "large-batches",
        "The loss of larger batches after as many tokens",
        [LossColumn(f"batch {batch}", "windows", losses) for batch, losses in found.items()],
        dict.fromkeys(names, ""),
        150,
        f"{first.case['windows']:,} windows in all; {recording.label}",
        "Mean validation losses of three seeds, with the least and the most.",
    )


PICTURES = {
    "loss-by-bytes": draw_loss_by_bytes,
    "loss-by-seconds": draw_loss_by_seconds,
    "large-batches": draw_large_batches,
}
