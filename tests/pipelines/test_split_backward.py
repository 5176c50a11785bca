"""A backward in two halves against the undivided one: the same bits in every gradient, on the
parameters themselves, and what is kept in between."""

import pytest
import torch
from drawn import drawn, drawn_gpt
from torch import nn
from torch.utils.checkpoint import checkpoint

from ranklab.measure.ledger import Ledger
from shardlab.gpt import Block, GPTConfig
from shardlab.pipelines.hardened.split_backward import WeightGradientsLater, make_weight_gradients
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.layers import CutLinear

SIZES = dict(layers=2, hidden=8, heads=2, vocabulary=11, max_sequence=5)


class Blocks(nn.Module):
    """Two blocks between which one linear layer is used twice; each block recomputed if asked."""

    def __init__(self, recompute=False, **sizes):
        super().__init__()
        config = GPTConfig(**{**SIZES, **sizes})
        self.first, self.second = Block(config), Block(config)
        self.shared = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.recompute = recompute

    def forward(self, x):
        for part in (self.first, self.shared, self.frozen, self.shared, self.second):
            x = checkpoint(part, x, use_reentrant=False) if self.recompute else part(x)
        return x


def gradients(split, microbatches=3, **options):
    """(gradients of every parameter, and of the input) after some microbatches."""
    model = drawn(lambda: Blocks(**options).double(), std=0.3)
    later = WeightGradientsLater(model) if split else None
    found = []
    for _ in range(microbatches):
        x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
        y = model(x)
        y.backward(torch.randn_like(y))
        found.append(x.grad)
        if split:
            put_off = later.take()
            assert put_off and later.products == []
            make_weight_gradients(put_off)
            assert put_off == []
    return {name: p.grad for name, p in model.named_parameters()}, found


@pytest.mark.parametrize("recompute", (False, True))
@pytest.mark.parametrize("biases", (1, 0))
def test_the_same_bits(recompute, biases):
    """Must catch: W that writes .grad of a saved tensor instead of the parameter's, under
    checkpointing; a weight that is used twice, whose sums have another order; a bias left out; the
    gradient of a frozen layer's input left out."""
    options = dict(recompute=recompute, biases=biases, gated_mlp=1 - biases)
    whole, inputs = gradients(False, **options)
    halves, same = gradients(True, **options)
    assert whole["frozen.weight"] is None and halves["frozen.weight"] is None
    for name, gradient in whole.items():
        assert gradient is None or torch.equal(gradient, halves[name]), name
    assert all(torch.equal(one, other) for one, other in zip(inputs, same))


def test_no_weight_has_a_gradient_before_its_half():
    """Must catch: a split in which the first half makes all gradients, or those of biases, so that
    the previous stage waits as long as before, or for sums over tokens."""
    model = Blocks()
    later = WeightGradientsLater(model)
    model(torch.randn(2, 5, 8, requires_grad=True)).sum().backward()
    made = {name for name, p in model.named_parameters() if p.grad is not None}
    layers = [name for name, layer in model.named_modules() if type(layer) is nn.Linear]
    linear = {f"{name}.{kind}" for name in layers for kind in ("weight", "bias")}
    assert made.isdisjoint(linear) and "first.attention_norm.weight" in made
    # weights and biases, and the shared layer's two uses, not the frozen one
    assert len(later.products) == 2 * (2 * 4 + 2)


