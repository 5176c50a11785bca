"""Published models: their sizes out of a config.json, and their parameters to the last one."""

import json

import pytest
from published import PUBLISHED
from solved import Given
from told import cells, given

from coursekit.formulas import MODELS, evaluate, parameters, training_days
from coursekit.planner.model_config import ARCHITECTURES, InvalidModelConfig, read_config


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    """Must catch: queries of h columns where heads have a size of their own; norms of queries and
    keys, or of latents, forgotten; two norms in a layer of Gemma 2; a bias of Qwen2 or the router
    left out; the first layers without experts counted with them."""
    model = PUBLISHED[name]
    counted = parameters(**read_config(model["config"])) + model.get("left_out", 0)
    assert counted == model["parameters"]


def test_every_architecture_has_a_published_model():
    """Must catch: an architecture that nobody has counted."""
    assert {model["config"]["model_type"] for model in PUBLISHED.values()} == set(ARCHITECTURES)


def test_presets_are_these_models():
    """Must catch: a preset with another size than the config.json of that name."""
    both = [name for name in MODELS if name in PUBLISHED]
    assert len(both) >= 12
    for name in both:
        read = read_config(PUBLISHED[name]["config"])
        had = {quantity: value for quantity, value in MODELS[name].quantities.items()}
        wanted = {quantity: value for quantity, value in read.items() if quantity in had or value}
        for quantity in set(wanted) | set(had):
            if quantity not in ("max_sequence", "head_size", "experts", "experts_per_token"):
                assert had.get(quantity) == wanted.get(quantity), (name, quantity)
        targets = ["parameters", "active_parameters", "query_size", "matrix_parameters"]
        assert evaluate(targets, model=name) == evaluate(targets, **read)


def test_active_parameters():
    """Mixtral's report says 12.9 B of 47 B, Qwen3's 3.3 B of 30.5 B.

    Must catch: experts that no token uses counted; the router dropped with them."""
    for name in ("Mixtral 8x7B", "Qwen3 30B-A3B"):
        found = Given(model=name).active_parameters
        assert found == PUBLISHED[name]["active"]
    assert Given(model="Llama 7B").active_parameters == parameters(model="Llama 7B")


def test_flops_of_latent_attention():
    """A step of DeepSeek-V3 by hand. Must catch: scores without the columns of positions; the
    experts of every token left out."""
    layers, hidden, heads = 61, 7168, 128
    attention = hidden * (1536 + 512 + 64) + heads * (
        1536 * (128 + 64) + 512 * (128 + 128) + 128 * hidden
    )
    experts = (8 + 1) * 3 * hidden * 2048 + 256 * hidden
    weights = layers * attention + 58 * experts + 3 * 3 * hidden * 18432 + 129280 * hidden
    scores = layers * heads * 4096 * (128 + 64 + 128)
    found = Given(model="DeepSeek-V3 671B", sequence=4096)
    assert found.matmul_flops_per_token == 6 * weights + 6 * scores


def test_training_time_of_experts():
    """Must catch: parameters that no token goes through refused when they are given."""
    given = dict(gpu="H100 SXM 80GB", gpus=8, tokens=10**9, utilisation=0.4)
    assert training_days(parameters=PUBLISHED["Mixtral 8x7B"]["active"], **given) > 0


def test_from_a_file(tmp_path):
    """Must catch: a path as text refused."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED["Qwen3 0.6B"]["config"]))
    assert parameters(**read_config(str(path))) == parameters(**read_config(path)) == 596_049_920


LLAMA, BLOOM = (PUBLISHED[name]["config"] for name in ("Llama 3 8B", "BLOOM 176B"))
QWEN_MOE = next(m["config"] for m in PUBLISHED.values() if m["config"]["model_type"] == "qwen3_moe")


CONFIGS = {"llama": LLAMA, "moe": QWEN_MOE, "opt": PUBLISHED["OPT 6.7B"]["config"], "none": {}}
CHANGED = cells("test_model_config::test_what_is_no_model")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("hello", "is not JSON (line 1, column 1: Expecting value): it is not the config.json"),
        ('{\n "model_type": "llama",\n}', "is not JSON (line "),
        ("[" * 100_000, "is not JSON"),
        ("[1, 2]", "holds a list, not an object with names"),
        *((json.dumps({**CONFIGS[of], **given(one)}), said) for of, one, said in CHANGED),
    ],
)
def test_what_is_no_model(content, sentence, tmp_path):
    """One sentence that names the file. Must catch: a KeyError out of the middle; a guess."""
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InvalidModelConfig) as refused:
        read_config(path)
    said = str(refused.value)
    assert sentence in said and said.startswith(str(path)) and "\n" not in said
