"""Lab 15 beside its cells: sizes, loads as they were step by step, two figures."""

import plotly.graph_objects as go
from torch import Tensor, nn

from coursekit.show.figures import axis, draw_lines, new_figure
from shardlab.experts.core import mixtures

SIZES = dict(layers=2, hidden=64, heads=4, feed_forward=128, experts=8, experts_per_token=2)
LAST = 50  # steps over which a number at the end is a mean
DEAD = 0.1  # an expert with less than this share of an even load is called dead


class History:
    """Loss of a run, and the load of each expert as a multiple of the mean, by step."""

    def __init__(self):
        self.losses: list[float] = []
        self.loads: list[list[list[float]]] = []  # by step, layer and expert
        self.dropped: list[float] = []  # share of the last layer's rows

    def add(self, loss: Tensor, model: nn.Module) -> None:
        """After backward, and before the loads begin again."""
        layers = mixtures(model)
        self.losses.append(loss.item())
        loads = [layer.router.load for layer in layers]
        self.loads.append([(load * len(load) / load.sum()).tolist() for load in loads])
        lost = layers[-1].dropped
        self.dropped.append(0.0 if lost is None else (lost / loads[-1].sum()).item())

    @property
    def loss(self) -> float:
        """The mean of the last steps."""
        return sum(self.losses[-LAST:]) / LAST

    @property
    def load(self) -> list[float]:
        """The load of each expert of the last layer, the mean of the last steps."""
        last = [step[-1] for step in self.loads[-LAST:]]
        return [sum(one) / LAST for one in zip(*last)]

    @property
    def fullest(self) -> float:
        return max(self.load)

    @property
    def dead(self) -> int:
        return sum(load < DEAD for load in self.load)

    @property
    def dropped_percent(self) -> float:
        return 100 * sum(self.dropped[-LAST:]) / LAST


def load_figure(history: History, title: str, every: int = 5) -> go.Figure:
    """Load of each expert of the last layer by step; the most is 4 times the mean."""
    steps = range(0, len(history.loads), every)
    loads = [[round(history.loads[step][-1][n], 2) for step in steps] for n in range(8)]
    figure = new_figure(title, 300)
    bar = dict(title="times<br>the mean", thickness=12, tickvals=[0, 1, 2, 3, 4])
    names = [f"expert {n}" for n in range(8)]
    figure.add_trace(
        go.Heatmap(
            z=loads, x=list(steps), y=names, zmin=0, zmax=4, colorscale="Viridis", colorbar=bar
        )
    )
    figure.update_xaxes(axis(title="step"))
    return figure.update_yaxes(axis(autorange="reversed"))


def balance_figure(runs: dict[str, History], every: int = 5) -> go.Figure:
    """The fullest expert of each run by step: 1 is balance."""
    lines = {}
    for name, history in runs.items():
        fullest = [max(step[-1]) for step in history.loads]
        places = range(0, len(fullest) - every + 1, every)
        lines[name] = places, [round(sum(fullest[at : at + every]) / every, 2) for at in places]
    return draw_lines(
        new_figure("Fullest expert of the last layer", 350), lines, "step", "times the mean"
    )
