"""gpt.py against an independent reference, against published sizes, and for the properties the
techniques build on."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from dtypes import default_dtype
from told import cells, from_told, given
from torch import nn

from coursekit import formulas
from coursekit.formulas import quantities
from shardlab.gpt import (
    GPT,
    Dropout,
    GPTConfig,
    RMSNorm,
    Rotary,
    next_token_loss,
)
from shardlab.gpt_checks import InvalidInput

SMALL = dict(layers=2, hidden=24, heads=4, vocabulary=19, max_sequence=11)
LLAMA = dict(learned_positions=0, biases=0, gated_mlp=1, tied_head=0)
VARIANTS = {
    "GPT-2": {},
    "Llama": dict(LLAMA, feed_forward=40),
    "Llama, grouped queries": dict(LLAMA, key_value_heads=2),
    "one key-value head": dict(key_value_heads=1),
    "gate with biases, rotary": dict(learned_positions=0, gated_mlp=1),
    "untied, no biases": dict(biases=0, tied_head=0),
}


def small_model(seed=0, **changes):
    """A float64 model, every parameter random: with biases of zero and norms of one, a forgotten
    one would not show."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(**{**SMALL, **changes})).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model


def some_tokens(batch=3, sequence=11):
    return torch.randint(
        SMALL["vocabulary"], (batch, sequence), generator=torch.Generator().manual_seed(1)
    )


def assert_same(ours, theirs, relative=1e-12):
    """1e-12 of the largest element: float64 has 1.1e-16, and sums of a few hundred terms are added
    in another order."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= relative * theirs.abs().max()


# --- sizes ----------------------------------------------------------------------------------------
# GPT-2 and Llama: elements of the released checkpoints (gpt2, gpt2-medium, gpt2-large, gpt2-xl;
# Llama 7B, 13B; Llama 2 70B), as transformers' num_parameters() counts them: each parameter once,
# no buffers. GPT-3 was not released; Table D.1 of Brown et al. 2020 gives it as 174,600 million.
PUBLISHED = {
    "GPT-2 124M": 124_439_808,
    "GPT-2 355M": 354_823_168,
    "GPT-2 774M": 774_030_080,
    "GPT-2 1.5B": 1_557_611_200,
    "Llama 7B": 6_738_415_616,
    "Llama 13B": 13_015_864_320,
    "Llama 2 70B": 68_976_648_192,
    "Llama 3 8B": 8_030_261_248,
    "Llama 3 70B": 70_553_706_496,
    "Llama 3 405B": 405_853_388_800,
    "Mistral 7B": 7_241_732_096,
    "Gemma 7B": 8_537_680_896,
}


@pytest.mark.parametrize("name", [*PUBLISHED, "GPT-3 175B"])
def test_parameter_counts(name):
    """Model, formula and published number agree; a model of one layer and one of two count for all
    of them, as layers are alike. Must catch: a head with a bias, a norm with a bias in Llama, keys
    and values of as many heads as queries in Llama 2 70B, a layer too few."""
    config = GPTConfig(**quantities(model=name))
    with torch.device("meta"):
        models = [GPT(dataclasses.replace(config, layers=layers)) for layers in (1, 2)]
    one, two = (sum(p.numel() for p in model.parameters()) for model in models)
    counted = one + (config.layers - 1) * (two - one)
    assert counted == formulas.parameters(**config.quantities())
    if name == "GPT-3 175B":
        assert round(counted / 1e6, -2) == 174_600
    else:
        assert counted == PUBLISHED[name]
    assert all(parameter.is_meta for model in models for parameter in model.parameters())


# --- the same numbers as an independent reference -------------------------------------------------
def reference_norm(x, weights, name):
    if name + ".bias" in weights:
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weights[name + ".weight"]
    return x + weights[name + ".bias"] if name + ".bias" in weights else x


def reference_turn(x):
    """Rotary positions as Su et al. write them: pairs are complex numbers, a position multiplies
    them by a unit number."""
    positions, half = torch.arange(x.shape[1], dtype=x.dtype), x.shape[2] // 2
    speeds = torch.tensor([10_000 ** (-i / half) for i in range(half)], dtype=x.dtype)
    angles = positions[:, None] * speeds
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([turned.real, turned.imag], dim=-1)


def reference_logits(config, weights, tokens):
    """The model written out with loops over heads, from a dict of weights by name."""

    def linear(x, name):
        return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))

    x = weights["embedding.tokens.weight"][tokens]
    if config.learned_positions:
        x = x + weights["embedding.positions"][: tokens.shape[1]]
    size, queries = config.hidden // config.heads, config.heads // config.key_value_heads
    past = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    for layer in range(config.layers):
        at = f"blocks.{layer}."
        y = reference_norm(x, weights, at + "attention_norm")
        columns = linear(y, at + "attention.qkv").split(size, dim=-1)
        mixed = []
        for _ in range(config.key_value_heads):
            group, columns = columns[: queries + 2], columns[queries + 2 :]
            *qs, k, v = group
            k = k if config.learned_positions else reference_turn(k)
            for q in qs:
                q = q if config.learned_positions else reference_turn(q)
                scores = torch.einsum("bsd,btd->bst", q, k) / math.sqrt(size)
                mixed.append(torch.where(past, scores, -torch.inf).softmax(-1) @ v)
        x = x + linear(torch.cat(mixed, dim=-1), at + "attention.output")
        y = reference_norm(x, weights, at + "mlp_norm")
        if config.gated_mlp:
            gate = linear(y, at + "mlp.gate")
            inner = gate * torch.sigmoid(gate) * linear(y, at + "mlp.up")
        else:
            up = linear(y, at + "mlp.up")
            inner = up / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + linear(inner, at + "mlp.down")
    return F.linear(
        reference_norm(x, weights, "head.norm"),
        weights.get("head.scores.weight", weights["embedding.tokens.weight"]),
    )


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_model_equals_the_reference(variant, fused):
    """Must catch: rows of qkv ordered otherwise; scores scaled by another size; the exact GELU; a
    wrong term in the backward of RMSNorm; sin with the other sign; pairs of neighbours instead of
    halves; the MLP's norm after the MLP; up and gate exchanged."""
    model = small_model(**VARIANTS[variant], fused_attention=fused)
    weights, tokens = dict(model.named_parameters()), some_tokens()
    ours, theirs = model(tokens), reference_logits(model.config, weights, tokens)
    assert_same(ours, theirs)
    direction = torch.randn_like(theirs)
    our_gradients = torch.autograd.grad(ours, list(weights.values()), direction)
    their_gradients = torch.autograd.grad(theirs, list(weights.values()), direction)
    for name, ours, theirs in zip(weights, our_gradients, their_gradients):
        assert theirs.abs().max() > 0, name
        assert_same(ours, theirs)


