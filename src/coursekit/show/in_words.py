"""A plotly figure in words, for whoever sees no picture: on GitHub, in an export, by screen
reader."""

import math
import re

from .format import format_exact

PLOTLY = "application/vnd.plotly.v1+json"
_MOST, _FEW = 16, 8  # of a trace with more than 16 points, 8 at equal distances are said


def figure_in_words(figure: dict) -> str:
    """The title of a figure (plotly's JSON), the titles of its axes, and a line for each trace with
    its name and its points, as they are said under the pointer."""
    layout = figure["layout"]
    axes = {letter: layout.get(f"{letter}axis", {}) for letter in "xy"}
    lines = [f"Figure: {_plain(layout['title']['text'])}"]
    for letter, axis in axes.items():
        if axis.get("title"):
            lines.append(f"{letter} axis: {_plain(axis['title']['text'])}")
    for trace in figure["data"]:
        if "z" in trace:
            rows = zip(trace["y"], trace["z"])
            lines += [_points(dict(name=name, x=trace["x"], y=row), axes) for name, row in rows]
        elif trace.get("hoverinfo") != "skip":
            lines.append(_points(trace, axes))
    marked = "; ".join(_plain(note["text"]) for note in layout.get("annotations", ()))
    return "\n".join(lines + [f"marked: {marked}"] * bool(marked))


def _points(trace, axes):
    place, length = "yx" if trace.get("orientation") == "h" else "xy"
    count = len(trace[length])
    trace = {place: range(count), **trace}
    name = trace.get("name", "")
    words = trace.get("hovertemplate") or f"%{{{length}}}{axes[length].get('ticksuffix', '')}"
    words = re.sub("<extra>.*", "", words).removeprefix(name).lstrip(":, ")
    if "%{" in words and "%{text" not in words and f"%{{{place}" not in words:
        words = f"%{{{place}}}: {words}"
    if "base" in trace and "%{" in words and words != "%{text}":
        words += f", %{{{place}}} from %{{base}} on"

    def at(k):
        said = lambda found: _number(trace[found[1]][k], axes.get(found[1], {}))
        return _plain(re.sub(r"%{(\w+)[^}]*}", said, words)).removeprefix(name).lstrip(":, ")

    chosen = range(count)
    if count > _MOST:
        chosen = [round((count - 1) / (_FEW - 1) * k) for k in range(_FEW)]
        name = f"{name} ({_FEW} of {count:,})".lstrip()
    return ": ".join(filter(None, [name, "; ".join(dict.fromkeys(map(at, chosen)))]))


def _number(value, axis):
    if value in axis.get("tickvals", ()):
        return axis["ticktext"][axis["tickvals"].index(value)]
    if isinstance(value, str):
        return value
    finite = value is not None and math.isfinite(value)
    return format_exact(float(value)) if finite else "no number"


def _plain(text):
    return re.sub("<[^>]*>", "", text.replace("<br>", ", ")).strip()
