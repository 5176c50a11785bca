"""Operators made of kernels beside PyTorch's own: results and each gradient, odd sizes, strides."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.kernels.attention import attention, attention_forward
from shardlab.kernels.cross_entropy import cross_entropy, row_losses
from shardlab.kernels.elementwise import add
from shardlab.kernels.losses import chunked_cross_entropy, cut_cross_entropy
from shardlab.kernels.moved_bytes import moved_bytes
from shardlab.kernels.rms_norm import rms_norm, rms_norm_backward, scaled_rms_norm
from shardlab.kernels.softmax import softmax, softmax_backward

pytestmark = pytest.mark.usefixtures("one_thread")

# A share of the largest number of a result; in bf16, of which a number may be off by 2^-8, a share
# of the result's length, and one and a half times PyTorch's own error is allowed.
CLOSE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-8}


def targets_of(logits):
    """Targets [...] of logits [..., V], one of them padding."""
    targets = torch.arange(logits[..., 0].numel()).reshape(logits.shape[:-1]) * 7 % logits.shape[-1]
    targets.view(-1)[1:2] = -100
    return targets


def plain_loss(logits):
    return F.cross_entropy(logits.flatten(0, -2), targets_of(logits).flatten())


def head_loss(hidden, weight, way):
    logits = hidden @ weight.T
    if way is None:
        return plain_loss(logits)
    return way(hidden, weight, targets_of(logits.detach()))


def grouped(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def attentions(causal, tile):
    return partial(attention, causal=causal, tile=tile), partial(grouped, causal=causal)


CASES = {  # an operator of kernels, PyTorch's, shapes
    "add": (add, torch.add, [(3, 1001), (3, 1001)]),
    "softmax": (softmax, partial(torch.softmax, dim=-1), [(2, 5, 77)]),
    "softmax, two dims": (softmax, partial(torch.softmax, dim=-1), [(5, 77)]),
    "softmax, one column": (softmax, partial(torch.softmax, dim=-1), [(3, 1)]),
    "rms norm": (rms_norm, lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), [(2, 35, 77), (77,)]),
    "cross-entropy": (lambda x: cross_entropy(x, targets_of(x)), plain_loss, [(3, 4, 5001)]),
    "chunked loss": (
        partial(head_loss, way=partial(chunked_cross_entropy, chunk=5)),
        partial(head_loss, way=None),
        [(3, 4, 17), (33, 17)],
    ),
    "cut loss": (
        partial(head_loss, way=partial(cut_cross_entropy, chunk=5, words=8)),
        partial(head_loss, way=None),
        [(3, 4, 17), (33, 17)],
    ),
    "attention": (*attentions(False, (16, 16)), [(2, 2, 37, 20)] * 3),
    "attention, causal": (*attentions(True, (16, 16)), [(2, 2, 37, 20)] * 3),
    "attention, wide tiles": (*attentions(True, (16, 64)), [(1, 2, 70, 8)] * 3),
    "attention, high tiles": (*attentions(True, (64, 16)), [(1, 2, 70, 8)] * 3),
    "attention, groups": (*attentions(True, (32, 32)), [(1, 6, 40, 16), *[(1, 2, 40, 16)] * 2]),
    "attention, other keys": (*attentions(False, (16, 32)), [(1, 2, 9, 16), *[(1, 2, 50, 16)] * 2]),
    "attention, one token": (*attentions(True, (16, 16)), [(1, 1, 1, 4)] * 3),
}


def made(shape, dtype, layout):
    x = torch.randn(shape, dtype=dtype)
    if layout == "strides" and len(shape) > 1:  # [..., a, b] in memory as [..., b + 1, a]
        wide = torch.randn(*shape[:-2], shape[-1] + 1, shape[-2], dtype=dtype)
        x = wide.transpose(-2, -1)[..., :-1]
        assert not x.is_contiguous() or 1 in shape[-2:]
    return x.requires_grad_()


@pytest.mark.parametrize("layout", ["contiguous", "strides"])
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_parity(case, dtype, layout):
    """Must catch: an accumulator that is not rescaled by the new maximum; a mask of 0 instead of
    minus infinity; p without - 1; the gradient from above left out; a last tile taken as full;
    strides that are ignored."""
    torch.manual_seed(1)
    ours, theirs, shapes = CASES[case]
    inputs = [made(shape, dtype, layout) for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    result = theirs(*exact)
    up = torch.randn(result.shape).to(dtype)
    right = [result, *torch.autograd.grad(result, exact, up.double())]
    errors = []
    for way in (ours, theirs):
        result = way(*inputs)
        found = [result, *torch.autograd.grad(result, inputs, up.to(result.dtype))]
        errors.append([distance(*pair, up) for pair in zip(found, right)])
    slack = 1.5 if dtype is torch.bfloat16 else 0
    for number, (mine, plain) in enumerate(zip(*errors)):
        assert mine <= max(CLOSE[dtype], slack * plain), (number, mine, plain)


def distance(found, right, up) -> float:
    error = found.detach().double() - right.detach()
    # with one key gradients cancel to 0: their terms are as large as the gradient from above
    right = right if right.any() else up.double()
    if up.dtype is torch.bfloat16:
        return (error.norm() / right.norm().clamp(min=2)).item()
    return (error.abs().max() / right.abs().max().clamp(min=1e-2)).item()


def test_kernels_compute_more_than_they_store():
    """A row of large numbers, a row of minus infinity but for one, targets that do not exist.

    Must catch: powers without the maximum; a target beyond the vocabulary that counts as 0."""
    x = torch.tensor([[1e4, 1e4 - 1, -1e4], [-torch.inf, 2.0, -torch.inf]])
    assert torch.allclose(softmax(x), torch.softmax(x, -1))
    targets = torch.tensor([1, 1])
    assert torch.allclose(cross_entropy(x, targets), F.cross_entropy(x, targets))
    for beyond in (3, -1):
        assert cross_entropy(x, torch.tensor([1, beyond])).isnan()
    assert cross_entropy(x, torch.tensor([-100, -100])).isnan()  # as in PyTorch


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


ROWS = leaf(3, 5)
OPERATORS = {  # arguments
    add: (leaf(3, 5), leaf(3, 5)),
    softmax: (ROWS,),
    softmax_backward: (leaf(3, 5).detach(), torch.softmax(ROWS, -1).detach()),
    scaled_rms_norm: (ROWS, leaf(5), 1e-5),
    rms_norm_backward: (*(leaf(3, 5).detach() for _ in "gx"), leaf(5).detach(), torch.rand(3), 2),
    row_losses: (ROWS, torch.tensor([1, -100, 4]), -100),
    attention_forward: (*(leaf(1, 2, 5, 4) for _ in "qkv"), True, 16, 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_operators_are_registered_well(operator):
    """opcheck: schema, shapes under fake tensors, autograd's registration, tracing.

    Must catch: a fake result with other strides; an input that is changed."""
    torch.library.opcheck(operator, OPERATORS[operator])


def test_a_compiled_function_calls_them():
    """Must catch: an operator that breaks the graph."""
    x = torch.randn(4, 7)
    compiled = torch.compile(lambda x: softmax(2 * x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), softmax(2 * x) + 1)


def test_a_gpt_trains_on_them(monkeypatch):
    """Must catch: heads in another order; a loss of the mean that is a sum; any gradient that is
    not the plain GPT's."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(layers=2, hidden=24, heads=4, key_value_heads=2, vocabulary=61)).double()
    tokens = torch.randint(0, 61, (2, 19))
    plain = next_token_loss(model(tokens), tokens)
    wanted = torch.autograd.grad(plain, list(model.parameters()))

    for block in model.blocks:
        monkeypatch.setattr(block.attention.core, "forward", attention)
    head = model.head
    monkeypatch.setattr(head, "forward", head.norm.forward)
    losses = {
        "chunked": chunked_cross_entropy,
        "cut": cut_cross_entropy,
        "kernel": lambda hidden, weight, targets: cross_entropy(hidden @ weight.T, targets),
    }
    for name, loss in losses.items():
        found = loss(model(tokens), head.scores.weight, tokens)
        assert torch.allclose(found, plain, rtol=1e-12), name
        for mine, right in zip(torch.autograd.grad(found, list(model.parameters())), wanted):
            assert torch.allclose(mine, right, rtol=1e-9, atol=1e-12), name


def largest(function, *inputs) -> int:
    """Elements of the largest tensor that any operator writes, inside of kernels too."""
    moved = moved_bytes(lambda: function(*inputs).sum().backward())
    return max(call.written for call in moved.calls) // inputs[0].element_size()


def test_scores_and_logits_are_never_stored():
    """Must catch: scores [S, S] or logits [T, V] in any operator, forward or backward."""
    q, k, v = (torch.randn(1, 2, 100, 8, requires_grad=True) for _ in range(3))
    assert largest(lambda *qkv: grouped(*qkv, False), q, k, v) <= 3 * q.numel() + 2 * 100
    assert largest(lambda *qkv: attention(*qkv, tile=(16, 16)), q, k, v) <= 3 * q.numel()
    hidden, weight = torch.randn(50, 4, requires_grad=True), torch.randn(300, 4, requires_grad=True)
    targets = torch.arange(50)
    for loss, most in (
        (partial(chunked_cross_entropy, chunk=8), 8 * 300),
        (partial(cut_cross_entropy, chunk=8, words=64), 300 * 4),  # the weight's gradient
    ):
        assert largest(partial(loss, targets=targets), hidden, weight) <= most
