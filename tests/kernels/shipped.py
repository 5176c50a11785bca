"""One launch of each shipped kernel, with sizes that no tile divides: what tests of bytes and of
Triton's bits run."""

from typing import NamedTuple

import torch

from shardlab.kernels import attention, cross_entropy, elementwise, rms_norm, softmax
from shardlab.kernels.launch import block_for, wide
from shardlab.kernels.tiles import cdiv

NAMES = (
    "add",
    "softmax",
    "softmax backward",
    "rms norm",
    "rms norm backward",
    "cross-entropy",
    "cross-entropy backward",
    "attention",
    "attention, causal",
    "attention backward",
    "attention backward, causal",
)


class Launch(NamedTuple):
    """run(kernel, grid, *arguments, **constants)"""

    kernel: object
    grid: tuple
    arguments: tuple
    constants: dict


def launch_of(
    name, tile=32, dtype=torch.float32, rows=5, columns=77, sizes=(1, 4, 2, 70, 20), pads=True
):
    """rows, columns: of what has rows. sizes: B, A, G, S, D. tile: elements of a block, rows of a
    tile or both of its sides, programs of RMSNorm's backward. pads: whether a target is padding."""
    torch.manual_seed(0)
    if name.startswith("attention"):
        return attention_of(name, tile if type(tile) is tuple else (tile, 32), dtype, sizes)
    kind, random = wide(dtype), lambda *shape: torch.randn(*shape).to(dtype)
    x, grad, out = (random(rows, columns) for _ in range(3))
    row = dict(BLOCK=max(tile, block_for(columns)), WIDE=kind)
    if name == "add":
        given = (x, grad, out, x.numel())
        return Launch(elementwise.add_kernel, (cdiv(x.numel(), tile),), given, dict(BLOCK=tile))
    if name == "softmax":
        given = (random(rows, columns + 3)[:, :columns], out, columns, columns + 3)
        return Launch(softmax.softmax_kernel, (rows,), given, row)
    if name == "softmax backward":
        given = (grad, torch.softmax(x, -1), out, columns)
        return Launch(softmax.softmax_backward_kernel, (rows,), given, row)
    weight, scale = random(columns), torch.rand(rows).to(kind)
    if name == "rms norm":
        given = (x, weight, out, scale, columns, 1e-5)
        return Launch(rms_norm.rms_norm_kernel, (rows,), given, row)
    if name == "rms norm backward":
        programs = min(tile, rows)
        given = (grad, x, weight, scale, out, scale.new_empty(programs, columns), rows, columns)
        return Launch(rms_norm.rms_norm_backward_kernel, (programs,), given, row)
    targets = torch.randint(0, columns, (rows,))
    targets[1:2] = -100 if pads else 0
    losses, sums, block = scale.clone(), scale.clone(), dict(BLOCK=tile, WIDE=kind)
    if name == "cross-entropy":
        given = (x, targets, losses, sums, columns, -100)
        return Launch(cross_entropy.cross_entropy_kernel, (rows,), given, block)
    if name == "cross-entropy backward":
        given = (scale, x, targets, torch.logsumexp(x.to(kind), -1), out, columns, -100)
        grid = (rows, cdiv(columns, tile))
        return Launch(cross_entropy.cross_entropy_backward_kernel, grid, given, block)


def attention_of(name, tile, dtype, sizes) -> Launch:
    random, (b, heads, groups, length, size) = lambda *s: torch.randn(*s).to(dtype), sizes
    q, out, grad = (random(b, heads, length, size) for _ in range(3))
    k, v, k_grad, v_grad = (random(b, groups, length, size) for _ in range(4))
    causal, sums = name.endswith("causal"), torch.randn(b, heads, length).to(wide(dtype)) + 5
    numbers, constants = attention.kernel_arguments(q, k, causal, tile)
    if not name.startswith("attention backward"):
        grid = (cdiv(length, constants["ROWS"]), b * heads)
        given = (q, k, v, out, sums, *numbers)
        return Launch(attention.attention_kernel, grid, given, constants)
    grid = (cdiv(length, constants["COLUMNS"]), b * groups)
    q_grad, inner = torch.zeros_like(q, dtype=wide(dtype)), sums.clone()
    given = (q, k, v, sums, grad, inner, q_grad, k_grad, v_grad, *numbers)
    return Launch(attention.attention_backward_kernel, grid, given, constants)
