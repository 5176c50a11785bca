"""Chapter 14: long sequences."""

import math

import torch
from torch.autograd.graph import saved_tensors_hooks

from coursekit.exercises.answers import drawn, nine_digits
from coursekit.exercises.edits import Topic
from shardlab.kernels.moved_bytes import moved_bytes

topic = Topic(__name__)


# --- the tokens of a rank -------------------------------------------------------------------------


def places_in_zigzag(rank, ranks, tokens):
    size = tokens // (2 * ranks)
    starts = rank * size, (2 * ranks - 1 - rank) * size
    return [start + at for start in starts for at in range(size)]


zigzag_places = topic.exercise(
    "zigzag_places",
    places_in_zigzag,
    name="places",
    cases=(
        dict(rank=0, ranks=2, tokens=8),
        dict(rank=1, ranks=2, tokens=8),
        dict(rank=1, ranks=4, tokens=16),
        dict(rank=2, ranks=3, tokens=18),
    ),
    words=("rank 0 of 2", "rank 1 of 2", "rank 1 of 4", "rank 2 of 3, 18 tokens"),
    hint="2 x ranks chunks: rank 0 has the first and the last. Which ones has rank 1?",
    right="chunk `rank` from the beginning, and the chunk as far from the end.",
)


# --- two parts of a softmax -----------------------------------------------------------------------


def _merged(solution, base, blocks):
    """Attention of three queries to blocks of keys, merged one after the other."""
    out, lse = torch.zeros(3, 2, dtype=torch.float64), torch.full((3, 1), -math.inf).double()
    for number in range(blocks):
        scores, values = drawn(number, (3, 4), (4, 2))
        scores = scores * 3 + base
        part, part_lse = scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)
        merged = solution(out.clone(), lse.clone(), part, part_lse)
        if isinstance(merged, torch.Tensor):
            return "two things are wanted: the merged output, and the logarithm of all powers."
        out, lse = merged
    return nine_digits(out), nine_digits(lse)


merged_blocks = topic.exercise(
    "merged_blocks",
    cases=(
        dict(base=0.0, blocks=2),
        dict(base=0.0, blocks=3),
        dict(base=900.0, blocks=2),
        dict(base=-900.0, blocks=2),
    ),
    words=("two blocks", "three blocks", "scores near 900", "scores near -900"),
    answer=_merged,
    hint="`out` is a mean over keys whose powers add up to exp(lse). Which share of all powers has"
    " each of the two?",
    right="each mean counts by its share of the powers, and the shares come from differences.",
)


# --- the mean over all targets --------------------------------------------------------------------


mean_over_targets = topic.exercise(
    "mean_over_targets",
    cases=(
        dict(losses=8.0, rank=0, counts=[4, 4]),
        dict(losses=6.0, rank=1, counts=[4, 2, 6, 4]),
        dict(losses=0.0, rank=1, counts=[5, 0]),
        dict(losses=9.0, rank=2, counts=[1, 1, 7]),
    ),
    words=("two ranks, as many targets", "four ranks, other counts", "a rank without", "three"),
    hint="Averaged over the ranks, your numbers are to be all losses divided by all targets.",
    right="the sum of the rank's losses, by the mean number of targets of a rank.",
)


# --- elements that a ring sends -------------------------------------------------------------------


def ring_elements(ranks, tokens, columns):
    own = tokens // ranks * columns
    return 2 * (ranks - 1) * own + 2 * (ranks - 1) * own + 2 * ranks * own


elements_of_a_ring = topic.exercise(
    "elements_of_a_ring",
    ring_elements,
    cases=(
        dict(ranks=2, tokens=1024, columns=64),
        dict(ranks=4, tokens=1024, columns=64),
        dict(ranks=8, tokens=131_072, columns=1024),
    ),
    words=("2 ranks", "4 ranks", "8 ranks, 131,072 tokens"),
    hint="Forward, keys and values go c - 1 steps. Backward they go again, and their gradients go"
    " home.",
    right="2(3c - 2) tensors of a rank's keys: more ranks do not make a ring cheaper.",
)


# --- tiles ----------------------------------------------------------------------------------------

_INNER = 24


class _MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        up, down = drawn(0, (_INNER, 4), (4, _INNER))
        self.up, self.down = torch.nn.Parameter(up), torch.nn.Parameter(down)

    def forward(self, x):
        return torch.tanh(x @ self.up.T) @ self.down.T


def _tiled(solution, sequences, tokens, tiles):
    """(output, gradients, the most tokens whose inner numbers are made at once, inner numbers that
    are kept for backward)."""
    mlp, (x,) = _MLP(), drawn(1, (sequences, tokens, 4))
    x.requires_grad_()
    kept, found = [], []

    def pack(tensor):
        kept.append(tensor.numel() * (_INNER in tensor.shape[-1:]))
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = solution(mlp, x, tiles)
    if y.shape != x.shape:
        return f"the result is {list(y.shape)}, and x is {list(x.shape)}: join the tiles again."
    calls = moved_bytes(lambda: found.append(solution(mlp, x.detach(), tiles))).calls
    most = max((call.written // (8 * _INNER) for call in calls if call.name != "cat"), default=0)
    y.pow(2).sum().backward()
    if mlp.up.grad is None:
        return "the MLP's weights get no gradient: each tile goes through `mlp`."
    gradients = [nine_digits(one.grad) for one in (x, mlp.up, mlp.down)]
    return nine_digits(y), gradients, most, sum(kept)


tiled_mlp = topic.exercise(
    "tiled_mlp",
    cases=(
        dict(sequences=1, tokens=16, tiles=2),
        dict(sequences=2, tokens=12, tiles=4),
    ),
    words=("two tiles of 8 tokens", "four tiles, two sequences"),
    answer=_tiled,
    hint="`checkpoint(mlp, part, use_reentrant=False)` keeps the part alone, and makes its inner"
    " numbers again in backward.",
    right="a tile's inner numbers are made, used and thrown away, forward and backward.",
)


# --- bug hunt: better than the truth --------------------------------------------------------------


def _zigzag(ranks, size):
    return [
        place for rank in range(ranks) for place in places_in_zigzag(rank, ranks, 2 * ranks * size)
    ]


PLACES = {
    "as the sequence has them": list(range(8)),
    "from 2 ranks": _zigzag(2, 2),
    "from 4 ranks": _zigzag(4, 2),
}


def _attended(solution, kind):
    """The attention of two heads to tokens that lie in this order, in the same order."""
    where = torch.tensor(PLACES[kind])
    q, k, v = drawn(len(where), *[(2, len(where), 3)] * 3)
    return nine_digits(solution(*(x[:, where].clone() for x in (q, k, v)), where))


better_than_true = topic.exercise(
    "better_than_true",
    cases=tuple(dict(kind=kind) for kind in PLACES),
    words=tuple(PLACES),
    answer=_attended,
    hint="`is_causal=True` lets token i of the tensor see tokens 0 to i of the tensor. Which tokens"
    " of the sequence are these?",
    right="tokens in the order of the sequence while they attend, and then back.",
)
