"""The explorers as data: where they start, what follows from a move, what is said. The browser
tests compare the page with these."""

import re
from dataclasses import replace

import pytest
from reader import Hand, swept
from told import valued

from coursekit.formulas import BOOK, InvalidQuantity, evaluate
from coursekit.show.explorers import EXPLORERS
from coursekit.show.format import STYLES, format_to_type, parse_number
from coursekit.show.links import AtLeast, AtMost, Divides
from coursekit.show.pictures import MemoryBar
from coursekit.show.spec import PRESETS, ExplorerTable, Say
from coursekit.show.stops import powers_of_two, steps_of_ten

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


@pytest.mark.parametrize(("card", "found"), [(100, (36, 0, 1)), (64, (0, 0, 1)), (63, (0, 1, 0))])
def test_a_bar_knows_its_card(card, found):
    """A card that is larger, just large enough, a byte too small. Mutation: free and missing
    exchanged; a card that is filled to the last byte refused."""
    bar = MemoryBar("", (), total="states_bytes", capacity="gpu_memory_bytes")
    room = bar.of_card(dict(states_bytes=64, gpu_memory_bytes=card))
    assert tuple(room[name] for name in ("free_bytes", "missing_bytes", "fits")) == found


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


def test_the_sentence_of_the_start():
    """Mutation: print GiB as GB, drop `when`, or take the spare bytes for those that are over."""
    said = lambda values: FITS.say(FITS.compute(values))
    assert said(FITS.start()) == (
        "One GPU needs 108 GB (100 GiB) for model states, 22.7 GB more than it has. Share each copy"
        " between at least 2 GPUs."
    )
    assert said(FITS.move(FITS.start(), "gpus_per_copy", 2)) == (
        "Each of the 2 GPUs that share a copy needs 53.9 GB (50.2 GiB) for model states; 31.2 GB"
        " are left for activations, temporaries and buffers."
    )
    adam = FITS.compute(FITS.choose(FITS.start(), "recipe", "fp32 Adam"))
    assert "master" not in FITS.say_detail(adam)


def test_the_sentences_of_the_memory_explorers():
    """Mutations: the points' words one place off; GiB and GB exchanged; `gradients 0 B` said where
    there are none yet."""
    shown = MEMORY.compute(GPT2)
    assert shown["peak_bytes"] == shown["loss_peak_bytes"]
    assert MEMORY.say(shown) == (
        "One GPU holds 59.6 GiB (64.0 GB) at its peak, at the backward of the loss; it fits a"
        " card of 85.1 GB with 21.0 GB to spare, before libraries, the CUDA context and what the"
        " allocator rounds up."
    )
    detail = MEMORY.say_detail(shown)
    assert "optimizer states 12.5 GB, no gradients yet, activations 42.1 GB, " in detail
    words = ["on the way forward", "of the loss", "of the head", "of a layer", "of the embedding"]
    for point, text in enumerate([*words, "optimizer's step"], 1):
        assert f"{text}; " in MEMORY.say({**shown, "peak_point": point})
    large = MEMORY.compute(MEMORY.start())
    assert ", 79.8 GB more than the GPU has, before libraries" in MEMORY.say(large)
    dropped = MEMORY.compute(MEMORY.move(GPT2, "dropout", 0.1))
    assert "Dropout works on the attention scores" in MEMORY.say_detail(dropped)
    assert dropped["keeps_scores"] == 1
    without = dict(master_element_bytes=0)
    for changes, total, states in (
        ({}, 16, ", 4 for the optimizer's master copy, 4 and 4 for the optimizer's moments."),
        (without | dict(optimizer_moments=1), 8, ", 4 for the optimizer's moment."),
        (without | dict(optimizer_moments=0), 4, "."),
    ):
        said = f"Each parameter takes {total} bytes: 2 for itself, 2 for its gradient{states}"
        assert BYTES.say(BYTES.compute({**BYTES.start(), **changes})) == said


def test_positions_follow_a_long_sequence():
    """Mutations: the table cut to a short sequence; a model chosen later that brings its own short
    table."""
    chosen = {"model": "GPT-2 1.5B"}
    long = MEMORY.move(GPT2, "sequence", 8192, chosen)
    assert long["max_sequence"] == 8192
    assert MEMORY.move(long, "sequence", 128, chosen)["max_sequence"] == 1024
    assert MEMORY.choose(long, "model", "Llama 7B")["max_sequence"] == 8192
    assert MEMORY.choose(GPT2, "model", "Llama 7B")["max_sequence"] == 2048
    link = AtLeast("max_sequence", "sequence")
    assert link.follow(dict(sequence="many"), ["sequence"], dict(max_sequence=1)) == {}


