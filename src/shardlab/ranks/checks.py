"""Ranks that disagree about a collective, found before it runs.

A backend believes its callers: gloo all-reduces three elements with four and returns wrong numbers
to all. So each rank writes on the board what it brings, and looks at what the others have written
for the same collective; whoever sees a difference raises in the place of the collective. Under
`forbid_nan` a rank also refuses to bring a NaN to a sum, which would spread it to everyone.
"""

import time
import zlib
from collections import Counter

import torch
import torch.distributed as dist

from .board import Board, Kind, Post
from .calls import Call
from .messages import BringsNaN, Disagreement


class Checks:
    """A listener (see calls.py) that keeps one rank's part of the board."""

    def __init__(self, board: Board, rank: int, forbid_nan: bool):
        self.board, self.rank, self.forbid_nan = board, rank, forbid_nan
        self.forget()

    def forget(self):
        """Count from the beginning: the process group was made anew."""
        self.numbers: Counter[int] = Counter()
        self.members: dict[str, list[int]] = {}  # of a group, by its name

    def __call__(self, call: Call):
        post = self.post(call)
        if post is None:
            return
        self.board.write(self.rank, post)
        for rank in post.ranks:
            other = self.board.same_call(rank, post)
            if other is not None and other.what != post.what:
                raise Disagreement(f"brings {post.what}, rank {rank} {other.what}.")
        if self.forbid_nan:
            for tensor in call.contributed:
                if tensor.is_floating_point() and torch.isnan(tensor).any():
                    count = int(torch.isnan(tensor).sum())
                    raise BringsNaN(
                        f"brings NaN to {post.what}: {count:,} of {tensor.numel():,} elements."
                    )

    def post(self, call: Call) -> Post | None:
        name = call.group.group_name
        if name not in self.members:
            fake = dist.get_backend(call.group) == "fake"  # its other members do not exist
            self.members[name] = [] if fake else dist.get_process_group_ranks(call.group)
        if not self.members[name]:
            return None
        ranks, kind, channel = self.members[name], Kind.collective, name
        if call.name in ("send", "recv"):
            if call.peer is None:
                return None  # from anybody: no channel to count in
            here = call.group.rank()
            source, target = (here, call.peer) if call.name == "send" else (call.peer, here)
            ranks, kind = (
                [ranks[source], ranks[target]],
                Kind.send if call.name == "send" else Kind.receive,
            )
            channel = f"{name} {source} {target} {call.tag}"
        channel = zlib.crc32(f"{channel} {ranks}".encode())
        self.numbers[channel] += 1
        return Post(
            channel,
            self.numbers[channel],
            time.monotonic(),
            sum(1 << r for r in ranks),
            kind,
            self.describe(call, kind),
        )

    def describe(self, call: Call, kind: Kind) -> str:
        """One line that must be the same on all members. Sender and receiver may see one message in
        different shapes."""
        if kind is not Kind.collective:
            return (
                "send and recv of"
                f" {', '.join(f'{_dtype(t)}, {t.numel():,} elements' for t in call.own)}"
            )
        parts = [f"{_dtype(t)} {list(t.shape)}" if call.alike else _dtype(t) for t in call.own[:2]]
        parts += [f"and {len(call.own) - 2} more"] if len(call.own) > 2 else []
        of = f" of {', '.join(parts)}" if parts else ""
        root = (
            f", root {self.members[call.group.group_name][call.peer]}"
            if call.peer is not None
            else ""
        )
        return f"{call.name}{' ' * bool(call.reduction)}{call.reduction}{of}{root}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
