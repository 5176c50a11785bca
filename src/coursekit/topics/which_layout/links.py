"""Links that the explorer of any layout alone has; what links are is in show/links.py, and
show/static/explorer.js does the same as these."""

from dataclasses import dataclass

from coursekit.show.links import Follower


@dataclass(frozen=True)
class Back:
    """`follower` is `value` again when one of `leaders` moves, or moves `above` a number: what was
    set for one layout does not suit the next. `words` name a follower without a control."""

    follower: str
    value: int
    leaders: tuple
    above: int | None = None
    words: str = ""

    @property
    def quantities(self):
        return (self.follower,)

    def follow(self, values, moved, preset):
        leads = any(self.leads(values[name]) for name in {*self.leaders} & {*moved})
        return {self.follower: self.value} if leads and self.follower not in moved else {}

    def leads(self, value):
        number = isinstance(value, (int, float))
        return self.above is None or (number and value > self.above)


@dataclass(frozen=True)
class Some(Follower):
    """`follower`, which has no control, is 1 if it was 0 when `leader` came to be more: a token
    goes through one expert at least, if there are any."""

    words: str

    def follow(self, values, moved, preset):
        some = self.leader in moved and values[self.leader] != 0 and values[self.follower] == 0
        return {self.follower: 1} if some else {}


@dataclass(frozen=True)
class Instead:
    """Quantities without a control are the chosen presets', or, where `leader` is not 0, those of
    the names `instead` there."""

    names: tuple
    instead: tuple
    leader: str

    @property
    def quantities(self):
        return self.names

    def follow(self, values, moved, preset):
        chosen = self.names if values[self.leader] == 0 else self.instead
        return {name: preset[other] for name, other in zip(self.names, chosen) if other in preset}
