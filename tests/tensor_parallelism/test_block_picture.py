"""The picture of what a rank keeps along a block: the formulas' bytes, cut as they are drawn, and
the functions in the order in which a rank calls them."""

import draw_cuts as tool
import pytest
import torch
from pages import words
from solved import value

from coursekit.formulas import evaluate, quantities
from coursekit.show.format import format_as
from coursekit.topics.tensor_parallelism import pictures
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.fake_ranks import fake_ranks
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig
from shardlab.tensor_parallel import apply_tensor_parallel, gpt_plan, sequence_parallel

PRINTED = (("10 + 24/t", "+ 5as/ht"), ("4 + 30/t", "+ 5as/ht"), ("34/t", "+ 5as/ht"))
PRODUCTS = ("qkv", "output", "up", "down")
SENT_BY = {"leave": "all_reduce", "gather": "all_gather", "reduce_scatter": "reduce_scatter"}


@pytest.mark.parametrize("way, printed", list(zip(pictures.CUT_WAYS, PRINTED)))
def test_boxes_add_up_to_the_layer(way, printed):
    """Must catch: a tensor left out, or counted on all ranks where the rank has a part; a sum in
    words that is not the sum of the bytes."""
    t = pictures.BLOCK_RANKS
    given = quantities(**pictures.COUNTED_BLOCK, tensor_parallel=t, **way.given)
    names = ("tensor_layer_bytes", "tensor_own_tokens", "layer_norm_statistic_element_bytes")
    layer, tokens, element = evaluate(names, allow_unused=True, **given).values()
    kept, sbh = pictures.kept_of_a_block(**way.given)
    assert sum(kept.values()) == layer - 2 * 2 * tokens * element  # without statistics of the norms
    found, number = pictures.block_of(way.given)
    assert pictures.sum_of_a_block(found) == printed
    assert number == sum(kept.values()) / sbh
    assert f"{number:.3g} sbh</text>" in pictures.draw_block()


def ran(way):
    """The messages of a rank's forward of a block, among its products, in order; and the messages
    of its backward."""
    config = GPTConfig(layers=1, hidden=16, heads=2, vocabulary=8, max_sequence=4)
    plan = gpt_plan(config)
    if way.given["sequence_parallel"]:
        plan = sequence_parallel(plan, regather=bool(way.given["regather"]))
    done, told = [], 0

    def note(*names):
        nonlocal told
        done.extend(message.operation for message in log.messages[told:])
        told = len(log.messages)
        done.extend(names)

    with fake_ranks(2), FakeTensorMode():
        block = apply_tensor_parallel(GPT(config), plan).blocks[0]
        for name, module in block.named_modules():
            row = name.rpartition(".")[2]
            if row in PRODUCTS:
                module.register_forward_pre_hook(lambda *_, row=row: note(row))
        x = torch.zeros(1, 4 // (1 + way.given["sequence_parallel"]), 16, requires_grad=True)
        with CommunicationLog() as log:
            y = block(x)
            note()
            y.sum().backward()
    return done, [message.operation for message in log.messages[told:]]


@pytest.mark.ranks  # on fake ranks: seconds, not milliseconds
@pytest.mark.parametrize("way", pictures.CUT_WAYS, ids=lambda way: way.name[0])
def test_pairs_stand_where_a_rank_sends(way):
    """Must catch: `leave` drawn for `enter`; a second gathering in the column that keeps all."""
    forward, backward = ran(way)
    before, _, again = way.before.partition(", ")
    pairs = {pictures.BEFORE_COLUMNS: before, pictures.AFTER_ROWS: way.after}
    drawn = [pairs.get(row, row) for rows in pictures.BLOCK_ROWS.values() for row in rows]
    assert forward == [SENT_BY.get(name, name) for name in drawn if name in (*SENT_BY, *PRODUCTS)]
    mirrored = 2 * way.given["sequence_parallel"]  # a reduce-scatter goes back as an all-gather
    assert backward.count("all_gather") == mirrored + 2 * (again == "twice")


@pytest.fixture(scope="module")
def figures():
    found = tool.counted()
    return {block.name: tool.draw(block, found) for block in tool.blocks(found)}


def test_the_committed_figures_are_what_the_tool_draws(figures):
    """Must catch: a formula or the drawing changed without drawing the figures anew."""
    for name, figure in figures.items():
        path = tool.FIGURES / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == figure, "run tools/draw_cuts.py"


def test_weights_are_those_of_a_rank(figures):
    """Must catch: rows where columns belong; a part of one matrix of queries, keys and values."""
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


def test_what_is_sent_is_the_formulas(figures):
    """Must catch: an all-reduce as one pass of the ring."""
    name = "tensor_layer_forward_sent_bytes"
    sent = value(name, **tool.GIVEN) // 2
    for figure in figures.values():
        said = f"all-reduce, sends {format_as(sent, 'decimal bytes')}"
        assert words(figure).count(said) == 2
