"""The core of few bits: a number is a code of 1, 4 or 8 bits, times the scale of its block.

    signs          1 bit and the mean size of a chunk (signSGD with feedback, 2019; 1-bit Adam)
    four_bits      15 levels and the largest of 256 elements (ZeRO++, 2023; LoCo feeds back, 2024)
    in_two_hops    sums of codes are no codes: who owns a chunk decodes, adds and encodes again

Letters: n ranks, E elements, C of a chunk, R rows, B bytes of a row's codes and scales.
"""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..common.collective_wire import Group, all_gather_single
from .core import SmallBucket


def to_codes(x: Tensor, bits: int, block: int) -> Tensor:
    """Rows [R, C] as bytes [R, B]: codes, then a scale for each block of elements. Zeros fill up
    the last block."""
    blocks = F.pad(x, (0, -x.shape[1] % block)).unflatten(1, (-1, block))
    sizes, levels = blocks.abs(), levels_of(bits)
    scale = sizes.mean(-1, keepdim=True) if bits == 1 else sizes.amax(-1, keepdim=True)
    codes = (blocks / scale.clamp(min=torch.finfo(x.dtype).tiny) + 1) * levels / 2
    codes = codes.round().clamp(0, levels).to(torch.uint8).view(len(x), -1, 8 // bits)
    packed = (codes << shifts(bits, x.device)).sum(-1, dtype=torch.uint8)
    return torch.cat([packed, scale.flatten(1).view(torch.uint8)], 1)


def from_codes(rows: Tensor, bits: int, block: int, like: Tensor) -> Tensor:
    """Bytes [R, B] as elements of the dtype of `like`, zeros at the end of a row included."""
    blocks = 8 * rows.shape[1] // (bits * block + 8 * like.element_size())
    packed, scale = rows.split([blocks * block * bits // 8, blocks * like.element_size()], 1)
    codes = packed.unsqueeze(-1) >> shifts(bits, rows.device) & 2**bits - 1
    scale = scale.clone(memory_format=torch.contiguous_format).view(like.dtype)
    values = codes.view(len(rows), blocks, block).to(like.dtype) * (2 / levels_of(bits)) - 1
    return (values * scale.unsqueeze(-1)).flatten(1)


def levels_of(bits: int) -> int:
    """The number of the last code. One bit has -1 and 1, four bits have -7 to 7."""
    return max(1, 2**bits - 2)


def shifts(bits: int, device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


def in_two_hops(total: Tensor, kept: dict, group: Group, bits: int, block: int = 0):
    """The sum over ranks of `total` [E], in place. An all-to-all takes each chunk to its owner; an
    all-gather takes the sums to all. Both round, so both have an error."""
    n = dist.get_world_size(group)
    chunk = -(-len(total) // n)
    block = block or chunk + -chunk % 8  # one scale for all
    chunks = F.pad(total, (0, n * chunk - len(total))).view(n, chunk)
    sent = to_codes(chunks, bits, block)
    arrived = torch.empty_like(sent)
    yield dist.all_to_all_single(arrived, sent, group=group, async_op=True)
    own = from_codes(arrived, bits, block, total).sum(0, keepdim=True)[:, :chunk]  # [1, C]
    own += kept.get("server_error", 0)
    answer = to_codes(own, bits, block)
    yield all_gather_single(arrived, answer, group=group, async_op=True)
    kept["server_error"] = own - from_codes(answer, bits, block, total)[:, :chunk]
    together = lambda rows: from_codes(rows, bits, block, total)[:, :chunk].flatten()[: len(total)]
    kept["error"] = total - together(sent)
    total.copy_(together(arrived))


def few_bits(bucket: SmallBucket, group: Group, bits: int, block: int = 0):
    yield from in_two_hops(bucket.gradients, bucket.kept, group, bits, block)


signs = partial(few_bits, bits=1)
four_bits = partial(few_bits, bits=4, block=256)
