"""LoRA, QLoRA and moments of eight bits: bytes of a tiny model with adapters, by its tensors."""

import math

import pytest
import torch
from solved import Given
from told import given
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from coursekit.formulas import RECIPES, InvalidQuantity
from coursekit.planner.fits import fits

RANK, SEQUENCE = 16, 32
SIZES = dict(layers=2, hidden=256, heads=4, key_value_heads=1, feed_forward=512, vocabulary=512)
SIZES |= dict(max_sequence=64, learned_positions=0, biases=0, gated_mlp=1, tied_head=0)
STEP = dict(SIZES, sequence=SEQUENCE, microbatch=1, zero_stage=0, data_parallel=1)
STEP |= dict(kernels="Megatron-LM, fused loss", gpu="RTX 4090")
LORA, QLORA, EIGHT = "LoRA, rank 16", "QLoRA, rank 16", "bf16, 8-bit Adam"


class Adapted(nn.Module):
    """A frozen linear layer with A and B beside it."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Linear(frozen.in_features, RANK, bias=False)
        self.b = nn.Linear(RANK, frozen.out_features, bias=False)

    def forward(self, x):
        low = self.b(self.a(x.to(self.a.weight.dtype)))
        return self.frozen(x) + low.to(x.dtype)


class Layer(nn.Module):
    """A layer of Llama without rotations: one head of keys and values for four of queries."""

    def __init__(self):
        super().__init__()
        h, f, one = SIZES["hidden"], SIZES["feed_forward"], SIZES["hidden"] // SIZES["heads"]
        self.norms = nn.ModuleList([nn.RMSNorm(h), nn.RMSNorm(h)])
        self.matrices = nn.ModuleDict(
            {
                name: nn.Linear(*shape, bias=False)
                for name, shape in dict(
                    q=(h, h), k=(h, one), v=(h, one), o=(h, h), gate=(h, f), up=(h, f), down=(f, h)
                ).items()
            }
        )

    def forward(self, x):
        m, heads = self.matrices, SIZES["heads"]
        y = self.norms[0](x)
        q, k, v = (m[name](y).unflatten(-1, (-1, 64)).transpose(1, 2) for name in "qkv")
        k, v = (part.expand(-1, heads, -1, -1) for part in (k, v))
        mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        x = x + m["o"](mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + m["down"](F.silu(m["gate"](y)) * m["up"](y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(SIZES["vocabulary"], SIZES["hidden"])
        self.layers = nn.ModuleList(Layer() for _ in range(SIZES["layers"]))
        self.norm = nn.RMSNorm(SIZES["hidden"])
        self.head = nn.Linear(SIZES["hidden"], SIZES["vocabulary"], bias=False)

    def forward(self, tokens):
        x = self.table(tokens).requires_grad_()
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def adapted(model):
    """All matrices of the layers frozen, with adapters in fp32."""
    model.requires_grad_(False)
    for layer in model.layers:
        for name, matrix in layer.matrices.items():
            layer.matrices[name] = Adapted(matrix)
    return model


def nbytes(tensors):
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_a_model_with_adapters():
    """Must catch: adapters of attention alone; a gradient of a frozen weight; adapters in bf16;
    step counters of frozen tensors."""
    model = adapted(Model().to(torch.bfloat16))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(torch.zeros(1, SEQUENCE, dtype=torch.long)).float().logsumexp(-1).mean().backward()
    optimizer.step()
    found = Given(recipe=LORA, **STEP)
    states = [t for state in optimizer.state.values() for t in state.values()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert found.adapter_parameters == sum(p.numel() for p in trained)
    assert found.rank_parameter_bytes == nbytes(model.parameters())
    assert found.rank_backward_gradient_bytes == nbytes(gradients)
    assert found.rank_optimizer_bytes == nbytes(states)


def kept_bytes(model):
    """Bytes of what forward keeps for backward, without parameters and tokens."""
    kept, weights = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage  # alive, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = torch.ones(1, SEQUENCE, SIZES["hidden"], requires_grad=True)
        for layer in model.layers:
            hidden = layer(hidden)
    return sum(storage.nbytes() for storage in kept.values())


def test_adapters_keep_what_layers_keep():
    """Must catch: activations that freezing is said to save; the adapters' own, forgotten."""
    plain = Model()
    for layer in plain.layers:  # a trained norm of several kernels keeps its input twice
        layer.norms.requires_grad_(False)
    more = kept_bytes(adapted(Model())) - kept_bytes(plain)
    lora = {**STEP, "recipe": LORA, "compute_element_bytes": 4}
    assert more == SIZES["layers"] * Given(**lora).adapter_kept_bytes
    adapted_layers = Given(**STEP, recipe=LORA)
    alone = Given(**STEP, recipe="bf16 + fp32 gradients").rank_layer_bytes
    assert adapted_layers.rank_layer_bytes == alone + adapted_layers.adapter_kept_bytes


