"""The still picture of published runs with long sequences: bytes stay, speed falls."""

from math import log

from coursekit.show.drawing import PICTURE_WIDTH, Drawing
from coursekit.topics.long_sequences.published import TORCHTITAN

_LEFT, _RIGHT, _TOP, _FOOT = 46, PICTURE_WIDTH - 8, 30, 214
_LEAST, _MOST = 400, 4000  # tokens a second, on a logarithmic axis
_DOT = 3.5
_ROOM = 46  # of the bars of memory, below
_CARD = 95  # GiB that the card reports


def _height(rate):
    return _FOOT - (_FOOT - _TOP) * log(rate / _LEAST) / log(_MOST / _LEAST)


def draw_longer_runs():
    """Tokens a second of each GPU for twice, four and eight times the sequence, published and
    predicted, and the fullest rank's memory below."""
    drawing = Drawing("longer-runs", "Sequences eight times as long: bytes stay, speed falls")
    pitch = (_RIGHT - _LEFT) / len(TORCHTITAN)
    at = [_LEFT + pitch * (place + 0.5) for place in range(len(TORCHTITAN))]
    drawing.text(0, 14, "tokens/s of each GPU: dots published, line by formula", "bold small")
    for rate in (500, 1000, 2000, 4000):
        drawing.path(f"M{_LEFT} {_height(rate):.1f}H{_RIGHT}", "grid")
        drawing.text(_LEFT - 6, _height(rate) + 4, f"{rate:,}", "small soft end")
    predicted = [run.sequence / run.ranks / run.predicted_seconds() for run in TORCHTITAN]
    steps = [f"{x:.1f} {_height(rate):.1f}" for x, rate in zip(at, predicted)]
    drawing.path("M" + "L".join(steps), "line thick")
    said = []
    for x, run, rate in zip(at, TORCHTITAN, predicted):
        y = _height(run.tokens_per_second)
        drawing.dots([(x, y)], _DOT, "accent")
        above = run.tokens_per_second > rate  # the line
        beside = (8, -6, "small") if above else (-4, 18, "small end")
        drawing.text(x + beside[0], y + beside[1], f"{run.tokens_per_second:,}", beside[2])
        wide = pitch - 14
        drawing.box(x - wide / 2, _FOOT + _ROOM, wide, 12, "quiet", 2)
        drawing.box(x - wide / 2, _FOOT + _ROOM, wide * run.peak_gib / _CARD, 12, "activations", 2)
        drawing.text(x, _FOOT + _ROOM + 26, f"{run.peak_gib} GiB", "middle small")
        drawing.text(x, _FOOT + 18, f"{run.sequence // 1024}K, c = {run.ranks}", "middle small")
        said.append(
            f"{run.sequence:,} tokens on {run.ranks} that share: {run.tokens_per_second:,} tokens a"
            f" second, predicted {rate:,.0f}, in {run.peak_gib} GiB, predicted"
            f" {run.predicted_peak_gib:.1f}"
        )
    drawing.text(0, _FOOT + _ROOM - 8, "memory of the fullest rank, of 95 GiB", "bold small")
    return drawing.svg(_FOOT + _ROOM + 34, f"{'; '.join(said)}.")