def test_a_switch_takes_the_one_that_it_needs_along():
    """Mutation: the follower pulled down when it moves up; a comparison of text with a number."""
    tensor = EXPLORERS["tensor-parallel"]
    on = tensor.move(tensor.start(), "regather", 1)
    assert (on["regather"], on["sequence_parallel"]) == (1, 1)
    off = tensor.move(on, "sequence_parallel", 0)
    assert (off["regather"], off["sequence_parallel"]) == (0, 0)
    alone = tensor.move(tensor.start(), "sequence_parallel", 1)
    assert (alone["regather"], alone["sequence_parallel"]) == (0, 1)
    link = AtMost("regather", "sequence_parallel")
    for odd in ("many", float("nan")):
        assert link.follow(dict(regather=odd, sequence_parallel=0), ["regather"], {}) == {}
    count = AtMost("pipeline_parallel", "accumulation_steps", least=1)
    none = dict(pipeline_parallel=2, accumulation_steps=0)
    assert count.follow(none, ["accumulation_steps"], {}) == {"pipeline_parallel": 1}


def test_a_preset_sets_what_is_an_input():
    """Mutation: forget the inputs that follow from a preset; GPT-3 would leave the parameters of
    the model before it."""
    memory = {"gpu_memory_bytes": 15_835_660_288}
    assert FITS.preset("gpu", "T4") == memory
    assert HOW_LONG.preset("gpu", "T4") == {**memory, "flops_per_second": 65e12}
    assert HOW_LONG.preset("model", "GPT-2 124M") == {"parameters": 124_439_808}
    chosen = HOW_LONG.choose(HOW_LONG.start(), "model", "GPT-2 124M")
    assert chosen == {**HOW_LONG.start(), "parameters": 124_439_808}


def test_a_ratio_follows_the_chosen_preset():
    """Mutation: take the ratio of the current values (it drifts while one drags), or round down to
    0 heads."""
    assert FITS.move(FITS.start(), "hidden", 5120)["feed_forward"] == 13_760
    grouped, chosen = FITS.choose(FITS.start(), "model", "Llama 2 70B"), {"model": "Llama 2 70B"}
    assert FITS.move(grouped, "heads", 24, chosen)["key_value_heads"] == 3
    assert FITS.move(grouped, "heads", 2, chosen)["key_value_heads"] == 1


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


@pytest.mark.parametrize(
    "name, moves, found",
    valued("test_show_explorers::test_what_must_divide_follows_the_hand", globals()),
)
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


def test_a_divisor_too_far_away_is_not_looked_for():
    """A prime number of columns is divided by 1 and by itself.

    Must catch: a page that hangs after someone typed 9e15 heads and then a prime number."""
    link = Divides("heads", "hidden")
    for heads, found in (
        (300_000, {}),
        (50_000, dict(heads=1)),
        (9 * 10**15, dict(heads=1_000_003)),
    ):
        assert link.follow(dict(heads=heads, hidden=1_000_003), ["hidden"], {}) == found


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


def test_a_refused_row_says_why():
    """Mutation: let the exception through; the build would stop because of one preset."""
    table = ExplorerTable("", "gpu", (("memory, GB", "gpu_memory_bytes", "GB"),))
    refused = replace(FITS, name="refused", begin={**FITS.begin, "heads": 7}, table=table)
    assert dict(refused.rows())["T4"] == [
        "heads = 7 does not divide hidden = 4,096: every head takes hidden / heads columns, so"
        " heads must divide hidden."
    ]


def test_the_beginning_of_an_explorer_stays():
    """Must catch: the dict of a topic handed out as it is, so that one page changes the next."""
    with pytest.raises(TypeError):
        FITS.begin["gpus_per_copy"] = 7


def test_pieces_of_a_sentence():
    """Mutation: treat `unless` as `when`, or say a piece when only one of its conditions holds."""
    values = dict(fits=1, gpus_per_copy=1, gpus=1)
    assert Say("{gpus:exact} GPU{gpus:s}").said(values) == "1 GPU"
    assert Say("{gpus:exact} GPU{gpus:s}").said({**values, "gpus": 2}) == "2 GPUs"
    assert Say("x", when=(("fits", 1), ("gpus_per_copy", 2))).said(values) == ""
    assert Say("x", unless=(("fits", 0), ("gpus_per_copy", 1))).said(values) == ""
    assert Say("x", when=(("fits", 1),), unless=(("gpus_per_copy", 2),)).said(values) == "x"


def test_stops():
    """Mutation: stop one short of the end."""
    assert powers_of_two(1, 1024) == tuple(2**k for k in range(11))
    assert powers_of_two(4, 60) == (4, 8, 16, 32)
    assert steps_of_ten(1, 2) == (10, 15, 20, 30, 50, 70, 100)
