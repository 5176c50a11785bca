"""plotly figure of bytes by kind: what a rank keeps in each stage, at rest and at its peak."""

from coursekit.show.figures import stacked_figure
from coursekit.show.palette import MEMORY

_UNITS = {"kB": 1000, "GiB": 2**30}
_WORDS = {"optimizer": "optimizer states"}


def kinds_figure(title, rows, unit):
    """A bar for each row, name -> bytes of kinds in the memory palette, a NamedTuple or a dict.
    Stacked, in kB or GiB."""
    rows = {name: own if isinstance(own, dict) else own._asdict() for name, own in rows.items()}
    pieces = {
        _WORDS.get(kind, kind): (
            [counts[kind] / _UNITS[unit] for counts in rows.values()],
            MEMORY[kind],
        )
        for kind in next(iter(rows.values()))
    }
    return stacked_figure(f"{title} ({unit})", rows, pieces, f"%{{y}}: %{{x:,.4~g}} {unit}")
