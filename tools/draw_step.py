"""Draw chapters/figures/step-timeline.svg: the live bytes of one training step, as the byte ledger
counts them.

    .venv/bin/python tools/draw_step.py

The step is the one chapter 3 speaks of: 4 layers of width 256, vocabulary 50,257, two sequences of
256 tokens, fp32 with Adam, a tied head, fused attention; not the first step, so the optimizer has
its states. It runs on fake tensors, which count as real ones do. Colours are the page's variables,
so the figure follows the light and the dark page.
"""

from html import escape
from pathlib import Path

import torch

from coursekit.show.format import format_bytes
from ranklab.measure.ledger import Ledger
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss

FIGURE = Path(__file__).resolve().parents[1] / "chapters" / "figures" / "step-timeline.svg"
CONFIG = GPTConfig(layers=4, hidden=256, heads=4, vocabulary=50_257, max_sequence=256)
MICROBATCH = 2
STACK = ("parameters", "optimizer", "gradients", "activations", "temporaries")  # from the bottom up
# of the picture, and where its plot lies
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 276, 36, 439, 24, 248
GRID_MIB, MOST_MIB = 100, 540
DARK, LIGHT = "#14171a", "#ffffff"  # words on a fill, the same on both pages


def measure_step():
    """The ledger's lines of the step, to the end of the optimizer's."""
    with FakeTensorMode():
        model = GPT(CONFIG)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        def train():
            tokens = torch.zeros(MICROBATCH, CONFIG.max_sequence, dtype=torch.long)
            loss = next_token_loss(model(tokens), torch.zeros_like(tokens))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        train()
        with Ledger(model, optimizer) as ledger:
            train()
    last = max(k for k, line in enumerate(ledger.timeline) if line.phase == "optimizer")
    return ledger.timeline[: last + 1]


