"""Rules that say which keys a query sees. Blocks in which none is seen cost nothing: no work, and
in a ring no message that comes for them alone.

    Context(group)                                             # all keys up to the query
    Context(group, zigzag=False, rule=Window(4096))            # the last 4,096 of them
    Context(group, rule=Window(4096, sinks=4))                 # and the first four tokens
    Context(group, rule=ChosenTiles(chosen, size=128))         # some tiles of the square

With a window ranks have equal work in either order, and neighbours in the sequence are neighbours
in the ring if it is contiguous: then few turns are enough.
"""

from torch import Tensor


class Causal:
    """A query sees the keys up to itself. A narrower rule has the same three methods."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        """Whether a query at a place sees a key at a place: q [s, 1] and k [s] to [s, s]."""
        return k <= q

    def meet(self, queries: range, keys: range) -> bool:
        """Whether one of these queries sees one of these keys."""
        return keys[0] <= queries[-1]

    def turns(self, context, tokens: int) -> int:
        """The turns of a ring after which no query of any rank waits for a key."""
        ranks = range(context.ranks)
        places = [context.chunks(rank, tokens) for rank in ranks]
        late = (
            turn
            for turn in reversed(ranks)
            for rank in ranks
            for queries in places[rank]
            for keys in places[rank - turn]
            if self.meet(queries, keys)
        )
        return next(late) + 1


class Window(Causal):
    """The last `size` keys (Beltagy et al. 2020), and the first `sinks` of the sequence (Xiao et
    al. 2023)."""

    def __init__(self, size: int, sinks: int = 0):
        if size < 1:
            raise ValueError(f"a window of {size}: a query sees at least its own key.")
        self.size, self.sinks = size, sinks

    def sees(self, q, k):
        return (k <= q) & ((q - k < self.size) | (k < self.sinks))

    def meet(self, queries, keys):
        near = queries[0] - keys[-1] < self.size or keys[0] < self.sinks
        return near and super().meet(queries, keys)


class ChosenTiles(Causal):
    """Tiles of size x size: chosen [S/size, S/size] says which are seen. A query sees its own tile,
    whatever is chosen (Child et al. 2019)."""

    def __init__(self, chosen: Tensor, size: int):
        self.chosen, self.size = chosen, size

    def sees(self, q, k):
        row, column = q // self.size, k // self.size
        return (k <= q) & (self.chosen.to(q.device)[row, column] | (row == column))

    def meet(self, queries, keys):
        rows, columns = (range(r[0] // self.size, r[-1] // self.size + 1) for r in (queries, keys))
        seen = any(self.chosen[row, column] or row == column for row in rows for column in columns)
        return seen and super().meet(queries, keys)
