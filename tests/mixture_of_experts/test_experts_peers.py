"""The router of Megatron-Core beside this book's, where it is installed."""

import pytest
import torch
from torch import nn

from shardlab.experts.core import Router

WHY = "is not installed: its router is compared where it is (pip install {} --no-deps)"


def importable(name, package):
    return pytest.importorskip(
        name, reason=f"{package} {WHY.format(package)}", exc_type=ImportError
    )


def routed(**settings):
    """(a router, its tokens, logits [T, E])"""
    torch.manual_seed(0)
    router = Router(8, 6, 2)
    nn.init.normal_(router.weight)
    vars(router).update(settings)
    tokens = torch.randn(40, 8)
    return router, tokens, tokens @ router.weight.T


def whole(gates, chosen):
    """[T, E], zeros where an expert was not chosen."""
    return torch.zeros(len(gates), 6).scatter(1, chosen, gates)


def own_loss(router, tokens):
    """The gradient that `balance` and `z` alone give to the router."""
    gates, *_ = router(tokens)
    return torch.autograd.grad(gates, router.weight, torch.zeros_like(gates))[0]


@pytest.mark.parametrize("sigmoid", [False, True])
def test_megatron_routes_alike(sigmoid):
    """Must catch: the bias in the gates; gates that are not renormalised; a balance loss of another
    scale; a z-loss that is not a mean."""
    moe = importable("megatron.core.transformer.moe.moe_utils", "megatron-core")
    router, tokens, logits = routed(sigmoid=sigmoid, bias_step=0.1, balance=0.3, z=0.2)
    router.moves += torch.arange(6) - 3
    gates, chosen, counts = router(tokens)
    kind = "sigmoid" if sigmoid else "softmax"
    bias = 0.1 * router.moves if sigmoid else None  # Megatron has it for sigmoids alone
    if not sigmoid:
        router.bias_step = 0.0
        gates, chosen, counts = router(tokens)
    probs, chosen_there = moe.topk_routing_with_score_function(
        logits, 2, score_function=kind, expert_bias=bias
    )
    assert torch.equal(whole(torch.ones_like(gates), chosen).bool(), chosen_there.bool())
    assert torch.allclose(whole(gates, chosen), probs, rtol=1e-5, atol=1e-6)
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    scores = scores / scores.sum(-1, keepdim=True)
    loss = moe.switch_load_balancing_loss_func(scores, counts, 40, 2, 6, 0.3)
    loss = loss + moe.z_loss_func(logits, 0.2)
    (wanted,) = torch.autograd.grad(loss, router.weight)
    assert torch.allclose(own_loss(router, tokens), wanted, rtol=1e-4, atol=1e-6)
