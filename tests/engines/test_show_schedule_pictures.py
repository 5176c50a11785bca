"""The picture of a pipeline's schedule: what goes to the page is the list that ranks run, what is
said is what is simulated, and the plotly figure draws the same spans."""

import re

import pytest
from told import from_told

from bookkit.schedules import LEFT, RIGHT, WIDTH, drawing, sentence, simulated
from coursekit.show.explorers import EXPLORERS
from coursekit.topics.pipelines.schedule_picture import SIMULATED_WORDS

SPEC = EXPLORERS["schedule"]
PICTURE = SPEC.pictures[0]


def moved(**changes):
    """The explorer's numbers after these moves."""
    values = SPEC.start()
    for quantity, value in changes.items():
        values = (
            SPEC.choose(values, quantity, value)
            if quantity in ("schedule", "stage_seconds")
            else SPEC.move(values, quantity, value)
        )
    return SPEC.compute(values)


@pytest.mark.parametrize("name", SPEC.menus[0].names)
def test_the_start_is_as_by_formula(name):
    """Must catch: a share over ranks and seconds that leaves the ranks out; idle time of one rank
    for the mean; a formula that is said to agree where it does not."""
    shown = moved(schedule=name)
    found = PICTURE.derived(shown)
    assert set(found) == set(SIMULATED_WORDS)
    assert found["simulated_idle_seconds"] == pytest.approx(shown["pipeline_idle_seconds"])
    assert found["simulated_share_of_total"] == pytest.approx(shown["bubble_share_of_total"])
    assert found["simulated_share_of_ideal"] == pytest.approx(shown["bubble_share_of_ideal"])
    assert found["first_in_flight"] == shown["pipeline_in_flight"] and found["as_by_formula"] == 1
    assert "The formula gives the same numbers." in SPEC.say_detail(shown)


def test_messages_and_a_slow_rank_are_simulated():
    """Must catch: a last rank whose every stage is slow; messages that take no time; a sentence
    that still says that the formula agrees."""
    for changes in (dict(transfer_seconds=0.005), dict(last_rank_share=1.5)):
        shown = moved(**changes)
        assert PICTURE.derived(shown)["as_by_formula"] == 0
        assert "it knows no messages" in SPEC.say_detail(shown)
    for name in ("1F1B", "interleaved 1F1B, v = 4"):
        busy = PICTURE.timeline(moved(schedule=name, last_rank_share=1.5)).busy
        assert busy == pytest.approx([0.24, 0.24, 0.24, 0.36])


GRID = dict(ranks=4, microbatches=8)


@from_told("line, words")
def test_a_grid_in_words(line, words):
    """Must catch: a share of one rank; settings of one line that the next line has, too; a stage of
    an interleaved rank as long as the rank's whole."""
    said = sentence(simulated(line, GRID))
    assert words in said.replace("26.3", "26.25")


def test_boxes_are_to_scale():
    """Must catch: a scale for each grid; boxes of an action that is not there; a box whose place is
    told from the beginning of another row."""
    grids = [simulated(name, GRID) for name in ("1F1B", "zero-bubble H1")]
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
