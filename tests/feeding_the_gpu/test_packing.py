"""The core of packing: rows of several documents are what each document alone would be."""

import itertools
import random

import pytest
import torch

from coursekit.lab import small_gpt
from shardlab.data_loading.core_packing import (
    PackedRow,
    best_fit_crop,
    first_fit_decreasing,
    greedy_crop,
    keep_within_documents,
    one_in_a_row,
    tensors_of_rows,
)
from shardlab.gpt import PADDING, next_token_loss

LENGTHS = [5, 9, 2, 16, 7, 30, 1, 11, 4, 16]
PACKERS = (one_in_a_row, greedy_crop, best_fit_crop, first_fit_decreasing)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("sequence", [1, 8, 16, 64])
def test_no_row_is_too_long(packer, sequence):
    """Must catch: a document twice; tokens invented; a row beyond its length; a packer that cuts
    although it pads."""
    lengths = [random.Random(0).choice(LENGTHS) for _ in range(200)]
    rows = packer(lengths, sequence)
    assert sorted(number for row in rows for number, _ in row) == list(range(200))
    assert all(sum(length for _, length in row) <= sequence for row in rows)
    assert all(0 < length <= lengths[number] for row in rows for number, length in row)
    cut = [number for row in rows for number, length in row if length < lengths[number]]
    if packer in (one_in_a_row, first_fit_decreasing):
        assert all(lengths[number] > sequence for number in cut)
    else:
        assert all(sum(length for _, length in row) == sequence for row in rows[:-1])


def documents(vocabulary):
    maker = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=maker) for length in LENGTHS]


@pytest.mark.parametrize("learned", [1, 0], ids=["learned positions", "rotary"])
def test_a_packed_row_is_its_documents(learned):
    """Must catch: a token that sees another document; positions that go on; a last token whose
    target is the next document's first; padding that counts."""
    net = small_gpt(torch.float64, learned_positions=learned, random_biases=True)
    alone = small_gpt(torch.float64, learned_positions=learned, random_biases=True)
    texts, row = documents(net.config.vocabulary), PackedRow()
    keep_within_documents(net, row)
    rows = first_fit_decreasing(LENGTHS, 32)
    assert max(map(len, rows)) > 2
    inputs, targets, row.positions = tensors_of_rows(rows, texts, 32)
    logits = net(inputs)
    next_token_loss(logits, targets, 1.0).backward()
    for b, own in enumerate(rows):
        ends = [0, *itertools.accumulate(length for _, length in own)]
        for (number, length), begin in zip(own, ends):
            wanted = alone(texts[number][None, :length])
            assert torch.allclose(logits[b : b + 1, begin : begin + length], wanted)
            if length > 1:
                next_token_loss(wanted[:, :-1], texts[number][None, 1:length], 1.0).backward()
        assert (targets[b, ends[-1] :] == PADDING).all()
    for (name, mine), (_, wanted) in zip(net.named_parameters(), alone.named_parameters()):
        assert torch.allclose(mine.grad, wanted.grad), name
    row.positions = torch.arange(32).expand_as(inputs)  # a row is one document again
    assert torch.allclose(net(inputs), alone(inputs))


@pytest.mark.parametrize("of_it", ["mask", "positions", "nothing"])
def test_a_leak_shows(of_it):
    """Must catch: a probe that a leak passes, with positions that restart or without."""
    net, row = small_gpt(torch.float64), PackedRow()
    texts = documents(net.config.vocabulary)
    attention = [block.attention.core for block in net.blocks]
    position_ids = net.embedding.position_ids
    keep_within_documents(net, row)
    if of_it != "mask":
        for block, core in zip(net.blocks, attention):
            block.attention.core = core
    if of_it == "nothing":
        net.embedding.position_ids = position_ids
    found = []
    for first in (texts[3], texts[9]):  # 16 tokens each
        inputs, _, row.positions = tensors_of_rows([[(0, 16), (1, 9)]], [first, texts[1]], 25)
        found.append(net(inputs)[:, 16:])
    assert torch.equal(*found) == (of_it == "mask")
