"""Rows of tables.py behind the doors of all techniques: users do them, and rows.md lists them.

By day one of the doors of a line, another in each line; at night all."""

import copy
import re
from functools import partial
from pathlib import Path

import pytest
import tables
import torch
from tables import CORES, DOORS, REPLICAS, RIGHT, STAGES, check, two_steps
from torch import nn
from torch.optim import SGD

from shardlab.mesh import Mesh
from shardlab.mixed_precision import MasterWeights
from shardlab.zero.hardened import stage1, stage2
from shardlab.zero.hardened.offload import cpu_offload


class Copies(MasterWeights):
    """Copies of float64, where MasterWeights would need none."""

    def copy_of(self, parameter):
        return nn.Parameter(parameter.detach().clone())


def stage_1_on_a_mesh(own):
    return stage1.ShardedOptimizer(own, SGD, Mesh(dp=1, pp=2).dp.group)


NAMES = {  # of arguments in rows.md
    **vars(tables),
    **dict(torch=torch, copy=copy, cpu_offload=cpu_offload, MasterWeights=MasterWeights),
    "PLAIN": partial(SGD, lr=0.1),
    "COPIES": partial(MasterWeights, of=SGD, lr=0.1),
    "COPIES_IN_FP64": partial(Copies, of=SGD, lr=0.1),
    "HOSTED": partial(cpu_offload(SGD), lr=0.1),
    "STAGE_1": partial(stage1.ShardedOptimizer, optimizer_cls=SGD, lr=0.1),
    "STAGE_2": partial(stage2.ShardedOptimizer, optimizer_cls=SGD, lr=0.1),
    "STAGE_1_ON_A_MESH": stage_1_on_a_mesh,
}


def called(text: str) -> partial:
    """The row of a heading, `made_before(COPIES, torch.bfloat16)`, without its door."""
    name, arguments = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
    return eval(f"given({arguments})", {**NAMES, "given": lambda *a, **k: (NAMES[name], a, k)})


def rows(text: str) -> list:
    found = []
    for part in text.split("\n## ")[1:]:
        heading, *lines = filter(None, part.splitlines())
        if "Muon" in heading and not hasattr(torch.optim, "Muon"):
            continue  # torch 2.8
        row, args, settings = called(heading)
        for number, line in enumerate(lines, len(found)):
            names, sentence = line.removeprefix("- ").split(": ", 1)
            doors = names.split(", ")
            for door in doors:
                work = partial(row, **settings) if settings else row
                kind = "stages" if door in STAGES else "the other doors"
                marks = [pytest.mark.xdist_group(f"rows of {kind}")]
                if door != doors[number % len(doors)]:
                    marks.append(pytest.mark.nightly)
                case = (door, work, args, sentence)
                found.append(pytest.param(*case, id=f"{door} {heading}"[:60], marks=marks))
    return found


ROWS = rows((Path(__file__).parent / "rows.md").read_text("utf-8"))


@pytest.mark.parametrize("door, row, args, expected", ROWS)
def test_a_row(worlds, door, row, args, expected):
    """Must catch: what the row says."""
    check(worlds(2, patience_seconds=30), door, row, args, expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("door", [*REPLICAS, *STAGES, *CORES])
def test_two_steps(worlds, door, n):
    """On one rank and on three. Must catch: a ring that sends to itself; what the row says."""
    check(worlds(n), door, two_steps, (), RIGHT)


def test_rows_name_doors_and_functions():
    """Must catch: a line that is read as another, so that a row runs behind fewer doors."""
    read = rows("\n## made_before(PLAIN, torch.bfloat16)\n\n- server, stage 1: TypeError: no: 1\n")
    assert [case.values[0] for case in read] == ["server", "stage 1"]
    assert read[0].values[2:] == ((NAMES["PLAIN"], torch.bfloat16), "TypeError: no: 1")
    assert len(ROWS) > 360 and {case.values[0] for case in ROWS} <= set(DOORS)
