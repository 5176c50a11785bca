"""Still pictures of chapter 11: a step with and without a read, and three published runs taken
apart, from the datasheet's rate to what was measured."""

from typing import NamedTuple

from coursekit.formulas.presets import GPUS
from coursekit.planner.runs_published import PUBLISHED_RUNS
from coursekit.show.drawing import Drawing

# --- one read -------------------------------------------------------------------------------------

LAUNCH_US, LONG_US, SHORT_US = 5, 30, 2
DRAWN_LONG, DRAWN_SHORT = 4, 12


class DrawnSpan(NamedTuple):
    """Something on a lane, from start to end, in microseconds."""

    lane: str
    kind: str
    start: float
    end: float


def queued(kernels, read_after=None):
    """Spans of the host and of the GPU: one launch for each kernel, and a wait after one of
    them."""
    host = gpu = 0
    spans = []
    for number, duration in enumerate(kernels, 1):
        spans.append(DrawnSpan("host", "launch", host, host + LAUNCH_US))
        host += LAUNCH_US
        start = max(host, gpu)
        kind = "long" if duration > LAUNCH_US else "short"
        spans.append(DrawnSpan("GPU", kind, start, start + duration))
        gpu = start + duration
        if number == read_after:
            spans.append(DrawnSpan("host", "wait", host, max(gpu, host + LAUNCH_US)))
            host = max(gpu, host + LAUNCH_US)
    return spans


def draw_one_read():
    drawing = Drawing("one-read", "The same step twice, without a read and with one")
    kernels = [LONG_US] * DRAWN_LONG + [SHORT_US] * DRAWN_SHORT
    found = [
        ("without a read", queued(kernels)),
        ("with one .item() before the update", queued(kernels, DRAWN_LONG)),
    ]
    ends = [max(span.end for span in spans) for _, spans in found]
    left, unit = 40, 358 / max(ends)
    looks = {"launch": "quiet", "wait": "idle", "long": "forward", "short": "weight-gradient"}
    sentences = []
    for number, ((title, spans), end) in enumerate(zip(found, ends)):
        top = 96 * number
        drawing.text(left, top + 13, f"{title}: {end} µs", "bold small")
        for lane, y in (("host", top + 22), ("GPU", top + 50)):
            drawing.text(0, y + 15, lane, "small")
            for span in (one for one in spans if one.lane == lane):
                wide = max((span.end - span.start) * unit - 1, 1)
                drawing.box(left + span.start * unit, y, wide, 20, looks[span.kind])
        wait = next((one for one in spans if one.kind == "wait"), None)
        if wait:
            middle = left + unit * (wait.start + wait.end) / 2
            drawing.text(middle, top + 37, "waits", "middle small")
        sentences.append(f"{title}, the step takes {end} microseconds")
    words = (
        f"Two programs with a lane of the host above a lane of the GPU. {DRAWN_LONG} kernels of"
        f" {LONG_US} microseconds and then {DRAWN_SHORT} of {SHORT_US}, each launched in"
        f" {LAUNCH_US}."
        f" {'; '.join(sentences)}: after the read each short kernel waits for its launch."
    )
    return drawing.svg(172, words)


# --- a waterfall ----------------------------------------------------------------------------------

LEAST_BAR = 0.005  # of a step: what rounds to 0 % has no bar
STEPS_DOWN = (  # words, look, parts of the step
    ("products, as measured", "forward pale", ("products",)),
    ("bytes moved, head, update", "weight-gradient", ("moving", "head", "update", "launching")),
    ("recomputed", "backward", ("recomputing",)),
    ("messages", "communication", ("messages", "passing", "exposed", "experts", "exchange")),
    ("bubble", "idle", ("bubble",)),
)


def waterfall(run):
    """(the least seconds of a step, [(words, look, seconds)] that add up to what is
    predicted, but for bars too small to see). Products lose what the best that anybody measured on
    this GPU loses; the rest of the fitted share is unexplained."""
    least = run.step["layout_utilisation"] * run.predicted_seconds
    rows = [
        (words, look, sum(run.parts[part] for part in parts)) for words, look, parts in STEPS_DOWN
    ]
    chip = GPUS[run.layout.gpu].quantities
    reached = chip["measured_flops_per_second"] / chip["flops_per_second"]
    words, look, products = rows[0]
    at_best = products * run.step["utilisation"] / reached
    rows[:1] = [(words, look, at_best - least), ("unexplained", "quiet", products - at_best)]
    return least, [row for row in rows if row[2] > LEAST_BAR * run.predicted_seconds]


def draw_budget():
    drawing, top, sentences = Drawing("step-budget", "Three published steps, taken apart"), 0, []
    left, wide = 172, 180
    for run in PUBLISHED_RUNS.values():
        least, rows = waterfall(run)
        longest = max(run.predicted_seconds, run.seconds)
        unit = wide / longest
        drawing.text(0, top + 14, f"{run.label}", "bold small")
        at, y, said = 0.0, top + 22, []
        bars = [("at the datasheet's rate", "forward", least), *rows]
        for words, look, seconds in bars:
            share = seconds / longest
            drawing.text(0, y + 12, words, "small")
            drawing.box(left + at * unit, y + 1, max(seconds * unit, 1), 13, look)
            drawing.text(left + (at + seconds) * unit + 4, y + 12, f"{share:.0%}", "small soft")
            at += seconds
            y += 17
            said.append(f"{words} {share:.0%}")
        drawing.text(0, y + 12, "measured", "bold small")
        drawing.box(left, y + 1, run.seconds * unit, 13, "quiet")
        mfu = least / run.seconds
        drawing.text(left + 5, y + 12, f"{run.seconds:.3g} s, MFU {mfu:.0%}", "bold small")
        sentences.append(f"{run.label}: {', '.join(said)}; measured {run.seconds:.3g} s, {mfu:.0%}")
        top = y + 32
    return drawing.svg(top - 12, "Three waterfalls of bars. " + ". ".join(sentences) + ".")


PICTURES = {"one-read": draw_one_read, "step-budget": draw_budget}
