"""The chapter's pictures of an MLP and of attention, cut: what the formulas say now."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from coursekit.formulas import evaluate
from coursekit.show.format import format_as
from shardlab.gpt import GPT, GPTConfig
from shardlab.tensor_parallel import apply_tensor_parallel, gpt_plan

TOOL = Path(__file__).resolve().parents[2] / "tools" / "draw_cuts.py"


@pytest.fixture(scope="module")
def tool():
    spec = spec_from_file_location("draw_cuts", TOOL)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures(tool):
    found = tool.counted()
    return {block.name: tool.draw(block, found) for block in tool.blocks(found)}


def words(figure):
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", figure))


def test_the_committed_figures_are_what_the_tool_draws(tool, figures):
    """Must catch: a formula or the drawing changed without drawing the figures anew."""
    for name, figure in figures.items():
        path = tool.FIGURES / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == figure, "run tools/draw_cuts.py"


def test_weights_are_those_of_a_rank(tool, figures):
    """The shapes in the picture are those that apply_tensor_parallel cuts, of a model of these
    sizes on the meta device.

    Must catch: rows where columns belong; a part of one matrix of queries, keys and values."""
    import torch

    from ranklab.measure.fake_ranks import fake_ranks

    sizes = ("hidden", "heads", "key_value_heads", "feed_forward", "vocabulary")
    given = {name: tool.GIVEN[name] for name in sizes}
    config = GPTConfig(layers=1, max_sequence=8, **given)
    with torch.device("meta"), fake_ranks(tool.GIVEN["tensor_parallel"], 0):
        block = apply_tensor_parallel(GPT(config), gpt_plan(config)).blocks[0]
    cut = {
        "mlp-cut": (block.mlp.up, block.mlp.down),
        "attention-cut": (block.attention.qkv, block.attention.output),
    }
    for name, layers in cut.items():
        for layer in layers:
            outputs, inputs = layer.weight.shape
            assert f"[{inputs:,} × {outputs:,}]" in words(figures[name])


def test_what_is_sent_is_the_formulas(tool, figures):
    """Both blocks together send what a layer sends.

    Must catch: an all-reduce as one pass of the ring."""
    name = "tensor_layer_forward_sent_bytes"
    sent = evaluate([name], allow_unused=True, **tool.GIVEN)[name] // 2
    for figure in figures.values():
        said = f"all-reduce, sends {format_as(sent, 'decimal bytes')}"
        assert words(figure).count(said) == 2
