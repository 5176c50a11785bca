"""The labs' small table. Numbers as the book prints and reads them are rows of told.md, and a
browser compares the page's twin with Python."""

from typing import NamedTuple

from coursekit.show.tables import Table, table_by_rank

BYTES = Table(
    ["part", "predicted", "so"],
    [["parameters", 2448896, "equal"], ["step | counters", 160, "4 | 4"], ["none", "–", ""]],
)


def test_cells():
    """Mutations: the alignment taken from the first row, or the first column set to the right
    because a name starts with a digit; a bar in a cell that starts a new one, which Markdown drops;
    numbers printed to three digits, so that a table of exact bytes could hide a difference."""
    lines = BYTES._repr_markdown_().splitlines()
    assert lines[1] == "| :-- | --: | :-- |"
    mixed = Table(["layers", "time"], [["3", "1 day"], ["12", "never"]])
    assert mixed._repr_markdown_().splitlines()[1] == "| :-- | :-- |"
    assert "| step \\| counters | 160 | 4 \\| 4 |" in lines
    assert "| parameters | 2,448,896 | equal |" in lines


def test_a_row_for_each_rank():
    """Mutation: rounding printed with its digits, which differ between machines; rows counted from
    1."""

    class Found(NamedTuple):
        bytes_sent: int
        difference: float

    found = [Found(6144, 3.4567e-16), Found(6140, 0.74567)]
    for table in (table_by_rank(found), table_by_rank([own._asdict() for own in found])):
        assert table.heads == ["", "bytes sent", "difference"]
        assert table.rows == [["rank 0", "6,144", "< 1e-12"], ["rank 1", "6,140", "0.75"]]
