"""Wrong predictions hear their cause, and right ones are never blamed."""

import json
from pathlib import Path

import pytest
from pages import ROOT
from refusals import begins
from told import from_told, sample

from coursekit.exercises.predictions import Predictions
from coursekit.exercises.slips import cause
from coursekit.exercises.wrong_numbers import Slip, Slips, slips_in, slips_of
from shardlab.pipelines.schedules import one_f_one_b, zero_bubble_h1
from shardlab.pipelines.simulation import Costs, simulate

LABS = sorted((ROOT / "labs").glob("*.ipynb"))
TOPICS = ROOT / "src" / "coursekit" / "topics"
LISTS = [slips_in(path.read_text("utf-8")) for path in TOPICS.glob("*/predictions.md")]
SLEEP = Costs(20, 20, 20)  # lab 8's, in milliseconds
# What is timed, on an idle machine: a lab may be stored on a busy one.
IDLE = {
    "1F1B asleep, milliseconds": simulate(one_f_one_b(4, 8), SLEEP).seconds,
    "H1 asleep, milliseconds": simulate(zero_bubble_h1(4, 8), SLEEP).seconds,
    "waiting that overlap saves, percent": 90,
}


def measured_by(lab: Path) -> dict[str, float]:
    """Numbers that the table at the lab's end, as it is stored, calls measured, by their name."""
    outputs = [
        "".join(output.get("data", {}).get("text/markdown", ""))
        for cell in json.loads(lab.read_text("utf-8"))["cells"]
        for output in cell.get("outputs", ())
    ]
    table = [text for text in outputs if "predicted / measured" in text][-1].split("\n\n")[0]
    rows = [line.strip("| ").replace("\\", "").split(" | ") for line in table.splitlines()[2:]]
    measured = {row[0]: float(row[2].replace(",", "")) for row in rows if row[2] != "–"}
    return {name: IDLE.get(name, number) for name, number in measured.items()}


MEASURED = [measured_by(lab) for lab in LABS]


def test_each_list_is_of_one_lab():
    """Must catch: slips of a prediction that no lab locks, under an old name of it; a name in the
    lists of two topics, so that one of them is never read."""
    locked = {name for measured in MEASURED for name in measured}
    listed = [name for one in LISTS for name in one]
    assert sorted(set(listed)) == sorted(listed) and set(listed) <= locked


@pytest.mark.parametrize("known", MEASURED, ids=[lab.stem for lab in LABS])
def test_each_slip_is_heard_and_no_right_number_is_blamed(known):
    """Must catch: a slip that another one hides, or that is near the right number; a number in two
    digits called wrong; times of a lab that was stored on a busy machine."""
    for name, right in known.items():
        within = min(0.03, slips_of(name).within or 0.03)
        for near in (right, 1.01 * right, 0.99 * right, float(f"{right:.2g}")):
            if abs(near - right) <= within * abs(right):
                assert cause(name, near, right, known) == "", (name, near)
        for slip in slips_of(name).slips:
            first, last = slip.ends(right, known)
            several = [first + share * (last - first) for share in (0, 0.03, 0.3, 0.9, 1)]
            heard = {cause(name, wrong, right, known) for wrong in several}
            assert slip.sentence in heard, (name, several, right, heard)


def slip(sentence: str, *ends: float) -> Slip:
    """A slip with one number, or all between two."""
    return Slip(sentence, tuple((0, end) for end in ends))


FOURS = Slip("four.", ((4, 0),)), Slip("four and a bit.", ((4.1, 0),))
OTHERS = Slip("the other one.", ((2, 0),), "other"), Slip("less.", ((1, 30),), "other")
OWN = Slips((OTHERS[0], *FOURS, OTHERS[1]), ranks=4)
EXACT = Slips((slip("the sum.", 1_111),), within=0, general=False)
LISTED = slip("ten.", 10), slip("thirties.", 30, 39)
MANY = Slips((*LISTED, slip("less.", 1, 90)), ranks=4, within=0.01)


def test_a_number_that_stands_for_a_thing_has_no_ratio(tmp_path):
    """Must catch: a ratio shown of a number that stands for a thing."""
    predictions = Predictions("lab", tmp_path)
    name = "tensor-parallel ranks of the fastest"
    predictions.lock(name, 8)
    assert predictions.compare(name, 4).rows[0][-1] == "–"


KEPT = Slips((Slip("fast.", ((0.1, 0), (0.2, 0))), slip("near.", 150, 300)))


@from_told("name, predicted, measured, known, slips, words")
def test_the_slip_behind_a_number(name, predicted, measured, known, slips, words):
    """Must catch: a cause taken out, or said of numbers that are far from it; the factor of the
    ranks said where nobody shares; what is timed called wrong because it is twice as fast; the
    first of the list said, or the general one before the quantity's own; the number of another
    prediction that is not measured yet taken for zero; 1,112 said to be the 1,111 of a slip where
    the number is exact; a sentence that is true of many numbers hides that of one among them, or
    the right number, or is said beyond its end; causes of one number of
    which only the first is said; a range that hides a number, or has a wider end; a rough guess in
    another unit that hears nothing."""
    said = cause(name, predicted, measured, known, slips)
    assert begins(said, words) and bool(words) == bool(said)


@from_told("name, predicted, words")
def test_a_number_of_no_slip_hears_what_moves_it(name, predicted, words):
    """Must catch: a number between the listed ones that hears nothing, or that of any quantity."""
    (known,) = (measured for measured in MEASURED if name in measured)
    assert words in cause(name, predicted, known[name], known)


def test_the_cause_stands_below_the_table(tmp_path):
    """Must catch: a sentence that stays with the predictions and comes again in the last table;
    two sentences that do not say of which number they are."""
    predictions = Predictions("01-lab", tmp_path)
    for name, number in {"a, bytes": 25, "b, bytes": 400, "c, bytes": 100}.items():
        predictions.lock(name, number)
    table = predictions.compare(dict.fromkeys(("a, bytes", "b, bytes", "c, bytes"), 100))
    first, second = table.below
    assert first.startswith("a, bytes: A quarter of") and second.startswith("b, bytes: 4 times")
    assert repr(table).endswith(f"\n{first}\n{second}")
    assert table._repr_markdown_().endswith(f"\n\n{first}\n\n{second}")
    (alone,) = predictions.compare("a, bytes", 100).below
    assert alone == first.removeprefix("a, bytes: ")
    assert predictions.summary().below == []


TEXT = sample("predictions.md")


def test_slips_are_text():
    """Must catch: a colon or comma that ends a number, a range whose ends are of two kinds, a line
    that goes on cut off, what is said of one prediction taken for the next one's."""
    slips = (
        Slip("Less: two are missing.", ((1, -4_000),)),
        *(slip("One", 1_999), Slip("One", ((1 / 3, 0),))),
        *(Slip("Many.", ((10, 0), (20, 0))), slip("Many.", -3, 1e9)),
        Slip("Another's.", of="a: b, c"),
    )
    assert slips_in(TEXT) == {"peak, bytes": Slips(slips, 4, "", 0, False), "rest": Slips()}
    assert [slip.ends(9_000, {}) for slip in slips[3:]] == [(90_000, 180_000), (-3, 1e9), None]
    for wrong in "- 4 is it|- x: It.|- 4 fold: It.|ranks four|alike 2".split("|"):
        with pytest.raises(ValueError, match="^predictions.md, peak: "):
            slips_in(f"## peak\n\n{wrong}\n")
