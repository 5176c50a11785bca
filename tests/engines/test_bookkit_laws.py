"""Short formulas that the registry confirms while the book is built."""

import ast
import re
from pathlib import Path

import pytest

from bookkit.formulas import WrongCall
from bookkit.laws import confirm, typeset

ROOT = Path(__file__).resolve().parents[2]
STAGE_1 = 'zero_states_bytes(recipe="bf16 + fp32 master", rank=0, zero_stage=1)'


def latex(text):
    return typeset(ast.parse(text, mode="eval"))


@pytest.mark.parametrize(
    "left, call",
    [
        ("2*parameters + 12*parameters/data_parallel", STAGE_1),
        ("4*parameters + 14*parameters/data_parallel", STAGE_1),  # differs with few ranks only
        ("12*parameters + 4*parameters/data_parallel", STAGE_1),  # the same on one rank
        ("4*parameters + 12*parameters/tensor_parallel", STAGE_1),
        ("parameters", "no_such_formula()"),
    ],
)
def test_what_the_registry_does_not_say_is_refused(left, call):
    """Must catch: one sample of a degree that hides a wrong term; a letter of another technique."""
    confirm("4*parameters + 12*parameters/data_parallel", STAGE_1)
    with pytest.raises((WrongCall, KeyError)):
        confirm(left, call)


@pytest.mark.parametrize(
    "text, printed",
    [
        ("4*parameters + 12*parameters/data_parallel", r"4\,\Psi + 12\,\Psi / d"),
        ("(accumulation_steps + 1)*parameters", r"(k + 1)\,\Psi"),
        (
            "(pipeline_parallel - 1)/(microbatches + pipeline_parallel - 1)",
            "(p - 1) / (m + p - 1)",
        ),
        ("ranks/(gpus*tokens)", r"N / (n\,D)"),
        ("ranks - (gpus - tokens)", "N - (n - D)"),
    ],
)
def test_brackets_stand_where_they_must(text, printed):
    """Must catch: a divisor or a subtrahend without its brackets."""
    assert latex(text) == printed


def test_the_cheatsheet_has_no_formula_of_its_own():
    """Must catch: a sum or a quotient between dollars, which nothing confirms."""
    page = (ROOT / "chapters" / "cheatsheet.md").read_text("utf-8")
    assert len(re.findall(r"\{law\}`", page)) >= 15
    typed = re.findall(r"\$([^$]+)\$", page)
    assert not [one for one in typed if re.search(r"[-+/]|\\frac", one)]
