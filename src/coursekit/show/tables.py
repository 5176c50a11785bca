"""A small table: Markdown in a notebook and on a page, aligned text everywhere else."""

import re

from .format import format_exact

# the beginning of a cell that is aligned to the right; a dash means "none"
NUMBER = re.compile(r"[-–(]?[\d.]|[-–]$")

ROUNDING = 1e-12  # a sum in another order differs by less, in float64


def table_by_rank(found):
    """A table of NamedTuples or dicts, one of each rank: a row for each rank, a column for each
    field."""
    found = [own if isinstance(own, dict) else own._asdict() for own in found]
    heads = [field.replace("_", " ") for field in found[0]]
    rows = [[f"rank {rank}", *in_words(own.values())] for rank, own in enumerate(found)]
    return Table(["", *heads], rows)


def table_of(rows, first=""):
    """A table of rows by name, each a dict with the same keys, which are the heads; `first` is the
    head of the names."""
    heads = [head.replace("_", " ") for head in next(iter(rows.values()))]
    return Table([first, *heads], [[name, *row.values()] for name, row in rows.items()])


def in_words(values):
    """Floats in two digits, or as rounding of float64; everything else as it is."""

    def word(value):
        return f"{value:.2g}" if abs(value) >= ROUNDING else f"< {ROUNDING:g}"

    return [word(value) if isinstance(value, float) else value for value in values]


class Table:
    """`rows` under `heads`. Whole numbers are printed with all their digits, text as it is; columns
    of numbers, whose cells all start with a digit, are aligned to the right. `below` are sentences
    under it.

    Raises ValueError for a row that has more or fewer cells than there are heads.
    """

    def __init__(self, heads, rows, below=()):
        self.below = list(below)
        self.heads = [str(head) for head in heads]
        self.rows = [
            [cell if isinstance(cell, str) else format_exact(cell) for cell in row] for row in rows
        ]
        if {*map(len, self.rows)} - {len(self.heads)}:
            raise ValueError(f"a row has more or fewer cells than the {len(self.heads)} heads.")

    def _is_right(self, column):
        return column > 0 and all(NUMBER.match(row[column]) for row in self.rows)

    def _repr_markdown_(self):
        def line(cells):
            return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

        marks = ["--:" if self._is_right(column) else ":--" for column in range(len(self.heads))]
        below = [paragraph for sentence in self.below for paragraph in ("", sentence)]
        return "\n".join([line(self.heads), line(marks), *map(line, self.rows), *below])

    def __repr__(self):
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows)]
        places = [
            str.rjust if self._is_right(column) else str.ljust for column in range(len(widths))
        ]

        def line(cells):
            return "  ".join(
                place(cell, width) for place, cell, width in zip(places, cells, widths)
            ).rstrip()

        marks = ["-" * width for width in widths]
        return "\n".join([line(self.heads), line(marks), *map(line, self.rows), *self.below])
