"""The chapter on memory says of its small GPT what the ledger counts: points of a step, and
habits that move bytes."""

import pytest
import torch
from solved import of_model, value

from coursekit.topics.where_the_memory_goes import lab
from ranklab.measure.ledger import Ledger
from ranklab.measure.weigh import weigh
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

CONFIG = GPTConfig(layers=4, hidden=256, heads=4, max_sequence=256)
GIVEN = of_model(CONFIG, 2, 256, accumulation_steps=1, first_step=0, optimizer_mode=0)


def watched(loop, **how):
    """The ledger of loop(model, optimizer, ledger), after one step that makes the optimizer's
    states."""
    with FakeTensorMode():  # counts the same, and the vocabulary is large
        model = GPT(CONFIG)
        optimizer = torch.optim.AdamW(model.parameters(), **how)
        step(model, optimizer)
        with Ledger(model, optimizer) as ledger:
            loop(model, optimizer, ledger)
    return ledger


def batch():
    return torch.zeros(2, 256, dtype=torch.long)


def step(model, optimizer, ledger=None, set_to_none=True):
    """The step of the chapter; its batch and its loss have names, as in a training loop."""
    tokens, targets = batch(), batch()
    loss = next_token_loss(model(tokens), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none)
    return loss


def formula(name, **changes):
    return value(name, **{**GIVEN, **changes})


def test_the_loop_needs_more_than_foreach_where_one_tensor_is_most_of_the_model():
    """Mutation: optimizer_loop_elements without one of its maxima; foreach counted with two tensors
    a parameter."""
    highest = {
        mode: max(
            point.bytes.total
            for point in watched(step, foreach=mode).timeline
            if point.phase == "optimizer"
        )
        for mode in (False, True)
    }
    assert highest == {
        mode: formula("optimizer_peak_bytes", optimizer_mode=int(mode)) for mode in (False, True)
    }
    assert highest[False] > highest[True]


def test_a_name_keeps_the_logits():
    """Mutation: next_token_loss goes over logits.exp().log(), which backward keeps."""

    def named(model, optimizer, ledger):
        tokens, targets = batch(), batch()
        logits = model(tokens)
        next_token_loss(logits, targets).backward()

    assert watched(named).peak.bytes.total == formula("peak_bytes") + formula("logit_bytes")


def test_what_a_list_of_losses_keeps_and_what_a_sum_without_backward_keeps():
    """The bug hunt: 4 bytes a step after backward; every activation of every batch without.

    Mutation: activation_bytes without logit_bytes; the evaluation under torch.no_grad()."""
    live = []

    def history(model, optimizer, ledger):
        losses = []
        for _ in range(3):
            losses.append(step(model, optimizer))
            live.append(ledger.bytes.total)

    def evaluation(model, optimizer, ledger):
        score = 0.0
        for _ in range(3):
            score += next_token_loss(model(batch()), batch())
            live.append(ledger.bytes.total)

    watched(history)
    assert [b - a for a, b in zip(live, live[1:])] == [4, 4]
    live.clear()
    watched(evaluation)
    assert [b - a for a, b in zip(live, live[1:])] == [formula("activation_bytes")] * 2


@pytest.mark.parametrize("in_place", [False, True])
def test_relu_keeps_one_inner_tensor_where_gelu_keeps_two(in_place):
    """Mutation: the ledger never enters its saved_tensors_hooks, so that nothing is kept."""
    inner = 4 * 64 * 1024

    def kept(nonlinearity):
        layers = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), nonlinearity, torch.nn.Linear(1024, 256)
        )
        return sum(line.activations for line in weigh(layers, torch.zeros(64, 256)))

    assert kept(torch.nn.GELU()) - kept(torch.nn.ReLU(inplace=in_place)) == inner


def test_a_loop_of_the_bug_hunt_that_never_ends():
    """Must catch: a cell that hangs, because the check has a limit and the table after it none."""

    def forever(model, optimizer, pairs):
        while True:
            pass

    with pytest.raises(TimeoutError, match="had not ended after 0.5 s"):
        lab.table_of_what_is_left(forever, seconds=0.5)


def test_a_loop_of_the_bug_hunt_that_returns_nothing(capsys):
    """Must catch: an error about the length of None, below a check that has said what is wrong."""
    lab.table_of_what_is_left(lambda model, optimizer, pairs: None)
    assert capsys.readouterr().out.startswith("losses: 0;")
