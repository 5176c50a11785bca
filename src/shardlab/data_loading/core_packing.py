"""The core of packing: documents of any length in rows of S tokens, with borders that attention and
positions respect.

    rows = best_fit_crop([len(d) for d in documents], sequence)      # which documents share a row
    row = PackedRow()
    keep_within_documents(net, row)                                  # once
    inputs, targets, row.document = tensors_of_rows(rows[:8], documents, sequence)
    loss = mean_loss(net(inputs), targets)

A packer decides what is thrown away: tokens that are cut off, or places that are padded. A row is a
list of (document, tokens of it). Without the mask a token attends to the documents before its own:
the loss falls, and the model learns a text that nobody wrote. Krell et al. 2021.

Letters: B rows, S tokens in a row.
"""

import bisect
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..gpt import GPT, PADDING, CoreAttention, PositionIds

PackedParts = list[tuple[int, int]]


def one_in_a_row(lengths: Sequence[int], sequence: int) -> list[PackedParts]:
    """A row for each document: the rest of the row is padding."""
    return [[(number, min(length, sequence))] for number, length in enumerate(lengths)]


def greedy_crop(lengths: Sequence[int], sequence: int) -> list[PackedParts]:
    """Documents as they come: the last one of a row loses what does not fit."""
    rows, room = [], 0
    for number, length in enumerate(lengths):
        if not room:
            rows, room = [*rows, []], sequence
        rows[-1].append((number, min(length, room)))
        room -= min(length, room)
    return rows


def best_fit_crop(lengths: Sequence[int], sequence: int) -> list[PackedParts]:
    """The longest document that fits, again and again; where none does, the shortest is cut."""
    left, rows = sorted((length, number) for number, length in enumerate(lengths)), []
    while left:
        row, room = [], sequence
        while room and left:
            length, number = left.pop(max(0, bisect.bisect(left, (room, math.inf)) - 1))
            row.append((number, min(length, room)))
            room -= min(length, room)
        rows.append(row)
    return rows


def first_fit_decreasing(lengths: Sequence[int], sequence: int) -> list[PackedParts]:
    """The longest first, each in the first row that has room: what remains is padding."""
    rows, rooms = [], []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = min(lengths[number], sequence)
        at = next((at for at, room in enumerate(rooms) if room >= length), len(rooms))
        if at == len(rooms):
            rows, rooms = [*rows, []], [*rooms, sequence]
        rows[at].append((number, length))
        rooms[at] -= length
    return rows


def tensors_of_rows(
    rows: list[PackedParts], documents: Sequence[Tensor], sequence: int
) -> tuple[Tensor, ...]:
    """Inputs, targets and document numbers, [B, S] each. Padding and the last token of a document
    have no target; padding is of document -1."""
    inputs = torch.zeros(len(rows), sequence, dtype=torch.int64)
    targets, document = torch.full_like(inputs, PADDING), torch.full_like(inputs, -1)
    for b, row in enumerate(rows):
        begin = 0
        for number, length in row:
            own = slice(begin, begin := begin + length)
            inputs[b, own], document[b, own] = documents[number][:length], number
            after = documents[number][1 : length + 1]
            targets[b, own][: len(after)] = after
    return inputs, targets, document


class PackedRow:
    """The documents [B, S] of the rows that the model sees next; None: a row is one document."""

    document: Tensor | None = None


class WithinDocuments(CoreAttention):
    """Attention to the tokens before this one, of its own document."""

    def __init__(self, core: CoreAttention, row: PackedRow):
        nn.Module.__init__(self)
        self.core, self.row = core, row

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.row.document is None:
            return self.core(q, k, v)
        mask = self.row.document[:, :, None] == self.row.document[:, None, :]  # [B, S, S]
        mask = mask.tril()[:, None]  # [B, 1, S, S]
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])


class RestartedPositions(PositionIds):
    """Learned positions that count from 0 in each document. Rotary positions need no restart: they
    see differences alone."""

    def __init__(self, row: PackedRow):
        super().__init__()
        self.row = row

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        if self.row.document is None:
            return super().forward(table, sequence)
        places = torch.arange(sequence, device=table.device).expand_as(self.row.document)
        begins = self.row.document.diff(prepend=self.row.document[:, :1] - 1) != 0
        return table[places - (places * begins).cummax(-1).values]  # [B, S, H]


def keep_within_documents(net: GPT, row: PackedRow):
    """Put both modules into a GPT. Its parameters and their names stay as they are."""
    for block in net.blocks:
        block.attention.core = WithinDocuments(block.attention.core, row)
    if net.embedding.positions is not None:
        net.embedding.position_ids = RestartedPositions(row)
