"""The ledger beside PyTorch's own MemTracker, on the same step."""

import pytest
import torch

from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss

SIZES = dict(layers=2, hidden=64, heads=2, vocabulary=512, max_sequence=64)


def step(watcher):
    """The bytes alive after a step of AdamW, watched."""
    torch.manual_seed(0)
    model, tokens = GPT(GPTConfig(**SIZES)), torch.zeros(4, 64, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with watcher(model, optimizer, tokens) as watching:
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        return watching, tokens, now(watching)


def tracker(model, optimizer, tokens):
    # a second, which every collection of tests would wait for
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    return tracker


def now(watching, kind="current"):
    if isinstance(watching, Ledger):
        return watching.bytes
    (found,) = watching.get_tracker_snapshot(kind).values()
    return {getattr(category, "name", category): nbytes for category, nbytes in found.items()}


@pytest.mark.slow
def test_the_same_bytes():
    """At rest, each category; at the peak, the sum, to the byte. They differ in names: MemTracker
    is told of the batch and calls it OTH, where the ledger finds that autograd keeps it; and the
    ledger alone says when the peak is and what made it.

    Must catch: a gradient or a state counted twice or not at all; a temporary that the ledger does
    not see."""
    ledger, tokens, rest = step(lambda model, optimizer, _: Ledger(model, optimizer))
    theirs, _, their_rest = step(tracker)
    assert rest.parameters == their_rest["PARAM"] > 0
    assert rest.gradients == their_rest["GRAD"] > 0
    assert rest.optimizer == their_rest["OPT"] > 0
    assert rest.activations == tokens.nbytes == their_rest["OTH"] and their_rest["ACT"] == 0
    assert rest.temporaries == their_rest["TEMP"] == 0
    peak = now(theirs, "peak")
    assert ledger.peak.bytes.total == peak["Total"]
    assert ledger.peak.bytes.parameters == peak["PARAM"]
    assert ledger.peak.phase == "backward"
