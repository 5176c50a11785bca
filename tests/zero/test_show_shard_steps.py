"""The shards of each rank, as data and as a card: the formulas' numbers, the moves' words; before
any script."""

import json
import re

import pytest

from bookkit import shards
from coursekit.formulas import RECIPES, evaluate
from coursekit.topics.zero.moves import (
    STAGES,
    AllGather,
    AllReduce,
    Has,
    HeldPart,
    ReduceScatter,
    Update,
    follow_moves,
)
from coursekit.topics.zero.steps import (
    MICROBATCHES,
    RANKS,
    RECIPE,
    UNIT_LETTERS,
    encode,
    first_number,
    page_data,
    shard_steps,
)

EVERY = [
    (stage, ranks, microbatches)
    for stage in range(4)
    for ranks in RANKS
    for microbatches in MICROBATCHES
]


@pytest.mark.parametrize(("stage", "ranks", "microbatches"), EVERY)
def test_the_steps_are_the_moves_and_the_formulas(stage, ranks, microbatches):
    """Moves and pictures; bytes between steps and when backward is done, elements sent in all: to
    the digits that are printed.

    Mutations: a picture too late; whole gradients at the price of shards; an all-gather taken for
    an all-reduce."""
    steps = shard_steps(stage, ranks, microbatches)
    assert [step.move for step in steps] == [None, *STAGES[stage](len(UNIT_LETTERS), microbatches)]
    assert [step.picture for step in steps] == follow_moves(stage, len(UNIT_LETTERS), microbatches)
    psi = len(UNIT_LETTERS) * ranks
    given = dict(
        zero_stage=stage,
        data_parallel=ranks,
        rank=0,
        parameters=psi,
        accumulation_steps=microbatches,
    )
    recipe = RECIPES[RECIPE].quantities
    states = evaluate(
        ["zero_states_bytes", "zero_gradient_bytes"], allow_unused=True, **given, **recipe
    )
    sent = (
        evaluate(["zero_sent_bytes"], **given, parameter_element_bytes=1, gradient_element_bytes=1)[
            "zero_sent_bytes"
        ]
        / psi
    )
    found = [list(map(float, re.findall(r"\d+(?:\.\d+)?", step.detail))) for step in steps]
    done = (
        next(k for k, step in enumerate(steps) if isinstance(step.move, Update))
        - 1
        - len(UNIT_LETTERS) * (stage == 1)
    )
    assert found[done][0] == pytest.approx(states["zero_states_bytes"] / psi, rel=5e-3)
    assert found[0][0] == pytest.approx(
        (states["zero_states_bytes"] - states["zero_gradient_bytes"]) / psi, rel=5e-3
    )
    assert "sent nothing" in steps[0].detail and found[-1][-2] == found[-1][-1] == pytest.approx(
        sent, rel=5e-3
    )
    assert {numbers[1] for numbers in found} == {max(numbers[0] for numbers in found)}
    rising = [numbers[2] for numbers in found if len(numbers) == 4]
    assert rising == sorted(rising) and len(set(rising)) == sum(
        isinstance(step.move, (AllGather, AllReduce)) for step in steps
    )


