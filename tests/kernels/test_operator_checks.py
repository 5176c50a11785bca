"""Faults of an operator, and which check finds each: the table of chapter 13."""

import re

import pytest
import torch
from pages import ROOT
from torch_has import compares_strides

from coursekit.topics.kernels.exercises import floats_at

PAGE = ROOT / "chapters" / "kernels.md"


def square(x):
    return x * x


def half_a_gradient(ctx, grad):
    return grad * ctx.saved_tensors[0]


def gradient(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


def changes_its_input(x):
    x.add_(1)
    return (x - 1) ** 2


def ignores_strides(x):
    out = torch.empty(x.shape, dtype=x.dtype)
    floats_at(out)[:] = floats_at(x) ** 2
    return out


def transposed(x):
    return x.new_empty(x.shape[::-1]).t()


FAULTS = {  # row of the table -> function, its fake, its gradient
    "the fake shape": (square, lambda x: x.new_empty(len(x)), gradient),
    "the fake shape or its strides": (square, transposed, gradient),
    "an input is changed in secret": (changes_its_input, torch.empty_like, gradient),
    "the gradient is wrong": (square, torch.empty_like, half_a_gradient),
    "strides are ignored": (ignores_strides, torch.empty_like, gradient),
    "none": (square, torch.empty_like, gradient),
}


def operator_of(fault: str):
    function, fake, backward = FAULTS[fault]
    name = f"faults::{fault.replace(' ', '_')}"
    made = torch.library.custom_op(name, function, mutates_args=(), schema="(Tensor x) -> Tensor")
    made.register_fake(fake)
    keep = lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
    made.register_autograd(backward, setup_context=keep)
    return made


def finds(check, *given) -> bool:
    try:
        return not check(*given)
    except Exception:
        return True


def beside_a_peer(operator, x):
    return torch.allclose(operator(x.t().contiguous().t()), x * x)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_table_of_checks(fault):
    """Must catch: a cell of the page that says otherwise than a run."""
    operator = operator_of(fault)
    made = lambda: torch.randn(3, 4, dtype=torch.float64)
    asking = made().requires_grad_()
    checks = (
        finds(lambda: torch.library.opcheck(operator, (asking,))),
        finds(lambda: torch.autograd.gradcheck(operator, made().requires_grad_())),
        finds(beside_a_peer, operator, made()),
    )
    row = re.search(rf"^\| {fault}[^|]*\|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    cells = ["finds it" in cell for cell in row[1].split("|")] if row else [False] * 3
    cells[0] &= compares_strides() or not fault.endswith("strides")
    assert list(checks) == cells
