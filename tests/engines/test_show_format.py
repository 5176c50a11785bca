"""Numbers as the book prints them and as a reader types them, and the labs' small table. The
browser test holds the page's twin against these."""

from typing import NamedTuple

import pytest
from told import told, valued

from coursekit.show.format import (
    format_as,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_to_type,
    parse_number,
)
from coursekit.show.tables import Table, table_by_rank


@pytest.mark.parametrize(
    "value, text", told("test_show_format::test_three_significant_digits", globals())
)
def test_three_significant_digits(value, text):
    """Mutation: strip zeros always (79.96 -> 80), or round halves to even (1.125 -> 1.12)."""
    assert format_number(value) == text


@pytest.mark.parametrize("value, unit, text", told("test_show_format::test_bytes", globals()))
def test_bytes(value, unit, text):
    """Mutation: choose the unit from the rounded value alone (2^30 would be 1,020 MiB)."""
    assert format_bytes(value, unit) == text


def test_rounding_never_leaves_a_thousand_of_a_smaller_unit():
    """Mutation: choose the unit before rounding: 1,000 GB, 1000M, 60.0 seconds."""
    assert format_as(999_600_000_000, "decimal bytes") == "1.00 TB"
    assert format_count(999_600_000_000_000 / 1000) == "1.00T"
    assert format_duration(59.99) == "1.00 minutes"
    assert format_as(999.6e12, "rate") == "1.00 PFLOP/s"
    assert format_as(999.6e6, "bandwidth") == "1.00 GB/s"


@pytest.mark.parametrize("value, text", told("test_show_format::test_counts", globals()))
def test_counts(value, text):
    """Mutation: print 12,288 as 12.3K, or 3.14e23 as 314,000,000,000T."""
    assert format_count(value) == text


@pytest.mark.parametrize("seconds, text", told("test_show_format::test_durations", globals()))
def test_durations(seconds, text):
    """Years of 365 days, so that a reader with a pocket calculator finds the same.

    Mutation: 365.25 days (356 years), or the plural of one."""
    assert format_duration(seconds) == text


def test_percent_moves_the_point_in_the_digits():
    """Mutation: format_number(value * 100): 0.29 * 100 is 28.999999999999996 and would be 29.0%."""
    assert [format_as(k / 100, "percent") for k in range(1, 101)] == [
        f"{k}%" for k in range(1, 101)
    ]
    assert format_as(0.12345, "percent") == "12.3%" and format_as(12, "percent") == "1,200%"


@pytest.mark.parametrize("text, value", valued("test_show_format::test_typed_numbers", globals()))
def test_typed_numbers(text, value):
    """Mutation: multiply by the suffix in floats (0.27 * 1e12 is 270,000,000,000.00003), or take
    12,288 for 12.288."""
    typed = parse_number(text)
    assert typed == value and type(typed) is type(value)


@pytest.mark.parametrize(
    "text, style, value", valued("test_show_format::test_typed_units", globals())
)
def test_typed_units(text, style, value):
    """Mutations: 64B as 64 billion bytes; 3.4 * 1e-6, which is another float than 3.4e-6; units
    taken everywhere."""
    assert parse_number(text, style) == value


@pytest.mark.parametrize(
    "text, style, shown, value",
    valued("test_show_format::test_a_bare_number_takes_the_unit_on_show", globals()),
)
def test_a_bare_number_takes_the_unit_on_show(text, style, shown, value):
    """Must catch: 90 typed over 80 ms taken for 90 s; a unit that was typed replaced by that on
    show; billions of a number that was typed in full."""
    assert parse_number(text, style, shown) == value


@pytest.mark.parametrize(
    "text", ["", *"abc . NaN Infinity 1,2 0x10 1.1.1 1e --1 \u0661\u0662".split(), "12 GB"]
)
def test_what_is_no_number_stays_text(text):
    """Mutation: drop re.ASCII, and Arabic digits are taken in Python and refused on the page."""
    assert parse_number(text) == text.strip()


def test_what_stands_in_a_box_can_be_typed_again():
    """Mutation: show 175B for 174,604,259,328 parameters; leaving the box would change the
    value."""
    for style in ("exact", "count", "percent"):
        for value in (1, 12_288, 300_000_000_000, 174_604_259_328, 2**53 - 1, 0.4, 0.123456):
            assert parse_number(format_to_type(value, style)) == value
    for style, value in (
        ("bytes", 2**26),
        ("bandwidth", 450e9),
        ("short duration", 3.4e-6),
        ("rate", 989e12),
        ("bytes", 123_456_789),
    ):
        assert parse_number(format_to_type(value, style), style) == value
    assert format_to_type(2**26, "bytes") == "64 MiB"
    assert format_to_type(3.4e-6, "short duration") == "3.4 µs"
    assert format_to_type(300_000_000_000, "count") == "300B"
    assert format_to_type(174_604_259_328, "count") == "174,604,259,328"


def test_a_difference_of_equal_times_is_nothing():
    """Must catch: 4.34e-10 ns, the rounding of a difference; a femtosecond that is printed as 0."""
    for seconds, text in ((0, "0 s"), (4.34e-19, "0 s"), (-4.34e-19, "0 s")):
        assert format_as(seconds, "short duration") == text
    assert format_as(1.5e-15, "short duration") != "0 s"


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


def test_text_is_aligned():
    """Mutation: padding on the wrong side, or the rule as wide as the head only."""
    assert repr(
        Table(["part", "bytes"], [["parameters", 2448896], ["steps", 160]])
    ).splitlines() == [
        "part            bytes",
        "----------  ---------",
        "parameters  2,448,896",
        "steps             160",
    ]


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
