"""The explorers as data: where they start, what follows from a move, what is said; told.md has rows
of each. The browser tests compare the page with these."""

import re

import pytest
from reader import Hand, swept
from told import from_told, valued

from coursekit.formulas import BOOK, InvalidQuantity, evaluate
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import STYLES, format_to_type, parse_number
from coursekit.show.spec import PRESETS

LONG = "fits-and-how-long"
FITS, HOW_LONG = EXPLORERS["does-it-fit"], EXPLORERS[LONG]
MEMORY, BYTES = EXPLORERS["where-the-memory-goes"], EXPLORERS["bytes-per-parameter"]
GPT2 = MEMORY.choose(MEMORY.start(), "model", "GPT-2 1.5B")


@pytest.fixture(params=EXPLORERS.values(), ids=EXPLORERS)
def explorer(request):
    return request.param


def test_everything_named_exists(explorer):
    """Mutation: misspell a quantity, a style, a colour or a preset in a specification."""
    from coursekit.show.palette import MEMORY, TIMELINE

    controls = [control.quantity for control in explorer.controls]
    assert len(set(controls)) == len(controls) and (2 <= len(controls) <= 6 or explorer.groups)
    for name in (*controls, *explorer.targets, *explorer.outputs, *explorer.why):
        BOOK.find(name)
    assert set(explorer.why) <= set(explorer.formulas)
    grouped = [name for group in explorer.groups for name in group.quantities]
    assert set(grouped) <= set(controls) and len(set(grouped)) == len(grouped)
    for control in explorer.controls:
        assert control.style in STYLES and list(control.stops) == sorted(set(control.stops))
        assert all(
            parse_number(format_to_type(stop, control.style), control.style) == stop
            for stop in control.stops
        )
        BOOK.validate(**{control.quantity: control.stops[0]})
        BOOK.validate(**{control.quantity: control.stops[-1]})
    for picture in explorer.pictures:
        kinds = ("memory", "timeline", "time", "curves", "streams", "schedule")
        assert picture.kind in kinds
        for event, words, colour in getattr(picture, "colours", ()):
            palette, _, name = colour.partition("-")
            names = dict(memory=MEMORY, timeline=TIMELINE)[palette]
            assert name.replace("-", "_") in names, (event, words)
        assert all(part.colour in MEMORY for part in getattr(picture, "parts", ()))
        assert all(
            part.colour in MEMORY
            for column in getattr(picture, "columns", ())
            for part in column.parts
        )
    assert all(style in STYLES for _, _, style, *_ in explorer.table.columns)
    assert {menu.kind for menu in explorer.menus} <= set(PRESETS)


def test_the_parts_of_a_bar_are_the_whole(explorer):
    """Mutation: leave a part out of the bar, or swap what is free and what is missing."""
    shown = explorer.compute(explorer.start())
    bar = explorer.pictures[0]
    if bar.kind != "memory":
        return
    assert sum(shown[part.quantity] for part in bar.parts) == shown[bar.total]
    if bar.capacity:
        held, need = shown[bar.capacity], shown[bar.total]
        assert held + shown["missing_bytes"] == need + shown["free_bytes"]
    for picture in explorer.pictures:
        for column in picture.shown(shown) if picture.kind == "timeline" else ():
            assert sum(shown[part.quantity] for part in column.parts) == shown[column.total]


def test_lines_and_columns_with_a_given_value():
    """Mutation: the reader's stage in all lines; one line's value in the next; the value that was
    given to a column left for the columns after it."""
    for name, quantity in (("zero", "zero_states_bytes"), ("zero-time", "zero_sent_bytes")):
        spec = EXPLORERS[name]
        _, picture = spec.pictures
        names = [f"{quantity}(zero_stage={stage})" for stage in range(4)]
        assert [line.name for line in picture.lines] == names
        for reader in (0, 2):
            computed = spec.compute(spec.move(spec.start(), "zero_stage", reader))
            for stop, values in swept(spec, picture, computed).items():
                for line in picture.lines:
                    given = {name: computed[name] for name in spec.inputs}
                    given.update({picture.sweep: stop, **dict(line.given)})
                    found = evaluate([quantity], allow_unused=True, **given)
                    assert values[line.name] == found[quantity]
    row = dict(EXPLORERS["zero"].rows())["Llama 7B"]
    stages = [float(text) for text in row[1:5]]
    assert stages == sorted(stages, reverse=True) and len(set(stages)) == 4 and row[5] == "yes"


