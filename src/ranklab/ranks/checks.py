"""Ranks that disagree about a collective, found before it runs.

A backend trusts its callers: gloo all-reduces three elements with four and returns wrong numbers to
all. So each rank writes the shape and type of its data on the board and compares them with the
posts of the other ranks for the same collective. A rank that sees a difference raises instead of
making the collective.
"""

import sys
import time
import zlib
from collections.abc import Callable
from hashlib import blake2b
from itertools import groupby, islice
from traceback import walk_stack
from typing import NamedTuple

import torch
import torch.distributed as dist

from .board import MOST_RANKS, Board, CallKind, Post, shortened
from .calls import CollectiveCall
from .findings import uneven
from .messages import Disagreement

C10D = dist.distributed_c10d.__file__
WAITING = ("send", "recv")  # the functions of PyTorch that make a message and wait for it
CALLERS = 6  # frames between the operator and such a function


class GroupMembers(NamedTuple):
    """The members of a process group, and its channel."""

    ranks: list[int]
    members: int
    channel: int


class Checks:
    """A listener (see calls.py) that keeps one rank's part of the board, and raises what `error`
    makes of a sentence that goes on from "Rank 1"."""

    def __init__(self, board: Board, rank: int, error: Callable[[str], Exception] = Disagreement):
        self.board, self.rank, self.error = board, rank, error
        self.forget()

    def forget(self):
        """Count from zero again: the process group was made anew."""
        self.board.forget()
        self.made: dict[int, tuple[int, int]] = {}  # calls and digest of a channel
        self.groups: dict[str, GroupMembers] = {}
        self.keys: dict[tuple, int] = {}

    def __call__(self, call: CollectiveCall):
        post = self.post(call)
        if post is not None:
            self.compare(post)

    def new_group(self, ranks: list[int] | None, among_themselves: bool):
        """A process group is about to be made: all ranks of the world must make it, or with
        `among_themselves` all of its members."""
        everyone = list(range(dist.get_world_size()))
        ranks = everyone if ranks is None else sorted(ranks)
        taking_part = ranks if among_themselves else everyone
        if self.rank in taking_part and max(taking_part, default=0) < MOST_RANKS:
            what = f"new_group of ranks {', '.join(map(str, ranks))}"
            channel = self.key("new_group", *taking_part)
            members = sum(1 << rank for rank in taking_part)
            self.compare(self.counted(channel, members, what, blocking=True))

    def compare(self, post: Post):
        """Write the post, and raise if another rank has a different post for this call."""
        self.board.write(self.rank, post)
        digest = post.digest
        if uneven(self.rank, post, {self.rank: post}):
            raise self.error(f"brings {post.said}: not those that it sends itself.")
        for rank in post.ranks:
            other = self.board.same_call(rank, post, digest)
            if other is None or rank == self.rank:
                continue
            if other.what != post.what:
                raise self.error(f"brings {post.what}, rank {rank} {other.what}.")
            if other.history != post.history:
                raise self.error(
                    f"brings {post.what}, and so does rank {rank}, but they differed in an earlier"
                    " call."
                )
            if uneven(self.rank, post, {rank: other}):
                raise self.error(f"brings {post.said}, rank {rank} {other.said}.")

    def post(self, call: CollectiveCall) -> Post | None:
        name = call.group.group_name
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = self.look_up(call.group)
        if not group.ranks:
            return None
        of_unit = f", of unit {call.unit}" if call.unit else ""
        if call.name not in ("send", "recv"):
            what = self.describe(call, group) + of_unit
            sends, receives = call.splits or ((), ())
            said = dict(blocking=not call.asynchronous, sends=sends, receives=receives)
            return self.counted(group.channel, group.members, what, **said)
        here, peer = call.group.rank(), call.peer
        of = ", ".join(f"{_dtype(t)}, {t.numel():,} elements" for t in call.own)
        of += of_unit
        blocking = is_waited_for()
        if peer is None:
            raise ValueError(
                f"recv from any rank of {of}: nobody can tell whom it waits for; name the sender,"
                " as in recv(x, src=0)."
            )
        source, target = (here, peer) if call.name == "send" else (peer, here)
        channel = self.key(name, group.members, source, target, call.tag)
        members = 1 << group.ranks[source] | 1 << group.ranks[target]
        kind = CallKind.send if call.name == "send" else CallKind.receive
        return self.counted(channel, members, f"send and recv of {of}", kind, blocking=blocking)

    def look_up(self, group: dist.ProcessGroup) -> GroupMembers:
        fake = dist.get_backend(group) == "fake"  # the other members of the group do not exist
        ranks = [] if fake else dist.get_process_group_ranks(group)
        members = sum(1 << rank for rank in ranks)
        return GroupMembers(ranks, members, self.key(group.group_name, members))

    def key(self, *parts) -> int:
        """The name of a channel as an integer of 64 bits, the same on all ranks."""
        if parts not in self.keys:
            digest = blake2b(repr(parts).encode(), digest_size=8).digest()
            self.keys[parts] = int.from_bytes(digest, "little") or 1
        return self.keys[parts]

    def counted(
        self, channel: int, members: int, what: str, kind=CallKind.collective, **said
    ) -> Post:
        """The post of this rank's next call in the channel; `said` are further fields."""
        number, history = self.made.get(channel, (0, 0))
        what, now = shortened(what), time.monotonic()
        self.made[channel] = number + 1, zlib.crc32(what.encode(), history)
        return Post(channel, number + 1, now, members, kind, what, history=history, **said)

    def describe(self, call: CollectiveCall, group: GroupMembers) -> str:
        """A line that must be the same on all members."""
        parts = [_shape(tensor) if call.alike else _dtype(tensor) for tensor in call.own]
        if len(parts) > 1:
            runs = [(part, len(list(same))) for part, same in groupby(parts)]
            parts = [f"{part}{f' x {count}' * (count > 1)}" for part, count in runs]
        of = f" of {', '.join(parts)}" if parts else ""
        root = f", root {group.ranks[call.peer]}" if call.peer is not None else ""
        return f"{call.name}{' ' * bool(call.reduction)}{call.reduction}{of}{root}"


def is_waited_for() -> bool:
    """Whether `dist.send` or `dist.recv` makes this message and waits for it."""
    callers = (frame.f_code for frame, _ in islice(walk_stack(sys._getframe(3)), CALLERS))
    return any(code.co_filename == C10D and code.co_name in WAITING for code in callers)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: torch.Tensor) -> str:
    """A backend sends raw memory: strides are as important as the shape."""
    text = f"{_dtype(tensor)} {list(tensor.shape)}"
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return text
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]
    return f"{text} with strides {strides}"
