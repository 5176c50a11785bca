"""The shards of each rank, as data and as a card: the formulas' numbers, the moves' words; before
any script."""

import json
import re

import pytest
from solved import Given

from bookkit import shards
from coursekit.formulas import RECIPES
from coursekit.topics.zero import moves
from coursekit.topics.zero.steps import (
    MICROBATCHES,
    RANKS,
    RECIPE,
    UNIT_LETTERS,
    encode,
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
    """Mutations: a picture too late; whole gradients at the price of shards; an all-gather taken
    for an all-reduce."""
    steps = shard_steps(stage, ranks, microbatches)
    assert [step.move for step in steps] == [
        None,
        *moves.STAGES[stage](len(UNIT_LETTERS), microbatches),
    ]
    assert [step.picture for step in steps] == moves.follow_moves(
        stage, len(UNIT_LETTERS), microbatches
    )
    psi = len(UNIT_LETTERS) * ranks
    given = dict(
        zero_stage=stage,
        data_parallel=ranks,
        rank=0,
        parameters=psi,
        accumulation_steps=microbatches,
    )
    recipe = RECIPES[RECIPE].quantities
    states = Given(**given, **recipe)
    sent = Given(**given, parameter_element_bytes=1, gradient_element_bytes=1).zero_sent_bytes / psi
    found = [list(map(float, re.findall(r"\d+(?:\.\d+)?", step.detail))) for step in steps]
    done = (
        next(k for k, step in enumerate(steps) if isinstance(step.move, moves.Update))
        - 1
        - len(UNIT_LETTERS) * (stage == 1)
    )
    assert found[done][0] == pytest.approx(states.zero_states_bytes / psi, rel=5e-3)
    assert found[0][0] == pytest.approx(
        (states.zero_states_bytes - states.zero_gradient_bytes) / psi, rel=5e-3
    )
    assert "sent nothing" in steps[0].detail and found[-1][-2] == found[-1][-1] == pytest.approx(
        sent, rel=5e-3
    )
    assert {numbers[1] for numbers in found} == {max(numbers[0] for numbers in found)}
    rising = [numbers[2] for numbers in found if len(numbers) == 4]
    assert rising == sorted(rising) and len(set(rising)) == sum(
        isinstance(step.move, (moves.AllGather, moves.AllReduce)) for step in steps
    )


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
            if isinstance(step.move, (moves.AllReduce, moves.ReduceScatter, moves.AllGather)):
                column = (3 if stage == 3 else 0) if isinstance(step.move, moves.AllGather) else 1
                assert found == {(column, step.move.unit)}
            else:
                assert not found
