"""Lab 9 beside its cells: figures and a table of what they found, and a trap to try."""

import math
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go
from torch import Tensor

from coursekit.show.figures import runs_figure
from coursekit.show.tables import Table
from coursekit.topics.mixed_precision.figures import sizes_figure
from coursekit.topics.mixed_precision.formats import CARD_FORMATS
from coursekit.topics.mixed_precision.gradients import count_binades
from coursekit.topics.mixed_precision.histogram import Sizes
from coursekit.topics.mixed_precision.trainings import outputs_of_a_loop as outputs_of_a_loop


def figure_of_small_steps(
    step: float, weights: Sequence[float], sums: Sequence[float]
) -> go.Figure:
    """A weight and a sum of bf16 after each step, beside real numbers."""
    numbers = range(1, len(weights) + 1)
    lines = {
        "weight, real numbers": [1 - step * number for number in numbers],
        "weight, bf16": weights,
        "sum, real numbers": [step * number for number in numbers],
        "sum, bf16": sums,
    }
    return runs_figure(f"{len(weights):,} steps of {step}", lines, "value")


def figure_of_sizes(gradients: Iterable[Tensor], k: int) -> go.Figure:
    """The gradients divided by k, by powers of two, beside what fp16 holds."""
    found = count_binades(gradients)
    sizes = Sizes(found.first, tuple(found.counts))
    title = f"Gradients divided by {k:,}, in fp16"
    return sizes_figure(title, sizes, CARD_FORMATS["fp16"], -int(math.log2(k)))


def table_of_scales(yours: Sequence, packages: Sequence) -> Table:
    """Every tenth of the steps, which are (scale, loss)."""
    rows = []
    for step in range(0, len(yours), 10):
        scales = (f"2^{math.log2(run[step][0]):g}" for run in (yours, packages))
        rows.append([step, *scales, f"{yours[step][1]:.2f}"])
    return Table(["step", "your scale", "LossScaler's", "loss"], rows)
