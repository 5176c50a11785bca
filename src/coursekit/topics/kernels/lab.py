"""Lab 13 beside its cells: a compiler if there is one, a C function as a library, two figures."""

from collections.abc import Callable

import plotly.graph_objects as go
import torch

from coursekit.show.figures import axis, new_figure
from coursekit.show.palette import TIMELINE
from coursekit.topics.kernels.generated import loop_of
from coursekit.topics.kernels.own_c import (
    MEAN_SQUARES,
    address,
    c_function,
    checked,
    cpp_compiler,
    in_cpp,
)
from ranklab.measure.timing import cpu_seconds, median_ratio, seconds_in_turns
from shardlab.kernels.losses import chunked_cross_entropy

__all__ = ["MEAN_SQUARES", "address", "c_function", "checked", "cpp_compiler", "in_cpp", "loop_of"]
NO_COMPILER = (
    "This machine has no C++ compiler (g++ or clang++), so nothing is compiled for the CPU: the"
    " chapter has these results, and the rest of the lab runs."
)


def times_faster(eager: Callable, compiled: Callable, *inputs, turns: int = 9) -> float:
    """CPU time of eager over that of compiled, the median of turns; a turn is at least 1 ms."""
    calls = max(1, round(0.001 / max(cpu_seconds(lambda: eager(*inputs)), 1e-7)))

    def often(function):
        def work():
            for _ in range(calls):
                function(*inputs)

        return work

    works = {"eager": often(eager), "compiled": often(compiled)}
    return median_ratio(seconds_in_turns(works, cpu_seconds, turns), "eager", "compiled")


def of_a_loss() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Vectors of 256 tokens, a head's weight for 4,096 words, targets."""
    hidden, head = (torch.ones(n, 16, requires_grad=True) for n in (256, 4096))
    return hidden, head, torch.arange(256)


def in_one(hidden, head, targets):
    torch.nn.functional.cross_entropy(hidden @ head.T, targets).backward()


def in_chunks(hidden, head, targets):
    chunked_cross_entropy(hidden, head, targets, chunk=32).backward()


def figure_of_ratios(found: dict[str, float], by_bytes: float) -> go.Figure:
    """How many times faster compiled is, by size: bars are measured, the line is the ratio of
    bytes."""
    figure = new_figure("CPU time, eager / compiled, by the size of the tensor", 300)
    look = dict(color=TIMELINE["forward"].light, line=dict(color=TIMELINE["forward"].line))
    ratios = [round(ratio, 2) for ratio in found.values()]
    figure.add_trace(go.Bar(x=list(found), y=ratios, marker=look, width=0.5, name="measured"))
    figure.add_hline(y=by_bytes, line_dash="dash", annotation_text=f"bytes: {by_bytes:.1f}")
    figure.update_xaxes(axis(type="category"))
    return figure.update_yaxes(axis(rangemode="tozero", showgrid=True))
