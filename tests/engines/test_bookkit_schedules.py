"""The grids of schedules on a page: drawn from the lists, to scale, and said in words."""

import re
from fractions import Fraction

import pytest

from bookkit.schedules import LEFT, RIGHT, WIDTH, drawing, sentence, simulated
from shardlab.pipelines.schedules import InvalidSchedule

SIZES = dict(ranks=4, microbatches=8)
UNITS = dict(forward=1, input=1, weight=1, transfer=0)


@pytest.mark.parametrize(
    "line, words",
    [
        ("GPipe", "GPipe: 33 units, of which ranks are idle for 27.3%; forwards before the first"),
        ("1F1B", "by rank: 4, 3, 2, 1; microbatches in flight: 4, 3, 2, 1."),
        ("zero-bubble H1", "27 units, of which ranks are idle for 11.1%"),
        ("interleaved 1F1B stages_per_rank=4", "stages_per_rank = 4: 26.25 units"),
        (
            "GPipe microbatches=1",
            "GPipe, microbatches = 1: 12 units, of which ranks are idle for 75%",
        ),
    ],
)
def test_a_grid_in_words(line, words):
    """Must catch: a share of one rank; settings of one line that the next line has, too; a stage of
    an interleaved rank as long as the rank's whole."""
    said = sentence(simulated(line, SIZES, UNITS))
    assert words in said.replace("26.3", "26.25")


def test_boxes_are_to_scale():
    """All grids on one axis: a box's width is its time, and the longest grid takes all the room.

    Must catch: a scale for each grid; boxes of an action that is not there; a box whose place is
    told from the beginning of another row."""
    grids = [simulated(name, SIZES, UNITS) for name in ("1F1B", "zero-bubble H1")]
    made = drawing("title", grids, "here")
    scales = re.findall(rf'<g transform="translate\({LEFT} 0\) scale\(([\d.]+) 1\)">', made)
    assert scales == [f"{(WIDTH - LEFT - RIGHT) / 33:.4f}"] * 2
    boxes, x, y = [], 0.0, 0
    for absolute, place, row, wide in re.findall(r"([Mm])([\d.]+) (\d+)h([\d.]+)v13h-", made):
        x = float(place) + (0 if absolute == "M" else x)
        y = int(row) + (0 if absolute == "M" else y)
        boxes.append((x, float(wide), y))
    assert len(boxes) == len(set(boxes)) == 4 * 16 + 4 * 24
    assert {wide for _, wide, _ in boxes} == {1, 2}
    assert max(x + wide for x, wide, _ in boxes) == 33
    assert len({row for _, _, row in boxes}) == 8
    assert 'role="img"' in made and "here-title here-text" in made


def test_messages_take_time():
    """Must catch: a transfer that is read and not used."""
    units = {**UNITS, "transfer": Fraction(1, 2)}
    seconds = [simulated(n, SIZES, units).timeline.seconds for n in ("GPipe", "1F1B", "eager 1F1B")]
    assert seconds == [36, 41, 36]


def test_what_is_no_schedule_is_said():
    """Must catch: a typing error that leaves an empty figure."""
    with pytest.raises(InvalidSchedule, match="1F1C"):
        simulated("1F1C", SIZES, UNITS)
