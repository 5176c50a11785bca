"""The router of Megatron-Core, and the layer of DeepSpeed, beside this book's, where they are
installed."""

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from torch import nn

from coursekit.topics.zero.deepspeed import deepspeed_on_gloo
from ranklab.ranks import ranks
from shardlab.experts.core import Experts, MixtureOfExperts, Router
from shardlab.experts.core_parallel import expert_parallel

WHY = "is not installed: it is compared where it is (pip install {} --no-deps)"


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


# --- DeepSpeed ------------------------------------------------------------------------------------


def two_experts_a_token():
    """A layer of 6 experts, tokens of this rank, and a gradient."""

    def experts():
        return MixtureOfExperts(Router(8, 6, 2), Experts(6, 8, 16, gated=False, biases=True))

    layer = drawn(experts)
    torch.manual_seed(1 + dist.get_rank())
    return layer, torch.randn(1, 20, 8, requires_grad=True), torch.randn(1, 20, 8)


class OneExpert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x), approximate="tanh"))


def by_deepspeed(n):
    """(output, gradients of tokens, router and own experts)"""
    deepspeed_on_gloo()
    from deepspeed.moe.layer import MoE

    plain, x, gradient = two_experts_a_token()
    made = MoE(8, OneExpert(), 6, ep_size=n, k=2, drop_tokens=False, top2_2nd_expert_sampling=False)
    made.set_deepspeed_parallelism()
    moe, first = made.deepspeed_moe, dist.get_rank() * 6 // n
    moe.gate.wg.weight.data.copy_(plain.router.weight.data)
    experts = moe.experts.deepspeed_experts
    for place, expert in enumerate(experts, first):
        for linear, name in ((expert.up, "up"), (expert.down, "down")):
            linear.weight.data.copy_(getattr(plain.experts, name)[place].data.T)
            linear.bias.data.copy_(getattr(plain.experts, f"{name}_bias")[place].data)
    y, *_ = made(x)
    (y * gradient).sum().backward()
    up = torch.stack([expert.up.weight.grad.T for expert in experts])
    return y.detach(), x.grad, moe.gate.wg.weight.grad, up


def by_this_book(n):
    layer, x, gradient = two_experts_a_token()
    expert_parallel(layer)
    y = layer(x)
    (y * gradient).sum().backward()
    return y.detach(), x.grad, layer.router.weight.grad, n * layer.experts.up.grad


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.ranks
def test_deepspeed_computes_alike(n):
    """Must catch: rows that come back in another order; gates that are not renormalised; an expert
    that sees the rows of its own rank alone."""
    importable("deepspeed.moe.layer", "deepspeed")
    with ranks(n, device="cpu", announce=False) as world:  # which DeepSpeed leaves changed
        found = zip(world.run(by_this_book, n), world.run(by_deepspeed, n))
    for ours, theirs in found:
        for mine, other in zip(ours, theirs):
            assert torch.allclose(mine, other, rtol=1e-4, atol=1e-5)