def test_what_a_move_says():
    """Mutations: `keeps` where a shard is added; microbatch 1 twice; `whole` where parameters are
    refreshed; its number off by one."""
    two = [step.sentence for step in shard_steps(2, 4, 2)]
    assert (
        two[0]
        == "Before move 1 of 22: every rank has all parameters, and the optimizer states of its"
        " shard."
    )
    assert (
        two[3]
        == "Move 3 of 22: forward of unit C in microbatch 1. Each rank computes with examples of"
        " its own."
    )
    assert (
        two[4]
        == "Move 4 of 22: backward of unit C in microbatch 1. Each rank has all gradients of the"
        " unit now, from its own examples only."
    )
    assert (
        two[5]
        == "Move 5 of 22: reduce-scatter of unit C’s gradients. A rank keeps its shard of their"
        " mean and frees the rest."
    )
    assert (
        two[10]
        == "Move 10 of 22: forward of unit A in microbatch 2. Each rank computes with examples of"
        " its own."
    )
    assert (
        "backward of unit C in microbatch 2. Each rank has all" in two[13]
        and "adds its shard of their mean" in two[14]
    )
    assert two[20].endswith(
        "all-gather of unit A’s parameters. Each rank gets what the others have updated."
    )
    assert (
        "backward of unit C in microbatch 2. Each rank adds to its gradients of the unit"
        in shard_steps(1, 2, 2)[10].sentence
    )
    three = [step.sentence for step in shard_steps(3, 2, 1)]
    assert three[1].endswith(
        "all-gather of unit A’s parameters. For a moment every rank has them whole."
    )
    assert three[3].endswith(
        "unit A’s parameters are freed. A rank has only its shard of them again."
    )
    assert [three[first_number(3, 1)][:23]] == ["Move 22 of 22: the upda"]
    assert shard_steps(0, 2, 1)[5].sentence.endswith(
        "unit C’s gradients. Now every rank has their mean over all ranks."
    )


W, S, N = HeldPart.WHOLE, HeldPart.SHARD, HeldPart.NOTHING


@pytest.mark.parametrize(
    ("stage", "number", "cells"),
    [
        (1, 0, "222000111000"),
        (1, 4, "22C00D111000"),
        (1, 7, "22233b111000"),
        (1, 10, "FFF111111000"),
        (1, 11, "c55111111000"),
        (3, 1, "111000111c00"),
        (3, 11, "11100D11100C"),
        (3, 13, "11100b111000"),
        (0, 5, "22200c222000"),
        (0, 10, "CCC222222000"),
    ],
)
def test_cells_on_their_way_to_the_page(stage, number, cells):
    """Mutations: gathered among the parameters; hatched for solid; the mark of a collective at
    computing; marks of the move before."""
    assert encode(shard_steps(stage, 4, 1)[number]) == cells


def test_both_kinds_of_gradients_are_in_one_cell():
    """Mutation: whole gradients drawn over the shard of the first microbatch."""
    step = next(
        step for step in shard_steps(2, 4, 2) if step.picture[2] == Has(W, S, own=W, gradients=S)
    )
    assert encode(step) == "22C11E111000"


# --- the card -------------------------------------------------------------------------------------


def test_the_script_has_every_picture():
    """Once for all ranks what does not depend on them. Mutation: the details of two ranks for
    all."""
    call = r"BOOK\.steppers\.add\(BOOK\.steppers\.kinds\.shards\.unpack\((.*)\)\);\n"
    packed = json.loads(re.fullmatch(call, shards.script(), re.DOTALL)[1])
    for stage, ranks, microbatches in EVERY:
        pack = packed[
            f"stage {stage}, {microbatches} microbatch{'es' if microbatches == 2 else ''}"
        ]
        say = [
            [sentence, detail]
            for sentence, detail in zip(pack["sentences"], pack["details"][str(ranks)], strict=True)
        ]
        assert {**pack["all"], "shards": ranks, "say": say} == json.loads(
            json.dumps(page_data(stage, ranks, microbatches))
        )


def test_the_marks_are_the_moves():
    """A collective marks the cells of one unit that it fills. Mutation: an all-gather of stage 3
    marked among the parameters."""
    for stage in range(4):
        for step in shard_steps(stage, 4, 2):
            found = {
                (number // 3, number % 3)
                for number, letter in enumerate(encode(step))
                if letter in "abcdef"
            }
            if isinstance(step.move, (AllReduce, ReduceScatter, AllGather)):
                column = (3 if stage == 3 else 0) if isinstance(step.move, AllGather) else 1
                assert found == {(column, step.move.unit)}
            else:
                assert not found
