"""Lab 14 beside its cells: pairs of an order, a shared model beside the plain one, a figure."""

from collections.abc import Callable, Sequence
from statistics import median

import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.lab import far
from coursekit.show.figures import axis, new_figure
from coursekit.show.palette import MEMORY, TIMELINE
from coursekit.show.tables import Table, in_words
from coursekit.topics.long_sequences.trainings import dice_losses, end_of
from ranklab.measure.timing import wall_seconds
from ranklab.ranks import rank_device

__all__ = ["dice_losses", "end_of"]


def pairs_of(queries: Sequence[int], keys: Sequence[int] | None = None) -> int:
    """Pairs of one of these queries and a key at its place or before it."""
    last = max(queries) + 1
    return sum(key <= query for query in queries for key in (range(last) if keys is None else keys))


def table_of_turns(dealt: dict[str, list[list[int]]]) -> Table:
    """The pairs of each rank by the order of the tokens, and of the slowest rank turn by turn."""
    rows = []
    for order, places in dealt.items():
        ranks = range(len(places))
        turns = [max(pairs_of(places[r], places[r - turn]) for r in ranks) for turn in ranks]
        own, even = [pairs_of(one) for one in places], sum(map(pairs_of, places)) / len(places)
        in_a_row = f"{' + '.join(map(str, turns))} = {sum(turns)}"
        work = f"{100 * even / sum(turns):.0f} %"
        rows.append([order, ", ".join(map(str, own)), in_a_row, work])
    return Table(["", "pairs, ranks 0 to 3", "the slowest, turn by turn", "of it work"], rows)


def differences(net: nn.Module, own: Tensor, plain: nn.Module, loss: Tensor) -> dict[str, float]:
    """How far the averages over the ranks are from the plain model: the loss, the worst gradient.
    AssertionError beyond 1e-12."""
    averaged = [own.detach().clone(), *(parameter.grad for parameter in net.parameters())]
    for tensor in averaged:
        dist.all_reduce(tensor)
    mean, *gradients = [tensor / dist.get_world_size() for tensor in averaged]
    worst = max(far(g, p.grad) for g, p in zip(gradients, plain.parameters()))
    assert worst < 1e-12, f"a gradient is off by {worst:.1e}"
    return dict(loss_differs_by=far(mean, loss), worst_gradient_differs_by=worst)


def table_of_mixes(found: dict[int, dict[str, list[dict]]]) -> Table:
    """Rank 0 of each mix, by the number of ranks."""
    rows = [
        [f"{mix}, {ranks} ranks", *in_words(of_ranks[0].values())]
        for ranks, mixes in found.items()
        for mix, of_ranks in mixes.items()
    ]
    return Table(["", "bytes sent", "loss differs by", "worst gradient differs by"], rows)


def figure_of_losses(plain: list[float], repaired: list[float], broken: list[float]) -> go.Figure:
    """Losses by step: the plain model's and the repaired one's lie on each other."""
    figure = new_figure("Loss by step: plain, repaired, and as it was", 300)
    looks = (
        ("plain", plain, dict(color=TIMELINE["forward"].line, width=6)),
        ("repaired", repaired, dict(color=MEMORY["activations"].light, width=2)),
        ("as it was", broken, dict(color=TIMELINE["communication"].line, dash="dash")),
    )
    for name, loss, line in looks:
        figure.add_trace(go.Scatter(y=[round(one, 4) for one in loss], name=name, line=line))
    return figure.update_layout(showlegend=True).update_yaxes(axis())


def drawn_attention() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a rank's half of 4,096 tokens: four heads of 32 columns."""
    torch.manual_seed(0)
    return tuple(torch.randn(1, 4, 2048, 32, device=rank_device()) for _ in range(3))


def seconds_a_turn(work: Callable, turns: int = 5) -> float:
    dist.barrier()
    return median(wall_seconds(work) for _ in range(turns))


def mlp_and_tokens() -> tuple[nn.Module, Tensor]:
    """An MLP of 64 columns and 256 inner ones, and 4,096 tokens."""
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    return mlp, torch.randn(1, 4096, 64)
