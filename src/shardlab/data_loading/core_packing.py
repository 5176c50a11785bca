"""The core of packing: documents of any length in rows of S tokens, and a wall between documents.

    rows = best_fit_crop([len(d) for d in documents], sequence)      # which documents share a row
    row = PackedRow()
    keep_within_documents(net, row)                                  # once
    inputs, targets, row.positions = tensors_of_rows(rows[:8], documents, sequence)
    loss = mean_loss(net(inputs), targets)

A row is a list of (number of a document, tokens of it). Krell et al. 2021.
"""

import bisect
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..gpt import GPT, PADDING, CoreAttention, PositionIds


def one_in_a_row(lengths: list[int], sequence: int) -> list:
    """A row for each document: the rest of the row is padding."""
    return [[(number, min(length, sequence))] for number, length in enumerate(lengths)]


def greedy_crop(lengths: list[int], sequence: int) -> list:
    """Documents as they come: the last one of a row loses what does not fit."""
    rows, room = [], 0
    for number, length in enumerate(lengths):
        if not room:
            rows.append([])
            room = sequence
        rows[-1].append((number, min(length, room)))
        room -= min(length, room)
    return rows


def best_fit_crop(lengths: list[int], sequence: int) -> list:
    """The longest document that fits, again and again; where none does, the shortest is cut."""
    left, rows = sorted((length, number) for number, length in enumerate(lengths)), []
    while left:
        rows.append([])
        room = sequence
        while room and left:
            length, number = left.pop(max(0, bisect.bisect(left, (room, math.inf)) - 1))
            rows[-1].append((number, min(length, room)))
            room -= min(length, room)
    return rows


def first_fit_decreasing(lengths: list[int], sequence: int) -> list:
    """The longest first, each in the first row that has room: what remains is padding."""
    rows, rooms = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = min(lengths[number], sequence)
        at = next((at for at, room in enumerate(rooms) if room >= length), len(rows))
        if at == len(rows):
            rows.append([])
            rooms.append(sequence)
        rows[at].append((number, length))
        rooms[at] -= length
    return rows


def tensors_of_rows(rows: list, documents: list[Tensor], sequence: int) -> tuple[Tensor, ...]:
    """Inputs, targets and positions, [B, S] each. A document's positions begin at 0, and its last
    token has no target. Padding has none, and position 0."""
    inputs = torch.zeros(len(rows), sequence, dtype=torch.int64)
    targets, positions = torch.full_like(inputs, PADDING), torch.zeros_like(inputs)
    for b, row in enumerate(rows):
        begin = 0
        for number, length in row:
            own, after = slice(begin, begin + length), documents[number][1 : length + 1]
            inputs[b, own], positions[b, own] = documents[number][:length], torch.arange(length)
            targets[b, begin : begin + len(after)] = after
            begin += length
    return inputs, targets, positions


class PackedRow(PositionIds):
    """The rows that the model sees next: their positions [B, S], which begin at 0 in each document.
    Rotary positions need no restart: they see differences alone."""

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        return table[self.positions]  # [B, S, H]


class WithinDocuments(CoreAttention):
    """Attention to the tokens before this one, of its own document."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        document = (self.row.positions == 0).cumsum(-1)  # [B, S], counted in each row
        mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]  # [B, 1, S, S]
        dropout, grouped = self.dropout.p if self.training else 0.0, q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, enable_gqa=grouped)


def keep_within_documents(net: GPT, row: PackedRow):
    """Put the wall into a GPT. Its parameters and their names stay as they are."""
    net.embedding.position_ids = row
    for block in net.blocks:
        block.attention.core = WithinDocuments(net.config).train(net.training)
        block.attention.core.row = row
