"""Model states: the formulas against the bytes of a real training step; published utilisations."""

import pytest
import torch
from solved import Given

from coursekit import formulas
from coursekit.formulas import RECIPES, evaluate, quantities
from shardlab.gpt import GPT, GPTConfig, next_token_loss

CONFIG = GPTConfig(
    layers=2, hidden=40, heads=5, key_value_heads=1, feed_forward=72, vocabulary=61, max_sequence=9
)
PARTS = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "step_counter_bytes"]


def train_one_step(recipe):
    """(model, optimizer) after one real step under the recipe, before the gradients are dropped."""
    torch.manual_seed(0)
    model = GPT(CONFIG).to(torch.bfloat16 if recipe == "bf16, no master" else torch.float32)
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
        want = Given(**RECIPES[name].quantities)
        for parameter in model.parameters():
            state = dict(optimizer.state[parameter])
            state.pop("step", None)
            assert list(state) == moments
            sizes = [value.untyped_storage().nbytes() for value in state.values()]
            assert sizes[0] == want.first_moment_element_bytes * parameter.numel()
            assert sum(sizes[1:]) == want.other_moment_element_bytes * parameter.numel()


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
        counted = Given(**given)
        assert counted.states_bytes == sum(measured[part] for part in PARTS[:3])
        assert counted.states_bytes == counted.bytes_per_parameter * counted.parameters


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
    given = {**CONFIG.quantities(), **RECIPES["fp32 Adam"].quantities}
    given["gpus_per_copy"] = gpus_per_copy
    assert formulas.states_bytes_per_gpu(**given) == fullest
    parts = ["parameter_bytes_per_gpu", "gradient_bytes_per_gpu", "moment_bytes_per_gpu"]
    # torch makes the first shares the larger ones
    of_rank_0 = [share[0].numel() * share[0].element_size() for share in shares]
    first, second, *moments = of_rank_0
    assert list(evaluate(parts, **given).values()) == [first, second, sum(moments)]
    # what a recipe with a master copy keeps for 16-bit parameters
    master = torch.cat(tensors[0]).to(torch.float32, copy=True)
    assert (
        formulas.master_bytes_per_gpu(**{**given, "master_element_bytes": 4})
        == master.tensor_split(gpus_per_copy)[0].numel() * 4
    )
    assert formulas.master_bytes_per_gpu(**given) == 0


# --- utilisation ----------------------------------------------------------------------------------

# llm-foundry@8c8dd48, scripts/train/benchmarking/README.md: parameters, layers, hidden, sequence,
# GPU, GPUs, tokens a second of one GPU, and the MFU that it prints
PUBLISHED = (
    (64_862_437_376, 80, 8192, 2048, "H100 SXM 80GB", 512, 1007, 0.4125),
    (6_658_859_008, 32, 4096, 2048, "H100 SXM 80GB", 256, 10_119, 0.4415),
    (6_918_905_856, 32, 4096, 65_536, "H100 SXM 80GB", 8, 1956, 0.2859),
    (13_011_240_960, 40, 5120, 32_768, "A100 SXM 80GB", 8, 1016, 0.5169),
    (1_315_950_592, 24, 2048, 2048, "A100 SXM 40GB", 128, 18_647, 0.5441),
)


@pytest.mark.parametrize("parameters, layers, hidden, sequence, gpu, gpus, each, mfu", PUBLISHED)
def test_published_utilisations(parameters, layers, hidden, sequence, gpu, gpus, each, mfu):
    """Within 0.2%, since the table's rates are rounded. Must catch: scores that count forward only,
    GPUs left out, a rate per GPU taken for one of all, and weights counted with 8 operations
    because the run recomputes."""
    found = Given(
        **quantities(
            parameters=parameters,
            layers=layers,
            hidden=hidden,
            sequence=sequence,
            gpu=gpu,
            gpus=gpus,
            tokens_per_second=gpus * each,
        )
    )
    assert found.model_flops_utilisation_with_scores == pytest.approx(mfu, rel=2e-3)
    weights = 6 * parameters / (6 * parameters + 12 * layers * hidden * sequence)
    assert found.model_flops_utilisation == pytest.approx(weights * mfu, rel=2e-3)
