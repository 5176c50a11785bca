"""Formulas of saved activations against what the ledger finds saved, module by module, and against
published counts."""

from itertools import product

import pytest
import torch
from solved import Given, of_model
from torch_has import FUSES_GROUPS

from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = dict(layers=2, hidden=24, heads=4, feed_forward=53, vocabulary=31, max_sequence=16)
ATTENTION = [
    dict(fused_attention=True),
    dict(fused_attention=False),
    dict(fused_attention=False, dropout=0.1),
]


def forward(recipe="fp32 Adam", microbatch=3, sequence=7, **changes):
    """({module: bytes it saved}, quantities of the same forward pass and loss)."""
    config = GPTConfig(**{**SMALL, **changes})
    model = GPT(config).to(torch.bfloat16 if recipe.startswith("bf16") else torch.float32)
    with (
        Ledger(model) as ledger,
        torch.autocast("cpu", torch.bfloat16, enabled=recipe == "autocast Adam"),
    ):
        tokens = torch.zeros(microbatch, sequence, dtype=torch.long)
        loss = next_token_loss(model(tokens), torch.zeros_like(tokens))
        saved = ledger.by_module("activations")
    del loss
    return saved, of_model(config, microbatch, sequence, recipe)


def under(saved, *prefixes):
    """Bytes of the modules with one of these names, and of the modules in them."""
    starts = tuple(f"{prefix}." for prefix in prefixes)
    return sum(count for name, count in saved.items() if f"{name}.".startswith(starts))


@pytest.mark.parametrize(
    "recipe",
    ["fp32 Adam", "autocast Adam", pytest.param("bf16, no master", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("attention", ATTENTION, ids=["fused", "unfused", "dropout"])
def test_each_module_keeps_what_its_formula_says(recipe, attention):
    """Any three switches in every combination. Mutations: SwiGLU with three inner tensors; the
    log-sum-exp at the scores' element size; RMSNorm with two statistics; the copy of grouped
    queries or autocast's second copy dropped; one byte for a mask -> one element."""
    groups_tried = [1, 2, 4] if FUSES_GROUPS or not attention["fused_attention"] else [4, 4, 4]
    for (number, groups), learned, biases in product(enumerate(groups_tried), [0, 1], [0, 1]):
        gated, tied = (learned + number) % 2, (biases + number) % 2
        saved, given = forward(
            recipe,
            **attention,
            key_value_heads=groups,
            learned_positions=learned,
            biases=biases,
            gated_mlp=gated,
            tied_head=tied,
        )
        want = Given(**given)
        stream, mask = want.residual_bytes, want.mask_bytes
        # autocast's copy is made by the layer that takes it
        normalized = 0 if want.copies_weights else want.linear_input_bytes
        found = {
            "norm": under(saved, "blocks.1.attention_norm"),
            "attention": under(saved, "blocks.1.attention_norm", "blocks.1.attention"),
            "dropped scores": under(saved, "blocks.1.attention.core.dropout"),
            "mlp": under(saved, "blocks.1.mlp_norm", "blocks.1.mlp"),
            "down": under(saved, "blocks.1.mlp.down"),
            "masks": under(saved, "blocks.1.dropout"),
            "additions": saved["blocks.1"],
            "embedding": under(saved, "embedding"),
            "head": under(saved, "head"),
            "loss": saved[""],
            "all": sum(saved.values()),
        }
        assert found == {
            "norm": want.norm_activation_bytes - stream + normalized,
            "attention": want.attention_activation_bytes - stream - mask,
            "dropped scores": want.score_dropout_bytes,
            "mlp": want.mlp_activation_bytes - stream - mask,
            "down": want.weight_copy_element_bytes * given["hidden"] * given["feed_forward"],
            "masks": 2 * mask,
            "additions": 2 * stream,
            "embedding": stream + mask,
            "head": want.head_activation_bytes - stream,
            "loss": want.batch_bytes + want.logit_bytes + 4,
            "all": want.activation_bytes,
        }, given


@pytest.mark.nightly  # test_random_steps has some of these shapes by day
def test_shapes_in_which_a_view_takes_the_place_of_a_copy():
    """A single token with a single key-value head and rotary positions keeps (hidden +
    key_value_size) more elements. Mutation: leave the microbatch, or the groups, out of
    keeps_whole_product; drop one of query_copy_bytes' two conditions."""
    misses = {}
    for microbatch, sequence, groups, in_group, learned, attention in product(
        [1, 2], [1, 2], [1, 2], [1, 2], [0, 1], ATTENTION
    ):
        if in_group > 1 and attention["fused_attention"] and not FUSES_GROUPS:
            continue
        for size in [1, 2] if learned else [2, 4]:
            heads = dict(heads=groups * in_group, key_value_heads=groups)
            shape = dict(microbatch=microbatch, sequence=sequence, hidden=groups * in_group * size)
            shape |= dict(learned_positions=learned, **heads, **attention)
            saved, given = forward(layers=1, **shape)
            over = sum(saved.values()) - Given(**given).activation_bytes
            if (microbatch, sequence, groups, learned) == (1, 1, 1, 0):
                assert over == 4 * (given["hidden"] + size), shape
            elif over:
                misses[tuple(shape.items())] = over
    assert not misses


def layer(**changes):
    """(bytes that one more layer saves, what the formula says, bsh, ab s²)."""
    (two, given), (one, _) = (forward(**changes | dict(layers=layers)) for layers in (2, 1))
    tokens = given["microbatch"] * given["sequence"]
    return (
        sum(two.values()) - sum(one.values()),
        Given(**given).layer_activation_bytes,
        tokens,
        tokens * given["hidden"],
        given["heads"] * tokens * given["sequence"],
    )


def test_published_counts_of_a_layer():
    """Korthikanti et al. 2022, Table 2, and what it leaves out: statistics of norms, and 2sbh that
    PyTorch keeps for a single sequence. Fused, in fp32: 64sbh + 4abs + 16bs. Mutation: any change
    of a coefficient in attention_activation_bytes or mlp_activation_bytes."""
    shape = dict(feed_forward=4 * SMALL["hidden"], key_value_heads=SMALL["heads"])
    korthikanti = dict(recipe="bf16, no master", fused_attention=False, dropout=0.1, **shape)
    found, formula, bs, bsh, abss = layer(**korthikanti)
    assert found == formula == 34 * bsh + 5 * abss + 2 * 2 * 2 * bs
    found, formula, bs, bsh, abss = layer(**korthikanti, microbatch=1)
    assert found == formula == 36 * bsh + 5 * abss + 2 * 2 * 2 * bs
    found, formula, bs, bsh, abss = layer(**shape)
    assert found == formula == 64 * bsh + 4 * SMALL["heads"] * bs + 16 * bs


def test_statistics_of_layer_norm_on_a_gpu():
    """Mutation: norm_activation_bytes takes residual_element_bytes for the statistics, which a GPU
    keeps in fp32."""
    given = dict(biases=1, hidden=24, microbatch=3, sequence=7, residual_element_bytes=2)
    on_cpu = Given(**given).norm_activation_bytes
    on_gpu = Given(**given, layer_norm_statistic_element_bytes=4).norm_activation_bytes
    assert (on_cpu, on_gpu) == (2 * 21 * 24 + 2 * 2 * 21, 2 * 21 * 24 + 2 * 4 * 21)
