"""The pictures of hardware say what links carry and how tiles fill a chip."""

import re

import pytest

from coursekit.formulas import LINKS
from coursekit.show.format import format_as
from coursekit.topics.hardware import pictures


def words(svg):
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


def test_each_connection_has_its_links_rate():
    """Must catch: both directions added up; bits for bytes."""
    shown = words(pictures.draw_two_nodes()).split(" | ")
    for link in pictures.NODE_PATHS.values():
        rate = LINKS[link].quantities["link_bytes_per_second"]
        assert shown.count(format_as(rate, "bandwidth")) == 2  # once a node


def test_lines_are_as_thick_as_they_are_fast():
    """Must catch: a logarithmic scale under a caption that says otherwise."""
    thick = {float(w) for w in re.findall(r'stroke-width="([\d.]+)"', pictures.draw_two_nodes())}
    rates = sorted(pictures.path_rates().values())
    unit = max(thick) / rates[-1]
    assert sorted(thick) == pytest.approx([rate * unit for rate in rates], abs=0.06)


def test_every_gpu_has_a_number_of_its_own():
    """Must catch: node 1 counted from 0."""
    labels = words(pictures.draw_two_nodes()).split(" | ")
    assert sorted(int(label) for label in labels if label.isdigit()) == list(range(16))


def test_rounds_of_tiles():
    """The rounds are those of tiles dealt out one at a time.

    Must catch: rounds that are cut off, or a last round that is full."""
    for rows, columns in ((4096, 4096), (4097, 4097), (128, 256), (128 * 108, 256)):
        product = {**pictures.TILED_PRODUCT, "rows": rows, "columns": columns}
        count = sum(
            1
            for _ in range(0, rows, product["tile_rows"])
            for _ in range(0, columns, product["tile_columns"])
        )
        dealt = [0] * pictures.MULTIPROCESSORS
        for tile in range(count):
            dealt[tile % len(dealt)] += 1
        last = sum(each == max(dealt) for each in dealt)
        assert pictures.tile_rounds(**product) == (count, max(dealt), last)


def test_the_picture_and_its_caption_say_the_rounds():
    """Must catch: another product in the picture than in the caption."""
    count, rounds, last = pictures.tile_rounds(**pictures.TILED_PRODUCT)
    shown = words(pictures.draw_tiles())
    assert f"{count} tiles on {pictures.MULTIPROCESSORS} SMs take {rounds} rounds" in shown
    assert pictures.MULTIPROCESSORS - last == 28
    larger = {**pictures.TILED_PRODUCT, "rows": 4097, "columns": 4097}
    assert pictures.tile_rounds(**larger)[1] == rounds + 1