def test_block_equals_pytorchs_encoder_layer():
    """The block against nn.TransformerEncoderLayer, whose qkv rows are all queries, all keys, all
    values. Must catch: an error that the reference above shares with the model, such as LayerNorm's
    epsilon."""
    config = GPTConfig(**SMALL)
    block = small_model().blocks[0]
    theirs = nn.TransformerEncoderLayer(
        *(config.hidden, config.heads, config.feed_forward),
        **dict(dropout=0.0, batch_first=True, norm_first=True),
        activation=lambda x: F.gelu(x, approximate="tanh"),
    ).double()

    def ordered_by_head(rows):
        return rows.unflatten(0, (3, config.heads, -1)).transpose(0, 1).flatten(0, 2)

    names = {"attention_norm": "norm1", "mlp_norm": "norm2", "mlp.up": "linear1"}
    names |= {"attention.output": "self_attn.out_proj", "mlp.down": "linear2"}
    pairs = [
        (getattr(block.get_submodule(ours), part), getattr(theirs.get_submodule(other), part))
        for ours, other in names.items()
        for part in ("weight", "bias")
    ]
    qkv, attention = block.attention.qkv, theirs.self_attn
    reordered = [(qkv.weight, attention.in_proj_weight), (qkv.bias, attention.in_proj_bias)]
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter))
        for mine, other in pairs:
            mine.copy_(other)
        for mine, other in reordered:
            mine.copy_(ordered_by_head(other))
    x = torch.randn(3, 11, config.hidden, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(11, dtype=torch.float64)
    output, expected = block(x), theirs(x, mask)
    assert_same(output, expected)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    for mine, other in pairs:
        assert_same(mine.grad, other.grad)
    for mine, other in reordered:
        assert_same(mine.grad, ordered_by_head(other.grad))


def test_dropout():
    """Zeroes a share p, scales the rest by 1 / (1 - p), does nothing in evaluation; the model
    applies it to the embedding and three times a layer. Must catch: dropout active in evaluation;
    survivors not scaled; one of the places forgotten."""
    torch.manual_seed(0)
    dropout, ones = Dropout(0.25), torch.ones(1000, 1000)
    dropped = dropout(ones)
    assert torch.equal(dropped.unique(), torch.tensor([0.0, 1 / 0.75]))
    # a million draws: their spread is 0.0004
    assert abs((dropped == 0).float().mean() - 0.25) < 0.0025
    assert dropout.eval()(ones) is ones

    model, plain = small_model(dropout=0.1), small_model()
    kept = []
    keep = lambda tensor: kept.append(tensor) or tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(some_tokens())
    masks = {tensor.data_ptr() for tensor in kept if tensor.dtype == torch.bool}
    assert len(masks) == 1 + 3 * SMALL["layers"]
    assert not torch.equal(model(some_tokens()), model(some_tokens()))
    assert torch.equal(model.eval()(some_tokens()), plain(some_tokens()))


# --- building -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["GPT-2", "Llama"])
def test_meta_model_can_be_filled(variant):
    """Built on meta, given memory and initialised, it equals the model built in place from the same
    seed; nothing but parameters is to be filled. Must catch: a tie that to_empty broke; a parameter
    initialise leaves out; a table in a buffer."""
    config = GPTConfig(**SMALL, **VARIANTS[variant])
    with torch.device("meta"):
        filled = GPT(config)
    filled.to_empty(device="cpu")
    for parameter in filled.parameters():
        nn.init.constant_(parameter, math.nan)
    torch.manual_seed(3)
    filled.initialise()
    direct = GPT(config)
    torch.manual_seed(3)
    direct.initialise()
    assert (filled.head.scores.weight is filled.embedding.tokens.weight) == bool(config.tied_head)
    assert list(filled.buffers()) == []
    for (name, ours), (_, theirs) in zip(
        filled.named_parameters(), direct.named_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name
    assert torch.equal(filled(some_tokens()), direct(some_tokens()))


def test_initialisation():
    """The seed decides every parameter; standard deviation 0.02, but 0.02 / sqrt(2L) for the
    matrices that add to the residual stream; biases 0, norms 1. Must catch: no scaling, or scaling
    by sqrt(L); PyTorch's own initialisation left standing."""
    config = GPTConfig(layers=8, hidden=128, heads=4, vocabulary=500, max_sequence=64)
    torch.manual_seed(0)
    model = GPT(config)
    torch.manual_seed(0)
    again = GPT(config)
    for (name, parameter), (_, same) in zip(
        model.named_parameters(), again.named_parameters(), strict=True
    ):
        assert torch.equal(parameter, same), name
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            adds = name.endswith(("attention.output.weight", "mlp.down.weight"))
            expected = 0.02 / 4 if adds else 0.02
            # the smallest has 8,192 draws, which leaves 0.8 % to chance
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize("variant", ["GPT-2", "Llama, grouped queries"])
def test_default_dtype_decides(variant):
    """A model built under a bf16 default is bf16 throughout, its logits too; the loss is fp32. Must
    catch: a float32 tensor that raises the type of what follows; a loss rounded to bf16."""
    with default_dtype(torch.bfloat16):
        model = GPT(GPTConfig(**SMALL, **VARIANTS[variant]))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    logits = model(some_tokens())
    loss = next_token_loss(logits, some_tokens())
    loss.backward()
    assert logits.dtype == torch.bfloat16 and loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_half_precision_keeps_what_matters_in_fp32():
    """Must catch: rotary angles counted in bf16, where position 1,999 is 2,000; a sum of squares in
    fp16, where 300 * 300 is infinite."""
    q = torch.ones(1, 2000, 1, 1, 8, dtype=torch.float64)
    rotary = Rotary(GPTConfig(max_sequence=2000))
    exact, _ = rotary(q, q)
    rounded, _ = rotary(q.bfloat16(), q.bfloat16())
    # three roundings to eight bits of numbers below 1.5
    assert (rounded.double() - exact).abs().max() < 0.02
    norm = RMSNorm(8).half()
    assert torch.equal(
        norm(torch.full((1, 8), 300.0, dtype=torch.float16)), torch.ones(1, 8, dtype=torch.float16)
    )


def test_next_token_loss():
    """Mean over every token of -log softmax. Must catch: a sum; a mean over sequences; batch and
    sequence exchanged."""
    logits = torch.randn(3, 5, 7, dtype=torch.float64)
    targets = torch.randint(7, (3, 5))
    places = [(b, s) for b in range(3) for s in range(5)]
    expected = -sum(math.log(logits[at].softmax(0)[targets[at]]) for at in places) / 15
    assert next_token_loss(logits, targets).item() == pytest.approx(expected, rel=1e-12)
    assert next_token_loss(logits, targets).dtype == torch.float64


# --- the config -----------------------------------------------------------------------------------
def test_config_fills_in_what_is_left_open():
    """Must catch: a preset's changes lost; a size that stays a float; a config that changes."""
    given = quantities(model="Llama 2 70B", layers=2)
    assert GPTConfig(**given, dropout=0.1).quantities() == {**given, "head_size": 0}
    config = GPTConfig(hidden=64.0, heads=8)
    assert isinstance(config.hidden, int)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden = 128


@from_told("change, words", cells)
def test_bad_sizes_are_refused(change, words):
    """One sentence with the value and the rule, as a typed error, before anything is built; the
    first of the sizes is named. Must catch: a check left out."""
    changes = given(change)
    (marked, value), *_ = changes.items()
    with pytest.raises(InvalidInput) as caught:
        GPTConfig(**changes)
    assert caught.value.name == marked and caught.value.value == value
    message = str(caught.value)
    assert message.startswith(f"{marked} = {value}") and words in message
    assert message.endswith(".") and "\n" not in message


def test_bad_calls_are_refused():
    """Must catch: a sequence past the last position that dies in an addition, or in a rotary model
    passes unseen."""
    for variant in ("GPT-2", "Llama"):
        with pytest.raises(InvalidInput, match="sequence = 12: .*max_sequence = 11") as caught:
            small_model(**VARIANTS[variant])(some_tokens(sequence=12))
        assert (caught.value.name, caught.value.value) == ("sequence", 12)


@from_told("tokens, name, value, words")
def test_tokens_it_cannot_read_are_refused(tokens, name, value, words):
    """Must catch: IndexError "index out of range in self", AttributeError of a list."""
    with pytest.raises(InvalidInput) as caught:
        small_model()(tokens)
    assert (caught.value.name, caught.value.value) == (name, value)
    message = str(caught.value)
    assert message.startswith(f"{name} = {value}: ") and words in message


def test_an_index_error_of_another_cause_stays():
    """Must catch: an error of a hook or of a replaced table, blamed on the tokens."""
    model = small_model()
    model.embedding.tokens.register_forward_pre_hook(lambda *_: [][0])
    with pytest.raises(IndexError, match="list index out of range"):
        model(some_tokens())


def test_what_sees_the_sequence_can_be_replaced():
    """Must catch: attention or positions computed beside the modules that are replaced; a parameter
    whose name changed."""

    class SecondHalf(nn.Module):
        def forward(self, table, sequence):
            return table[sequence : 2 * sequence]

    class Remembered(nn.Module):
        """The whole sequence's result, of which a half is asked for."""

        def __init__(self, core, mixed):
            super().__init__()
            self.core, self.mixed = core, mixed

        def forward(self, q, k, v):
            if q.shape[2] == 8:
                self.mixed.append((q, self.core(q, k, v)))
                return self.mixed[-1][1]
            whole_q, whole = self.mixed.pop(0)
            assert_same(q, whole_q[:, :, 4:])
            return whole[:, :, 4:]

    for variant in ("GPT-2", "Llama, grouped queries"):
        model, mixed = small_model(**VARIANTS[variant]), []
        names = [name for name, _ in model.named_parameters()]
        for block in model.blocks:
            block.attention.core = Remembered(block.attention.core, mixed)
        tokens = some_tokens(sequence=8)
        whole = model(tokens)
        for module in list(model.modules()):
            if hasattr(module, "position_ids"):
                module.position_ids = SecondHalf()
        assert_same(model(tokens[:, 4:]), whole[:, 4:])
        assert [name for name, _ in model.named_parameters()] == names
        assert list(model.blocks[0].attention.core.parameters()) == []


def test_names_and_order_of_parameters():
    """Saves of earlier versions load, and seeds draw the same. Must catch: a parameter that moved
    into a module of its own, or that is drawn earlier than before."""
    names = [name for name, _ in GPT(GPTConfig(**{**SMALL, "layers": 1})).named_parameters()]
    layers = "attention_norm attention.qkv attention.output mlp_norm mlp.up mlp.down".split()
    both = [f"blocks.0.{layer}" for layer in layers] + ["head.norm"]
    after = [f"{name}.{part}" for name in both for part in ("weight", "bias")]
    assert names == ["embedding.positions", "embedding.tokens.weight", *after]


def test_rms_norm_backward_twice():
    """Against differences, in float64. Must catch: a scale that the second backward takes for a
    constant, so that a penalty on gradients has a part of its own gradient only."""
    torch.manual_seed(0)
    norm = RMSNorm(6).double()
    x, weight = (torch.randn(*shape, 6, dtype=torch.float64) for shape in ((3,), ()))
    x, weight = x.requires_grad_(), weight.requires_grad_()

    def normalized(x, weight):
        return torch.func.functional_call(norm, {"weight": weight}, (x,))

    assert torch.autograd.gradgradcheck(normalized, (x, weight))
