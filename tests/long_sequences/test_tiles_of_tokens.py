"""An MLP and a loss that take a tile of tokens at a time, on one GPU and on ranks."""

import copy
from functools import partial

import pytest
import torch
from drawn import drawn_gpt
from tables import far
from test_context_parallel import average, batch_of, llama

from ranklab.measure.ledger import Ledger
from shardlab.context_parallel import Context, RingAttention, context_parallel, targets_a_rank
from shardlab.gpt import GPT, MLP, PADDING, GPTConfig, next_token_loss
from shardlab.kernels.losses import chunked_cross_entropy
from shardlab.recompute.layers import checkpoint_modules, checkpoint_tiles

CLOSE = 1e-12


def in_tiles(net, tokens):
    return checkpoint_modules(net, MLP, partial(checkpoint_tiles, tokens=tokens))


def loss_in_tiles(net, tokens, targets, count=None, chunk=7):
    x = net.embedding(tokens)
    for block in net.blocks:
        x = block(x)
    return chunked_cross_entropy(
        net.head.norm(x), net.head.scores.weight, targets, chunk, count=count
    )


def tiled(n):
    """On a rank, the last of which has no target at all: how far loss and gradients are from the
    plain model's."""
    torch.set_num_threads(1)
    config = llama(n)
    plain = drawn_gpt(config)
    tokens, targets = batch_of(config, n)
    context = Context(zigzag=False)
    if n > 1:
        targets[:, -10:] = PADDING
    net = context_parallel(in_tiles(copy.deepcopy(plain), 4), context, RingAttention)
    own, own_targets = context.own(tokens), context.own(targets)
    loss = loss_in_tiles(net, own, own_targets, targets_a_rank(own_targets))
    loss.backward()
    average([loss.detach(), *(p.grad for p in net.parameters())])
    want = next_token_loss(plain(tokens), targets)
    want.backward()
    pairs = zip(net.parameters(), plain.parameters(), strict=True)
    gradients = max(far(mine.grad, whole.grad) for mine, whole in pairs)
    return max(far(loss.detach(), want.detach()), gradients), (own_targets != PADDING).sum().item()


@pytest.mark.parametrize("n", [1, 2])
def test_parity(worlds, n):
    """Must catch: the last tile left out, which is shorter; a tile that is not the order's; a loss
    that divides by its own targets, of which a rank may have none."""
    found = worlds(n).run(tiled, n)
    assert all(error < CLOSE for error, _ in found), found
    assert n == 1 or found[-1][1] == 0


@pytest.mark.ranks  # a second, on one process
def test_a_step_has_less_at_its_peak():
    """The activations of a step at its fullest point, of one layer with a wide MLP and many words.

    Must catch: inner activations of all tiles kept until backward; logits of the sequence."""
    sizes = dict(layers=1, hidden=16, heads=2, feed_forward=512, vocabulary=512, biases=0)
    tokens = torch.zeros(1, 256, dtype=torch.long)
    peaks = []
    for tile in (0, 32):
        net = GPT(GPTConfig(**sizes, max_sequence=256, tied_head=0))
        net = in_tiles(net, tile) if tile else net
        with Ledger(net) as ledger:
            if tile:
                loss_in_tiles(net, tokens, tokens, chunk=tile).backward()
            else:
                next_token_loss(net(tokens), tokens).backward()
        peaks.append(ledger.peak.bytes.total - ledger.bytes.total)
    assert peaks[1] < peaks[0] / 4, peaks
