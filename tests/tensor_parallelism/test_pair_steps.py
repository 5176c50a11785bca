"""The block of the chapter, move by move: the moves are what the code does, bytes are the
formulas', words and card are whole before any script."""

import json
import re

import pytest
import torch
from solved import Given, of_model
from torch import nn

from coursekit.topics.tensor_parallelism.steps import (
    PAIR_COLUMNS,
    PAIR_WAYS,
    RANKS,
    Extent,
    held_tensors,
    page_data,
    pair_steps,
)
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.fake_ranks import fake_ranks
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import MLP, GPTConfig
from shardlab.tensor_parallel import apply_tensor_parallel, sequence_parallel, sum_gradients
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows, Whole

EVERY = [(way, ranks) for way in PAIR_WAYS for ranks in RANKS]
TOKENS, HIDDEN = 16, 8


class NormAndMLP(nn.Module):
    def __init__(self):
        super().__init__()
        config = GPTConfig(hidden=HIDDEN, heads=1, feed_forward=4 * HIDDEN)
        self.norm, self.mlp = nn.LayerNorm(HIDDEN), MLP(config)


def run_block(way, t):
    """(collectives, shapes of tensors and gradients by letter) of one rank of many."""
    plan = {
        "norm": Whole(),
        "mlp": Around(),
        "mlp.up": Columns(4 * HIDDEN),
        "mlp.down": Rows(4 * HIDDEN),
    }
    shapes = {}

    def keep(letter, tensor):
        shapes[letter] = list(tensor.shape[1:])
        tensor.register_hook(lambda g: shapes.update({"d" + letter: list(g.shape[1:])}))

    with fake_ranks(t, 0), FakeTensorMode(), CommunicationLog() as log:
        block = NormAndMLP()
        plan = plan if way == "tensor" else sequence_parallel(plan, way == "gathered again")
        apply_tensor_parallel(block, plan)
        optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
        start = len(log.messages)
        x = torch.randn(1, TOKENS if way == "tensor" else TOKENS // t, HIDDEN, requires_grad=True)
        keep("x", x)
        n = block.norm(x)
        keep("n", n)
        block.mlp.up.register_forward_hook(lambda *found: keep("u", found[2]))
        y = block.mlp(n)
        keep("y", y)
        y.sum().backward()
        if way != "tensor":
            sum_gradients(optimizer)
        messages = log.messages[start:]
    return messages, shapes


@pytest.mark.ranks
@pytest.mark.parametrize(("way", "t"), EVERY)
def test_the_moves_are_what_the_code_does(way, t):
    """Must catch: enter before the norm; an all-gather after the product; a norm of all tokens."""
    messages, shapes = run_block(way, t)
    moves = [step.move for step in pair_steps(way, t)[1:]]
    wanted = [move.collective for move in moves if move.sends]
    assert [message.operation for message in messages] == wanted
    whole = 4 * TOKENS * HIDDEN
    for message, move in zip(messages, (move for move in moves if move.sends)):
        if move.moved != "dw":
            assert message.nbytes == whole
    after = {}
    for step in pair_steps(way, t):
        if step.move is not None and not step.move.sends:
            after.update(step.move.then)
    outside = [TOKENS if way == "tensor" else TOKENS // t, HIDDEN]
    assert shapes["x"] == shapes["n"] == shapes["dx"] == shapes["y"] == shapes["dy"] == outside
    assert shapes["u"] == shapes["du"] == [TOKENS, 4 * HIDDEN // t]
    assert after["u"] == Extent.NOTHING and after["dA"] == Extent.COLUMNS


@pytest.mark.parametrize(("way", "t"), EVERY)
def test_what_is_kept_and_sent_is_the_formulas(way, t):
    """Must catch: the gathered n kept although it is gathered again; an all-reduce sent once."""
    again = dict(sequence_parallel=int(way != "tensor"), regather=int(way == "gathered again"))
    config = GPTConfig(layers=1, hidden=64, heads=8)
    found = Given(**of_model(config, 1, 64, tensor_parallel=t, tensor_rank=0, **again))
    one = found.tensor_message_bytes
    kept = found.tensor_mlp_bytes - 2 * 4 * found.tensor_own_tokens
    steps = pair_steps(way, t)
    forward = next(step for step in steps if step.has["dy"])
    assert held_tensors(forward.has, PAIR_COLUMNS[0][2], t) == kept / one
    both_ways = found.tensor_layer_forward_sent_bytes, found.tensor_layer_backward_sent_bytes
    sent = sum(both_ways) / 2 / one
    said = [float(re.search(r" of ([\d.]+) S\.$", step.detail)[1]) for step in steps]
    assert len(set(said)) == 1 and said[0] == pytest.approx(sent, rel=5e-3)


def test_the_script_has_every_picture():
    """Must catch: the words of one number of ranks for another."""
    from bookkit import pairs

    data = json.loads(re.fullmatch(r"BOOK\.steppers\.add\((.*)\);\n", pairs.script())[1])
    for way, ranks in EVERY:
        assert data[way][str(ranks)] == json.loads(json.dumps(page_data(way, ranks)))