def beside(ledger, model):
    """Bytes beside parameters and their gradients."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return ledger.bytes.total - ledger.bytes.parameters - sum(g.nbytes for g in gradients)


@pytest.mark.parametrize("recompute", (False, True))
def test_what_is_kept_between_the_halves(recompute):
    """In activations: x (7) and dy (9) of four linear layers, the input with its gradient: 34
    (PyTorch 56), 35 with the output. Must catch: the graph, or the tensors that it saved, kept
    until W."""
    config = GPTConfig(**SIZES, biases=0)
    model = nn.Sequential(Block(config), Block(config))
    later = WeightGradientsLater(model)
    x = torch.randn(2, 5, 8, requires_grad=True)
    dy = torch.randn(2, 5, 8)
    unit = x.nbytes
    with Ledger(model) as ledger:
        y = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
        y.backward(dy)
        del y
        put_off = later.take()
        assert beside(ledger, model) == 34 * unit
        make_weight_gradients(put_off)
        assert beside(ledger, model) == 3 * unit  # the input and both gradients


def test_what_pytorchs_split_keeps():
    """56 of the same: the whole graph, and gradients between its nodes.

    Must catch: the page comparing this book's split with another number than PyTorch's."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    config = GPTConfig(**SIZES, biases=0)
    model = nn.Sequential(Block(config), Block(config))
    x = torch.randn(2, 5, 8, requires_grad=True)
    dy = torch.randn(2, 5, 8)
    with Ledger(model) as ledger:
        y = model(x)
        _, groups = stage_backward_input([y], [dy], [x], model.parameters())
        statistics = (4 + 2 * 2) * 2 * 5 * 4  # fp32: of four norms, and of two heads twice
        assert beside(ledger, model) == 56 * x.nbytes + statistics
        stage_backward_weight(model.parameters(), groups)


def parts_on_ranks(way):
    """(gradients of the undivided backward, of both halves, products, names of parts whose weight
    had a gradient before W)"""
    config = GPTConfig(
        layers=2, hidden=8, heads=4, key_value_heads=2, vocabulary=11, max_sequence=6, gated_mlp=1
    )
    plan = gpt_plan(config) if way == "tensor" else sequence_parallel(gpt_plan(config))
    draw = torch.Generator().manual_seed(2)
    tokens = torch.randint(11, (2, 6), generator=draw)
    found = []
    for halves in (False, True):
        model = drawn_gpt(config, seed=1)
        apply_tensor_parallel(model, plan)
        later = WeightGradientsLater(model) if halves else None
        for microbatch in range(2):
            vocabulary_parallel_loss(model(tokens), tokens, 11).backward()
            if halves and not microbatch:
                early = [
                    name
                    for name, module in model.named_modules()
                    if isinstance(module, CutLinear) and module.weight.grad is not None
                ]
            if halves:
                products = later.take()
                count = len(products)
                make_weight_gradients(products)
        found.append({name: p.grad for name, p in model.named_parameters()})
    return *found, count, early


@pytest.mark.parametrize("way", ("tensor", "sequence"))
def test_parts_of_layers_in_two_halves(worlds, way):
    """Must catch: parts whose whole backward is done in I; the bias of a row layer left out; a part
    of a tied weight whose other gradient is overwritten; own tokens taken for all."""
    for whole, halves, products, early in worlds(2).run(parts_on_ranks, way):
        # the table's gradient is in I
        assert products == 2 * (5 + 3) + 1 and early == ["head.scores"]
        assert whole.keys() == halves.keys()
        for name, gradient in whole.items():
            if name == "embedding.tokens.weight":  # a sum of two uses in another order
                torch.testing.assert_close(gradient, halves[name], rtol=1e-12, atol=1e-15)
            else:
                assert torch.equal(gradient, halves[name]), name


def test_evaluation_puts_nothing_off():
    """Must catch: products that pile up under no_grad."""
    model = Blocks()
    later = WeightGradientsLater(model)
    with torch.no_grad():
        model(torch.randn(2, 5, 8))
    assert later.products == []


def that_cannot_wait():
    linear = [nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)]
    model = nn.Sequential(*linear, nn.utils.weight_norm(nn.Linear(6, 2)))
    model[0].weight.register_hook(lambda gradient: 2 * gradient)
    model[1].bias.register_hook(lambda gradient: 3 * gradient)
    model[2].bias.requires_grad_(False)
    return model


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("autocast", (False, True))
def test_weights_that_cannot_wait(autocast):
    """Must catch: a hook that finds no gradient, or is not called; a gradient of what is frozen;
    the product added to .grad of a tensor that is computed, so that the two others have none. In
    autocast: a product of fp32 with bf16, which raises; a bf16 gradient of an fp32 weight."""
    torch.manual_seed(0)
    x, found = torch.randn(3, 4), []
    for split in (False, True):
        model = drawn(that_cannot_wait)
        later = WeightGradientsLater(model) if split else None
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = model(x)
        y.float().sum().backward()
        if split:
            make_weight_gradients(later.take())
        assert model[2].bias.grad is None and model[2].weight.grad.dtype is torch.float32
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(map(torch.equal, *found))
