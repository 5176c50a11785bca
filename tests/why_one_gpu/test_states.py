"""Model states: the formulas against the bytes of a real training step."""

import pytest
import torch

from coursekit import formulas
from coursekit.formulas import RECIPES, evaluate
from shardlab.gpt import GPT, GPTConfig, next_token_loss

CONFIG = GPTConfig(
    layers=2, hidden=40, heads=5, key_value_heads=1, feed_forward=72, vocabulary=61, max_sequence=9
)
PARTS = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "step_counter_bytes"]


def train_one_step(recipe):
    """(model, optimizer) after one real step under the recipe, before the gradients are dropped."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if recipe == "bf16, no master" else torch.float32)
    try:
        model = GPT(CONFIG)
    finally:
        torch.set_default_dtype(torch.float32)
    if recipe == "fp32 SGD momentum":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(CONFIG.vocabulary, (2, 8))
    with torch.autocast("cpu", torch.bfloat16, enabled=recipe == "autocast Adam"):
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    return model, optimizer


def weigh(model, optimizer):
    """Bytes of parameters, gradients, optimizer states, step counters, read off the tensors."""
    bytes_of = lambda tensors: sum(t.untyped_storage().nbytes() for t in tensors)
    parameters = list(model.parameters())
    states = [state for parameter in parameters for state in optimizer.state[parameter].items()]
    return dict(
        parameter_bytes=bytes_of(parameters),
        gradient_bytes=bytes_of(p.grad for p in parameters),
        optimizer_bytes=bytes_of(t for name, t in states if name != "step"),
        step_counter_bytes=bytes_of(t for name, t in states if name == "step"),
    )


def test_moments_one_by_one():
    """Mutations: the second moment counted for momentum too; both moments in the first."""
    for name, moments in (
        ("fp32 Adam", ["exp_avg", "exp_avg_sq"]),
        ("bf16, no master", ["exp_avg", "exp_avg_sq"]),
        ("fp32 SGD momentum", ["momentum_buffer"]),
    ):
        model, optimizer = train_one_step(name)
        want = evaluate(
            ["first_moment_element_bytes", "other_moment_element_bytes"], **RECIPES[name].quantities
        )
        for parameter in model.parameters():
            state = {
                key: value for key, value in optimizer.state[parameter].items() if key != "step"
            }
            assert list(state) == moments
            sizes = [value.untyped_storage().nbytes() for value in state.values()]
            assert [sizes[0], sum(sizes[1:])] == [
                each * parameter.numel() for each in want.values()
            ]


# those with copies of parameters, or small moments: tests/mixed_precision/test_master_weights.py
VERIFIED = [
    name
    for name, recipe in RECIPES.items()
    if recipe.verified.endswith("test_states_of_a_training_run")
]


def test_states_of_a_training_run():
    """Mutations: momentum counted as two moments; step counters of SGD not zero; gradients of the
    autocast recipe taken as 16-bit."""
    assert VERIFIED == ["fp32 Adam", "autocast Adam", "fp32 SGD momentum", "bf16, no master"]
    assert all(recipe.verified for recipe in RECIPES.values())
    for name in VERIFIED:
        given = {**CONFIG.quantities(), **RECIPES[name].quantities}
        measured = weigh(*train_one_step(name))
        assert measured == evaluate(PARTS, **given), name
        counted = evaluate(["states_bytes", "bytes_per_parameter", "parameters"], **given)
        assert counted["states_bytes"] == sum(measured[part] for part in PARTS[:3])
        assert counted["states_bytes"] == counted["bytes_per_parameter"] * counted["parameters"]


@pytest.mark.parametrize("gpus_per_copy", [1, 2, 3, 7])
def test_share_of_one_gpu(gpus_per_copy):
    """Mutation: floor instead of ceil in parameters_per_gpu (an element would belong to nobody)."""
    model, optimizer = train_one_step("fp32 Adam")
    moments = [
        [optimizer.state[p][name].flatten() for p in model.parameters()]
        for name in ("exp_avg", "exp_avg_sq")
    ]
    tensors = [
        [p.detach().flatten() for p in model.parameters()],
        [p.grad.flatten() for p in model.parameters()],
        *moments,
    ]
    shares = [torch.cat(kind).tensor_split(gpus_per_copy) for kind in tensors]
    fullest = max(
        sum(share[rank].numel() * share[rank].element_size() for share in shares)
        for rank in range(gpus_per_copy)
    )
    given = {
        **CONFIG.quantities(),
        **RECIPES["fp32 Adam"].quantities,
        "gpus_per_copy": gpus_per_copy,
    }
    assert formulas.states_bytes_per_gpu(**given) == fullest
    parts = ["parameter_bytes_per_gpu", "gradient_bytes_per_gpu", "moment_bytes_per_gpu"]
    # torch makes the first shares the larger ones
    of_rank_0 = [share[0].numel() * share[0].element_size() for share in shares]
    assert list(evaluate(parts, **given).values()) == [
        of_rank_0[0],
        of_rank_0[1],
        of_rank_0[2] + of_rank_0[3],
    ]
    # what a recipe with a master copy keeps for 16-bit parameters
    master = torch.cat(tensors[0]).to(torch.float32, copy=True)
    assert (
        formulas.master_bytes_per_gpu(**{**given, "master_element_bytes": 4})
        == master.tensor_split(gpus_per_copy)[0].numel() * 4
    )
    assert formulas.master_bytes_per_gpu(**given) == 0
