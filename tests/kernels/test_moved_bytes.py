"""Bytes that operators move, counted on functions whose bytes are known by hand."""

import pytest
import torch
import torch.nn.functional as F

from shardlab.kernels.moved_bytes import moved_bytes

X = torch.arange(1200.0).reshape(30, 40)
ROW = torch.ones(40)
TABLE, PLACES, PICKED = torch.ones(1000, 8), torch.arange(5), torch.arange(30)


def changes(x):
    x.add_(1).mul_(2)


def fills(x):
    x.zero_()
    torch.empty(30, 40).copy_(x)


# function: bytes read, bytes written; a tensor like X has 4,800
KNOWN = {
    "two operands": (lambda x: x + 2 * x, 3 * 4800, 2 * 4800),
    "one operand twice": (lambda x: x * x, 4800, 4800),
    "a row for all rows": (lambda x: x + ROW, 4800 + 160, 4800),
    "an expanded row": (lambda x: ROW.expand(30, 40) + x, 4800 + 160, 4800),
    "views": (lambda x: x.reshape(40, 30)[3:].detach().view(-1, 1).t(), 0, 0),
    "a copy": (lambda x: x.t().contiguous(), 4800, 4800),
    "no copy": (lambda x: x.contiguous().to(torch.float32), 0, 0),
    "another type": (lambda x: x.bfloat16(), 4800, 2400),
    "in place": (changes, 2 * 4800, 2 * 4800),
    "filled": (fills, 4800, 2 * 4800),
    "new memory": (lambda x: (torch.empty_like(x), torch.empty(5)), 0, 0),
    "zeros": (lambda x: (torch.zeros_like(x), torch.full((10,), 3.0)), 0, 4800 + 40),
    "into": (lambda x: torch.add(x, 1, out=torch.empty(30, 40)), 4800, 4800),
    "a sum": (lambda x: x.sum(0), 4800, 160),
    "two results": (lambda x: x.max(1), 4800, 30 * 4 + 30 * 8),
    "rows of a table": (lambda x: F.embedding(PLACES, TABLE), 5 * 8 + 160, 160),
    "rows by index": (lambda x: TABLE[PLACES], 5 * 8 + 160, 160),
    "a list": (lambda x: torch._foreach_add([x, x + 0], 1), 3 * 4800, 3 * 4800),
    "a list in place": (lambda x: torch._foreach_mul_([x], 2), 4800, 4800),
    "picked losses": (lambda x: F.nll_loss(x, PICKED), 30 * 4 + 30 * 8, 8),
}


@pytest.mark.parametrize("case", KNOWN)
def test_known_bytes(case):
    """Must catch: a view that moves; an operand twice; an in-place result counted as read alone; a
    table read whole; memory that is only allotted."""
    function, read, written = KNOWN[case]
    moved = moved_bytes(function, X.clone())
    assert (moved.read, moved.written) == (read, written)
    assert moved.total == read + written == sum(call.read + call.written for call in moved.calls)


def test_backward_is_counted():
    """relu(x * x) backward, operator by operator. Must catch: a count that ends with forward;
    another count without gradients."""
    x = X.clone().requires_grad_()
    forward = moved_bytes(lambda: torch.relu(x * x))
    with torch.no_grad():
        assert moved_bytes(lambda: torch.relu(x * x)).calls == forward.calls
    both = moved_bytes(lambda: torch.relu(x * x).sum().backward())
    assert both.calls[:2] == forward.calls
    names = [call.name for call in both.calls]
    assert names[2:] == ["sum", "ones_like", "threshold_backward", "mul", "mul", "add"]
    assert both.calls[4][1:] == (4 + 4800, 4800) and both.calls[-1][1:] == (2 * 4800, 4800)


def test_a_function_keeps_its_result_and_its_error():
    """Must catch: a mode that stays on after an error."""

    def fails(x):
        raise KeyError(moved_bytes)

    with pytest.raises(KeyError):
        moved_bytes(fails, X)
    seen = moved_bytes(lambda x: moved_bytes(lambda y: y + 1, x), X)
    assert len(seen.calls) == 1