def test_they_start_with_a_question(explorer):
    """Mutation: start with a model that fits and has nothing to say."""
    shown = explorer.compute(explorer.start())
    if "states_bytes_per_gpu" in shown:
        assert shown["fits"] == 0
        assert "more than it has. Share each copy between at least" in explorer.say(shown)
    assert set(explorer.start()) == set(explorer.inputs)


@pytest.mark.parametrize("value", ["many", 2.5, 0, -4, float("nan"), 2**53])
def test_nothing_follows_what_is_refused(value):
    """Mutation: drop the check in _whole; text would raise a TypeError, and NaN would spread."""
    moved = FITS.move(FITS.start(), "hidden", value)
    assert moved["feed_forward"] == FITS.start()["feed_forward"]
    gpus = HOW_LONG.move(HOW_LONG.start(), "gpus", value)
    assert gpus["data_parallel"] == HOW_LONG.start()["data_parallel"]
    with pytest.raises(InvalidQuantity):
        FITS.compute(moved)


def from_every_preset(explorer):
    """(chosen presets, values): the start, and each preset of each menu instead of its own."""
    yield {}, explorer.start()
    for menu in explorer.menus:
        for name in menu.names:
            yield {menu.kind: name}, explorer.choose(explorer.start(), menu.kind, name)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_control_never_refuses_its_own_stops(explorer, every):
    """Must catch: a link left out of an explorer; a follower that stays where it divides nothing,
    or that is moved although its own control was; a model chosen that the rest does not follow."""
    for chosen, values in [*from_every_preset(explorer)][::every]:
        for control in explorer.controls:
            for stop in control.stops:
                moved = explorer.move(values, control.quantity, stop, chosen)
                assert moved[control.quantity] == stop
                BOOK.validate(**moved)
            explorer.compute(moved)


@from_told("name, moves, found", valued)
def test_what_must_divide_follows_the_hand(name, moves, found):
    """Must catch: the first divisor found below, not the nearest; a multiple rounded up where the
    one below is nearer; a chain that ends after one link, such as key-value heads without heads;
    GPUs of a copy that follow where they divide; a quotient that is rounded."""
    hand = Hand(EXPLORERS[name], EXPLORERS[name].start(), EXPLORERS[name].chosen_at_start())
    if name == "where-the-memory-goes":
        hand.choose("model", "GPT-2 1.5B")
    for quantity, value in moves.items():
        hand.move(quantity, value)
    assert {quantity: hand.values[quantity] for quantity in found} == found
    hand.spec.compute(hand.values)


def test_what_followed_is_said():
    """Must catch: a recipe that loses its adapters without a word. (What the page says of it:
    test_page_and_python_say_the_same.)"""
    hand = Hand(rank := EXPLORERS["rank-of-any-layout"], rank.start(), rank.chosen_at_start())
    hand.choose("recipe", "QLoRA, rank 16")
    hand.move("tensor_parallel", 2)
    assert hand.along == " Moved along: the recipe's adapter rank to 0."


def test_the_table_has_a_row_for_every_preset(explorer):
    """Mutation: skip the rows that are refused, or print a unit in the cell although the head has
    it."""
    rows = dict(explorer.rows())
    menu = next(menu for menu in explorer.menus if menu.kind == explorer.table.kind)
    assert tuple(rows) == menu.names
    assert all(len(texts) == len(explorer.table.columns) and all(texts) for texts in rows.values())
    assert not any(re.search(r"\d (GB|GiB)$", text) for texts in rows.values() for text in texts)
    assert dict(FITS.rows())["Llama 7B"] == ["6.74B", "108", "no", "2"]