def in_four_bits(weight):
    """Tensors of a matrix in blocks of 64, and of their scales in blocks of 256."""
    scales = weight.flatten().unflatten(0, (-1, 64)).abs().amax(1)
    packed = torch.zeros(math.ceil(weight.numel() / 2), dtype=torch.uint8)
    of_scales = torch.zeros(math.ceil(scales.numel() / 256), dtype=torch.float32)
    return packed, scales.to(torch.uint8), of_scales


def test_weights_in_four_bits():
    """Must catch: scales in fp32, 4.5 bits; embedding or head in four bits, too; bits of a model of
    8 billion parameters other than the paper's 4.127; four bits where no adapter is."""
    model, found = Model().to(torch.bfloat16), Given(recipe=QLORA, **STEP)
    matrices = [m.weight for layer in model.layers for m in layer.matrices.values()]
    packed = nbytes(tensor for weight in matrices for tensor in in_four_bits(weight))
    assert found.four_bit_bytes == packed
    rest = nbytes(model.parameters()) - nbytes(matrices)
    assert found.rank_parameter_bytes == packed + rest + 4 * found.adapter_parameters
    llama = Given(model="Llama 3 8B")
    assert round(8 * llama.four_bit_bytes / (32 * llama.frozen_matrix_parameters), 3) == 4.127
    assert found.dequantised_bytes == 2 * 256 * 512
    # a card whose layout moved beside QLoRA
    without = Given(**STEP, **RECIPES[QLORA].quantities | {"adapter_rank": 0})
    assert without.dequantised_bytes == without.dequantised_moved_bytes == 0
    assert without.rank_frozen_bytes == 0


def test_moments_in_eight_bits():
    """Must catch: moments without their scales; one moment's scales for both."""
    parameters = [p.numel() for p in Model().parameters()]
    found = Given(recipe=EIGHT, **STEP).rank_optimizer_bytes
    assert found == sum(2 * (n + 4 * math.ceil(n / 256)) for n in parameters)


@pytest.mark.parametrize("stage, states", [(0, 12), (3, 18)])
def test_bytes_of_the_host(stage, states):
    """Must catch: parameters and gradients of stage 3 forgotten; bytes on the host without any
    offload."""
    given = {**STEP, "recipe": "bf16 + fp32 gradients", "zero_stage": stage}
    moved = Given(offload=1, **given)
    assert moved.rank_host_bytes == states * moved.rank_parameters
    assert moved.rank_optimizer_bytes == Given(**given).rank_host_bytes == 0


def test_seconds_of_adapters():
    """Must catch: a product for a frozen weight's gradient; adapters that compute nothing; scores
    that have one product in backward."""
    layer = adapted(Model()).layers[0]
    hidden = torch.ones(1, SEQUENCE, SIZES["hidden"], requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        layer(hidden).sum().backward()
    rate = dict(utilisation=1.0, flops_per_second=1.0)
    lora, plain = (Given(recipe=recipe, **STEP, **rate) for recipe in (LORA, EIGHT))
    wanted = lora.layer_forward_seconds + lora.layer_gradient_seconds
    assert counted.get_total_flops() == pytest.approx(wanted, rel=1e-12)
    assert plain.layer_gradient_seconds == 2 * plain.layer_forward_seconds


OTHERS = ("tensor_parallel=2", "pipeline_parallel=2", "zero_stage=3")
OTHERS += ("model=Qwen3 30B-A3B", "kernels=PyTorch eager")


@pytest.mark.parametrize("changes", OTHERS)
def test_what_adapters_are_not_counted_with(changes):
    """Must catch: whole gradients for the adapters' on a rank that has a part of them."""
    asked = dict(model="Llama 3 8B", gpu="H100 SXM 80GB", gpus=2, sequence=1024, zero_stage=0)
    assert fits(**asked, recipe=LORA).fits
    with pytest.raises(InvalidQuantity, match="adapters are counted beside whole dense models"):
        fits(**{**asked, **given(changes)}, recipe=LORA)
