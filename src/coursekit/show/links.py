"""Links between the quantities of an explorer, which its topic declares: they say what follows when
a reader moves a control. A control never refuses its own stops, because what depends on it follows.

    settle(links, {**values, "hidden": 5120}, ["hidden"], preset)

`moved` has the quantities that moved, first the reader's own: a link never moves the one of its two
that moved first. static/explorer.js does the same; a test compares the two. A link that one
explorer alone has is beside it (topics/which_layout/links.py).
"""

import math
from dataclasses import dataclass

FARTHEST = 100_000  # how far a divisor is looked for


@dataclass(frozen=True)
class Follower:
    """A link of two quantities, by which one follows the other."""

    follower: str
    leader: str

    @property
    def quantities(self):
        return self.follower, self.leader


@dataclass(frozen=True)
class Ratio(Follower):
    """`follower` keeps the ratio to `leader` that the chosen preset has, rounded to a whole number
    of at least 1."""

    def follow(self, values, moved, preset):
        leads = self.leader in moved and self.follower not in moved
        if not leads or self.follower not in preset or not _whole(values[self.leader]):
            return {}
        ours, theirs = preset[self.follower], preset[self.leader]
        return {self.follower: max(1, (2 * values[self.leader] * ours + theirs) // (2 * theirs))}


@dataclass(frozen=True)
class AtLeast(Follower):
    """`follower`, which has no control, is the chosen preset's, or `leader` where that is more: a
    table of positions as long as the sequence."""

    def follow(self, values, moved, preset):
        if not {self.follower, self.leader} & {*moved}:
            return {}
        if self.follower not in preset or not _whole(values[self.leader]):
            return {}
        return {self.follower: max(preset[self.follower], values[self.leader])}


@dataclass(frozen=True)
class AtMost(Follower):
    """`follower` is never above `leader` - `less`: the one that moves takes the other along. A
    switch that needs another switch; a rank among a number of ranks, counted from 0. A follower
    that is a count is never below 1: then what is wrong is the leader."""

    less: int = 0
    least: int = 0

    def follow(self, values, moved, preset):
        ours, theirs = values[self.follower], values[self.leader]
        if not isinstance(theirs, (int, float)) or not _whole(ours) or ours + self.less <= theirs:
            return {}
        if _place(moved, self.follower) < _place(moved, self.leader):
            return {self.leader: ours + self.less}
        return {self.follower: max(self.least, theirs - self.less)} if self.leader in moved else {}


@dataclass(frozen=True)
class Divides:
    """`divisor` divides `multiple` where all of `when` holds, which are pairs (quantity, value).

    The one that moved first stays, and the other becomes the nearest number that suits it; a
    divisor is one of `among`, where that has any. When only `when` came to
    hold, the multiple follows."""

    divisor: str
    multiple: str
    among: tuple = ()
    when: tuple = ()

    @property
    def quantities(self):
        return self.divisor, self.multiple

    def follow(self, values, moved, preset):
        divisor, multiple = values[self.divisor], values[self.multiple]
        if not _whole(divisor, multiple) or any(values[name] != want for name, want in self.when):
            return {}
        conditions = [name for name, _ in self.when]
        if multiple % divisor == 0 or not {*self.quantities, *conditions} & {*moved}:
            return {}
        if _place(moved, self.multiple) < _place(moved, self.divisor):
            found = self.nearest_divisor(multiple, divisor)
            return {} if found is None else {self.divisor: found}
        rest = multiple % divisor
        up = 2 * rest > divisor or multiple < divisor
        return {self.multiple: multiple - rest + divisor * up}

    def nearest_divisor(self, number, near):
        """The divisor of `number` nearest to `near`, the larger of two; None where it is too far to
        be found at once."""
        if self.among:
            divisors = (divisor for divisor in self.among if number % divisor == 0)
            return min(divisors, key=lambda one: (abs(one - near), -one), default=None)
        near = min(near, number)
        for step in range(min(near, FARTHEST)):
            for divisor in (near + step, near - step):
                if number % divisor == 0:
                    return divisor
        return None


@dataclass(frozen=True)
class Product:
    """`product` = `first` x `second`. When the product or `second` moves, `first` follows where it
    divides; when `first` moves, the product follows."""

    product: str
    first: str
    second: str

    @property
    def quantities(self):
        return self.product, self.first, self.second

    def follow(self, values, moved, preset):
        product, first, second = (values[name] for name in (self.product, self.first, self.second))
        places = [_place(moved, name) for name in (self.product, self.first, self.second)]
        if min(places) == math.inf or not _whole(second):
            return {}
        if places[1] < min(places[0], places[2]):
            return {self.product: first * second} if _whole(first) else {}
        if _whole(product) and product % second == 0:
            return {self.first: product // second}
        return {}


# Heads divide the hidden size, unless a model gives their columns; key-value heads divide them.
HEADS_FOLLOW = (
    Divides("heads", "hidden", when=(("head_size", 0),)),
    Ratio("key_value_heads", "heads"),
    Divides("key_value_heads", "heads"),
)


def settle(links, values, moved, preset):
    """The values with all that follows from those that moved. `preset` has the quantities of the
    chosen presets."""
    values, moved = dict(values), list(moved)
    for _ in links:  # no chain is longer
        before = dict(values), list(moved)
        for link in links:
            for name, value in link.follow(values, moved, preset).items():
                values[name] = value
                if name not in moved:
                    moved.append(name)
        if before == (values, moved):
            break  # whatever follows has followed
    return values


def _place(moved, name):
    return moved.index(name) if name in moved else math.inf


def _whole(*values):
    return all(
        isinstance(value, (int, float)) and value >= 1 and value == value // 1 and value < 2**53
        for value in values
    )
