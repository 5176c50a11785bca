"""The core of packing: documents of any length in rows of S tokens, and a wall between documents.

    rows = best_fit_crop([len(d) for d in documents], sequence)      # which documents share a row
    row = PackedRow()
    keep_within_documents(net, row)                                  # once
    inputs, targets, row.document = tensors_of_rows(rows[:8], documents, sequence)
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
        at = next((at for at, room in enumerate(rooms) if room >= length), len(rooms))
        if at == len(rooms):
            rows.append([])
            rooms.append(sequence)
        rows[at].append((number, length))
        rooms[at] -= length
    return rows


def tensors_of_rows(rows: list, documents: list[Tensor], sequence: int) -> tuple[Tensor, ...]:
    """Inputs, targets and documents' numbers, [B, S] each. The last token of a document has no
    target; padding has none, and number -1."""
    inputs = torch.zeros(len(rows), sequence, dtype=torch.int64)
    targets, document = torch.full_like(inputs, PADDING), torch.full_like(inputs, -1)
    for b, row in enumerate(rows):
        begin = 0
        for number, length in row:
            own, after = slice(begin, begin + length), documents[number][1 : length + 1]
            inputs[b, own], document[b, own] = documents[number][:length], number
            targets[b, begin : begin + len(after)] = after
            begin += length
    return inputs, targets, document


class PackedRow:
    """The documents [B, S] of the rows that the model sees next; None: a row is one document."""

    document: Tensor | None = None


class WithinDocuments(CoreAttention):
    """Attention to the tokens before this one, of its own document."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.row.document is None:
            return super().forward(q, k, v)
        mask = self.row.document[:, :, None] == self.row.document[:, None, :]  # [B, S, S]
        mask, dropout = mask.tril()[:, None], self.dropout.p if self.training else 0.0
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, enable_gqa=grouped)


class RestartedPositions(PositionIds):
    """Learned positions that count from 0 in each document. Rotary positions need no restart: they
    see differences alone."""

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        if self.row.document is None:
            return super().forward(table, sequence)
        places = torch.arange(sequence, device=table.device).expand_as(self.row.document)
        begins = self.row.document.diff(prepend=self.row.document[:, :1] - 1) != 0
        return table[places - (places * begins).cummax(-1).values]  # [B, S, H]


def keep_within_documents(net: GPT, row: PackedRow):
    """Put the wall into a GPT. Its parameters and their names stay as they are."""
    for block in net.blocks:
        block.attention.core = WithinDocuments(net.config).train(net.training)
        block.attention.core.row = row
    if net.embedding.positions is not None:
        net.embedding.position_ids = RestartedPositions()
        net.embedding.position_ids.row = row
