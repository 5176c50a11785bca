"""Lab 16 beside its cells: sizes, a step's time, a loss on unseen text, gradients, two figures."""

from collections.abc import Callable
from itertools import islice

import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.lab import batches, small_gpt
from coursekit.show.figures import axis, legend_below, name_rows, new_figure
from coursekit.show.format import decimal_bytes
from coursekit.show.palette import MEMORY, TIMELINE
from ranklab.measure.clock import MedianSeconds
from ranklab.measure.timing import wall_seconds
from shardlab.gpt import next_token_loss

SIZES = dict(layers=2, hidden=64, heads=4, feed_forward=256)
LARGER_MODEL = dict(layers=4, hidden=128, heads=4, feed_forward=512)


def milliseconds(work: Callable, turns: int = 5) -> float:
    """The median of some turns, after two that warm up; all ranks begin together."""
    seconds = []
    for _ in range(2 + turns):
        dist.barrier()
        seconds.append(wall_seconds(work))
    return MedianSeconds(1000 * one for one in seconds[2:])


@torch.no_grad()
def unseen_loss(net: nn.Module) -> float:
    """The mean of the ranks' losses on 64 sequences that no run has seen."""
    unseen = islice(batches(16, 32, seed=999), 4)
    loss = torch.stack([next_token_loss(net(tokens), targets) for tokens, targets in unseen])
    mean = loss.mean() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def flat_gradients(count: int) -> list[Tensor]:
    """Flat gradients of one model, each of a batch of its own."""
    model, found = small_gpt(seed=1, **SIZES), []
    for tokens, targets in islice(batches(4, 32), count):
        model.zero_grad()
        next_token_loss(model(tokens), targets).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return found


def link_figure(times: dict[str, dict[str, float]]) -> go.Figure:
    """Milliseconds of a step by link, a group of bars, and way, a bar."""
    figure = new_figure("Milliseconds of a step, two ranks", 320)
    ways = list(next(iter(times.values())))
    for way, colour in zip(ways, (*TIMELINE.values(), *MEMORY.values())):
        heights = [round(of_link[way], 1) for of_link in times.values()]
        figure.add_trace(
            go.Bar(
                x=list(times),
                y=heights,
                name=way,
                marker_color=colour.light,
                text=[f"{ms:.0f}" for ms in heights],
                textposition="outside",
            )
        )
    figure.update_layout(barmode="group", **legend_below(-0.2))
    figure.update_xaxes(axis())
    return figure.update_yaxes(axis(showgrid=True, type="log"))


def chart(runs: dict[str, tuple[float, float]]) -> go.Figure:
    """A dot for the loss of each run; whoever sends fewest bytes a step is on top."""
    names = sorted(runs, key=lambda name: runs[name][1])
    figure = new_figure("Loss of the last steps, by bytes a step", 120 + 36 * len(names))
    figure.add_trace(
        go.Scatter(
            x=[runs[name][0] for name in names],
            y=list(range(len(names))),
            mode="markers",
            marker=dict(size=10, color=TIMELINE["communication"].light),
        )
    )
    name_rows(figure, [f"{name}<br>{decimal_bytes(runs[name][1])}" for name in names])
    return figure.update_xaxes(axis(title="loss", showgrid=True))
