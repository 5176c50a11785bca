"""The pictures of ZeRO say what formulas, the simulated step and PyTorch say."""

from math import prod

import pytest
import torch
from pages import words
from solved import Given

from coursekit.formulas import quantities
from coursekit.show.format import format_as
from coursekit.topics.zero import pictures
from shardlab.zero.hardened.flat import chunk_of


def test_the_bars_are_the_formulas():
    """Must catch: 4Ψ + 12Ψ/d drawn for stage 2, or a bar whose parts are not its sum."""
    psi, d = pictures.FIVE["parameters"], pictures.FIVE["data_parallel"]
    kept = [16 * psi, 4 * psi + 12 * psi / d, 2 * psi + 14 * psi / d, 16 * psi / d]
    shown = words(pictures.draw_stages())
    for each, expected in zip(pictures.four_stages(), kept, strict=True):
        assert each["zero_states_bytes"] == expected == sum(each[name] for name in pictures.KINDS)
        assert format_as(expected, "decimal bytes") in shown
        assert f"sends {format_as(each['zero_sent_bytes'], 'decimal bytes')}" in shown


def test_the_step_ends_where_the_formula_says():
    """Must catch: another step than the chapter computes; a unit numbered in the wrong order."""
    found, values = pictures.stage_3_step()
    given = quantities(**pictures.FIVE, **pictures.STAGE_3)
    seconds = Given(**given).zero_step_seconds
    assert max(end for *_, end in found) == pytest.approx(seconds, rel=1e-12)
    units = values["zero_flat_tensors"]
    for name, order in (("forward", range(units)), ("backward", range(units - 1, -1, -1))):
        assert [unit for what, _, unit, _, _ in found if what == name] == list(order)
    started = {(name, phase, unit): start for name, phase, unit, start, _ in found}
    ended = {(name, phase, unit): end for name, phase, unit, _, end in found}
    for (name, phase, unit), start in started.items():
        if name in ("forward", "backward"):
            assert ended["gather", phase, unit] <= start


def test_memory_beneath_is_shards_and_whole_units():
    """Must catch: gradients that go before they are reduced, gathered parameters that stay."""
    found, values = pictures.stage_3_step()
    held = pictures.held_over_time(found, values)
    assert held[-1][1:] == (0, 0) and min(min(each[1:]) for each in held) >= 0
    unit = values["parameters"] / values["zero_flat_tensors"] * values["parameter_element_bytes"]
    assert {round(each[1] / unit) for each in held} <= {0, 1, 2}
    alone = Given(
        parameter_element_bytes=values["parameter_element_bytes"],
        gradient_element_bytes=values["gradient_element_bytes"],
        zero_unit_parameters=values["parameters"] // values["zero_flat_tensors"],
    ).zero_unit_backward_bytes
    most = max(each[1] + each[2] for each in held)
    assert most == pytest.approx(alone + unit, rel=1e-9)
    shown = words(pictures.draw_stage_3())
    assert format_as(values["zero_states_bytes"] + most, "decimal bytes") in shown


def test_the_flat_cut_is_the_one_that_runs():
    """Must catch: padding, or a border at the end of a parameter."""
    flat = [rank for owners in pictures.flat_owners().values() for rank in owners]
    for rank in range(pictures.CUT_RANKS):
        chunk = chunk_of(rank, len(flat), pictures.CUT_RANKS)
        assert [place for place, owner in enumerate(flat) if owner == rank] == list(chunk)


def test_the_cut_by_rows_is_torchs():
    """Must catch: rows dealt out one by one, or evenly."""
    for name, shape in pictures.CUT_UNIT.items():
        chunks = torch.arange(prod(shape)).reshape(shape).chunk(pictures.CUT_RANKS)
        want = [rank for rank, chunk in enumerate(chunks) for _ in range(chunk.numel())]
        assert pictures.row_owners()[name] == want
        padded = pictures.CUT_RANKS * chunks[0].numel() - prod(shape)
        assert pictures.padded_rows()[name] == padded
