"""Still pictures of the page "GPT-2 from slow to fast": the memory ladder by the formulas, and the
ladder of tokens per second as it was recorded on a GPU."""

from coursekit.formulas.presets import GPUS
from coursekit.recordings.recordings import recording_of
from coursekit.show.drawing import PICTURE_WIDTH, Drawing
from coursekit.show.format import decimal_bytes, format_as
from coursekit.topics.slow_to_fast.rungs import LADDER_STEP, climb

_CARD_BYTES = GPUS["H100 SXM 80GB"].quantities["gpu_memory_bytes"]
_LEFT, _RIGHT, _PITCH, _TALL = 104, PICTURE_WIDTH - 4, 48, 22
_RATE, _SHARE, _PEAK = (f"one_gpu.{name}" for name in ("tokens_per_second", "mfu", "peak"))


def draw_memory_ladder():
    rungs = climb(LADDER_STEP)
    unit = (_RIGHT - _LEFT) / rungs[0].nbytes
    drawing = Drawing("memory-ladder", "GPT-2 1.5B on six rungs: what one GPU holds at its peak")
    before = rungs[0].nbytes
    for number, rung in enumerate(rungs):
        y = 24 + _PITCH * number
        drawing.text(0, y + 15, rung.name, "small bold")
        x = drawing.bar(_LEFT, y, _TALL, [(k, b * unit) for k, b in rung.categories.items()])
        if rung.nbytes < before:
            drawing.box(x, y, (before - rung.nbytes) * unit, _TALL, "frame dashed")
        said = f"{decimal_bytes(rung.nbytes)}, {_at(rung.place)}"
        drawing.text(_LEFT, y + _TALL + 14, said, "small")
        before = rung.nbytes
    card, bottom = _LEFT + _CARD_BYTES * unit, 24 + _PITCH * len(rungs)
    drawing.path(f"M{card:.1f} 18V{bottom - 6}", "line dashed")
    drawing.text(card, 13, f"card, {decimal_bytes(_CARD_BYTES)}", "middle small")
    each = "; ".join(
        f"{rung.name}, {decimal_bytes(rung.nbytes)}, {_at(rung.place)}: {_parts(rung.categories)}"
        for rung in rungs
    )
    words = (
        "A bar for each rung, one below the other, each made of the bytes at the peak by category,"
        f" with what the rung has freed as a dashed frame behind it. {each}. A line marks the"
        f" {decimal_bytes(_CARD_BYTES)} of a card, which only the first bar crosses."
    )
    return drawing.svg(bottom, words)


def _at(place):
    return f"in {place}" if place == "the update" else f"at {place}"


def _parts(categories):
    return ", ".join(
        f"{category} {decimal_bytes(nbytes)}" for category, nbytes in categories.items() if nbytes
    )


def recorded_rungs():
    """The newest recording of the ladder of one GPU, and for each rung (name, tokens/s, share of
    the datasheet's rate, bytes at the peak). Raises LookupError where there is none."""
    recording = recording_of(_RATE)
    return recording, [
        (row.case["rung"], row.value, *(_same(recording, name, row) for name in (_SHARE, _PEAK)))
        for row in recording.find(_RATE)
    ]


def _same(recording, name, row):
    """The value of that name on the row's rung."""
    return recording.find(name, rung=row.case["rung"])[0].value


def _in_lines(name):
    """The rung's name in two lines, where it has a comma there, or is too long for one."""
    if "," in name:
        return name.replace(", ", ",\n").split("\n")
    return name.split(" ", 1) if len(name) > 14 else [name]


def draw_speed_ladder():
    recording, rungs = recorded_rungs()
    unit = _RIGHT - _LEFT - 88
    drawing = Drawing("speed-ladder", "GPT-2 124M on one GPU: tokens per second, rung by rung")
    drawing.text(_LEFT, 13, "share of the datasheet's rate", "small")
    drawing.text(_RIGHT, 13, "tokens/s, peak", "end small")
    before, pitch = 0, 40
    for number, (name, rate, share, nbytes) in enumerate(rungs):
        y, lost = 24 + pitch * number, max(before - share, 0)
        for line, words in enumerate(_in_lines(name)):
            drawing.text(0, y + 11 + 15 * line, words, "small bold")
        kept = min(before, share)
        drawing.box(_LEFT, y, kept * unit, _TALL, "forward pale")
        drawing.box(_LEFT + kept * unit, y, (share - kept) * unit, _TALL, "forward")
        if lost:
            drawing.box(_LEFT + share * unit, y, lost * unit, _TALL, "frame dashed")
        x = _LEFT + max(share, before) * unit + 6
        drawing.text(x, y + 16, format_as(share, "percent"), "small")
        drawing.text(_RIGHT, y + 11, format_as(rate, "count"), "end small bold")
        drawing.text(_RIGHT, y + 26, decimal_bytes(nbytes), "end small")
        before = share
    bottom = 24 + pitch * len(rungs)
    drawing.path(f"M{_LEFT + unit} 20V{bottom}", "line dashed")
    drawing.text(0, bottom + 14, "GPT-2 124M, 16 × 1,024 tokens in a step,", "small soft")
    drawing.text(0, bottom + 30, recording.label, "small soft")
    each = "; ".join(
        f"{name}, {format_as(rate, 'count')} tokens per second, {format_as(share, 'percent')},"
        f" {decimal_bytes(nbytes)} at the peak"
        for name, rate, share, nbytes in rungs
    )
    words = (
        f"A bar for each rung, {recording.label}, as long as its share of the datasheet's bf16"
        " rate, which a dashed line marks. What the rung has gained is solid, what it has lost a"
        f" dashed frame. {each}."
    )
    return drawing.svg(bottom + 36, words)


PICTURES = {"memory-ladder": draw_memory_ladder, "speed-ladder": draw_speed_ladder}