def draw(timeline):
    """The figure as SVG. Each category is an area from zero up to its upper edge, drawn behind
    those that lie below it."""
    count, totals = len(timeline), [line.bytes.total for line in timeline]
    x = lambda line: LEFT + line * (RIGHT - LEFT) / count
    y = lambda size: BOTTOM - size / (MOST_MIB * 2**20) * (BOTTOM - TOP)
    at = totals.index(max(totals))
    peak = timeline[at].bytes
    starts = {
        name: next(k for k, line in enumerate(timeline) if line.phase == name)
        for name in ("backward", "optimizer")
    }
    middle = dict(
        forward=x(starts["backward"] / 2),
        backward=x((starts["backward"] + starts["optimizer"]) / 2),
        optimizer=x((starts["optimizer"] + count) / 2),
    )

    areas = []
    for top in range(len(STACK), 0, -1):
        edge = [y(sum(getattr(line.bytes, name) for name in STACK[:top])) for line in timeline]
        areas.append(
            f'<path d="{_steps(x, edge)}" style="fill: var(--memory-{STACK[top - 1]}); '
            f'stroke: var(--memory-{STACK[top - 1]}-line)"/>'
        )
    grid = [
        f'<path d="M{LEFT} {y(size * 2**20):.1f}H{RIGHT}"/>'
        for size in range(GRID_MIB, MOST_MIB, GRID_MIB)
    ]
    ticks = [
        _text(LEFT - 6, y(size * 2**20) + 4.5, str(size), "end")
        for size in range(0, MOST_MIB, GRID_MIB)
    ]
    phases = [_text(middle[name], TOP - 8, name, "middle") for name in middle]
    rules = [f'<path d="M{x(k):.1f} {TOP}V{BOTTOM}"/>' for k in starts.values()]
    inside = x(starts["optimizer"]) + 12
    words = [
        _text(
            inside,
            y(_middle(timeline, starts["optimizer"] + 60, name)) + 5,
            f"{label} {format_bytes(getattr(peak, name))}",
            colour=LIGHT if name == "parameters" else DARK,
        )
        for name, label in (("parameters", "parameters"), ("optimizer", "optimizer states"))
    ]
    words.append(
        _text(
            inside,
            y(_middle(timeline, count - 10, "gradients")) + 5,
            f"gradients {format_bytes(timeline[-1].bytes.gradients)}",
            colour=DARK,
        )
    )
    ramp, slope = starts["backward"] * 8 // 10, (starts["backward"] + 2 * starts["optimizer"]) // 3
    right = x(at) + 12
    beside = y(totals[at]) + 80  # below what is said of the peak
    spike = next(k for k in range(at) if totals[k] > 1.2 * totals[0])
    words += [
        _text(x(spike) - 4, beside - 8, "activations", "end"),
        _text(x(slope), beside, "temporaries", "middle"),
    ]
    leads = [
        f'<path d="M{x(line):.1f} {start:.1f}V{y(_middle(timeline, line, name)):.1f}"/>'
        for line, name, start in (
            (ramp, "activations", beside - 3),
            (slope, "temporaries", beside + 5),
        )
    ]
    leads.append(f'<path d="M{x(at) + 3:.1f} {y(totals[at]) + 4:.1f}H{right - 3:.1f}"/>')
    said = [
        _text(right, y(totals[at]) + 9, f"peak {format_bytes(totals[at])}", weight=600),
        _text(right, y(totals[at]) + 26, f"activations {format_bytes(peak.activations)}"),
        _text(right, y(totals[at]) + 42, f"temporaries {format_bytes(peak.temporaries)}"),
        _text(
            right,
            y(totals[at]) + 58,
            "no gradients" if not peak.gradients else f"gradients {format_bytes(peak.gradients)}",
        ),
    ]
    title = "The bytes of a training step, operation by operation"
    text = (
        "A stack of five areas over the operations of a step. Parameters,"
        f" {format_bytes(peak.parameters)}, and optimizer states, {format_bytes(peak.optimizer)},"
        " lie level below. Activations rise through forward and fall through backward. At the"
        f" start of backward, in {timeline[at].operation.lstrip('_')}, temporaries of"
        f" {format_bytes(peak.temporaries)} stand on all activations: the peak,"
        f" {format_bytes(totals[at])}, without any gradient. Gradients grow through backward to"
        f" {format_bytes(timeline[-1].bytes.gradients)} and stay until the optimizer is done."
    )
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
                f' width="{WIDTH}" role="img"'
                ' aria-labelledby="step-timeline-title step-timeline-text" style="display: block;'
                ' width: 100%; max-width: 40rem; height: auto; margin: 0 auto"'
                ' font-family="inherit" font-size="13" fill="currentColor">'
            ),
            f'  <title id="step-timeline-title">{escape(title)}</title>',
            f'  <desc id="step-timeline-text">{escape(text)}</desc>',
            _group('fill="none" style="stroke: var(--line)"', grid),
            _group('stroke-width="0.75"', areas),
            _group('fill="none" stroke="currentColor" stroke-dasharray="2 3"', rules),
            _group(
                'fill="none" stroke="currentColor"',
                [*leads, f'<path d="M{LEFT} {BOTTOM}H{RIGHT}"/>'],
            ),
            _group('font-size="12"', [*ticks, _text(2, TOP - 8, "MiB")]),
            _group('font-weight="600"', phases),
            _group("", words),
            _group(
                'paint-order="stroke" stroke-width="4" stroke-linejoin="round" style="stroke:'
                ' var(--page)"',
                said,
            ),
            _group(
                'font-size="12"',
                [
                    _text(
                        (LEFT + RIGHT) / 2,
                        BOTTOM + 19,
                        "operations, in the order in which they ran",
                        "middle",
                    )
                ],
            ),
            "</svg>",
            "",
        ]
    )


def _steps(x, edge, least=0.4):
    """An area of steps under the edge, as a path; steps of less than `least` pixels are left out,
    unless they would add up."""
    path, height = [f"M{x(0):.1f} {BOTTOM}V{edge[0]:.1f}"], edge[0]
    for line, now in enumerate(edge):
        if abs(now - height) >= least:
            path.append(f"H{x(line):.1f}V{now:.1f}")
            height = now
    return "".join([*path, f"H{x(len(edge)):.1f}V{BOTTOM}Z"])


def _middle(timeline, line, name):
    """The middle of a category's band at a line, in bytes from zero."""
    counts = timeline[line].bytes
    below = sum(getattr(counts, other) for other in STACK[: STACK.index(name)])
    return below + getattr(counts, name) / 2


def _text(x, y, words, anchor="start", weight=None, colour=None):
    more = (
        f' font-weight="{weight}"' * bool(weight)
        + f' fill="{colour}"' * bool(colour)
        + f' text-anchor="{anchor}"' * (anchor != "start")
    )
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'


def _group(attributes, lines):
    return "\n".join(
        [f"  <g {attributes}>".replace(" >", ">"), *(f"    {line}" for line in lines), "  </g>"]
    )


if __name__ == "__main__":
    FIGURE.write_text(draw(measure_step()), encoding="utf-8")
    print(f"{FIGURE.name}: {FIGURE.stat().st_size // 1024} KiB")
