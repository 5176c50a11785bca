"""The pictures of explorers, as data: which quantities are drawn how. The page draws them in static/pictures.js, labs in figures.py."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """One piece of a bar: its quantity, the label beside it, and its colour's name in palette.MEMORY."""
    quantity: str
    label: str
    colour: str


@dataclass(frozen=True)
class MemoryBar:
    """Bytes end to end from zero; on a GPU the card's capacity as a line, `spare` outlined, `over` hatched. The axis is as long as the
    bar and the card need, and at least `least` bytes."""
    title: str
    parts: tuple
    total: str
    capacity: str = ""
    spare: str = ""
    over: str = ""
    least: int = 0
    kind: str = field(default="memory", init=False)

    @property
    def quantities(self):
        card = (self.capacity, self.spare, self.over) if self.capacity else ()
        return (*(part.quantity for part in self.parts), self.total, *card)


@dataclass(frozen=True)
class Column:
    """One moment of a timeline: its name, its phase, all its bytes, its parts from the bottom up. It is there when all of `when` holds."""
    name: str
    phase: str
    total: str
    parts: tuple
    when: tuple = ()


@dataclass(frozen=True)
class Timeline:
    """A column of bytes for each moment, from zero, time from left to right; the highest is marked, the card's capacity is a line."""
    title: str
    columns: tuple
    capacity: str
    kind: str = field(default="timeline", init=False)

    @property
    def quantities(self):
        return (*(name for column in self.columns for name in (
            column.total, *(part.quantity for part in column.parts), *(pair[0] for pair in column.when))), self.capacity)

    def shown(self, values):
        """The columns that are there."""
        return [column for column in self.columns if all(values[name] == value for name, value in column.when)]


@dataclass(frozen=True)
class TimeAxis:
    """A logarithmic axis of time with one marker."""
    title: str
    quantity: str  # in seconds
    ticks: tuple = (("hour", 3600), ("day", 86_400), ("month", 2_628_000), ("year", 31_536_000), ("century", 3_153_600_000),
                    ("10,000 years", 315_360_000_000))
    least: float = 60
    most: float = 3e12
    kind: str = field(default="time", init=False)

    @property
    def quantities(self):
        return (self.quantity,)
