"""The board: which rank is in which collective, in memory that the ranks and their parent see.

Before a collective a rank writes a post: the channel, the how-manieth call there this is, and what
it brings. A channel is a process group, or a direction between two of its ranks for send and recv.
The members of a channel make the same calls in the same order, so the posts with the same number
belong to one collective: those that differ, or one that never comes, tell who is wrong.

Each rank writes its own part and nobody waits for a lock. The part has a place for each channel and
number, modulo its size: what is old is overwritten, and of two channels with one place neither is
ever accused.
"""

import mmap
import struct
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from .shared import SharedFile

CHANNELS, DEPTH = 32, 32
POST = struct.Struct("<IIdQB103s")
HEAD = 8  # bytes of its first two fields
MOST_RANKS = 64  # the members of a channel are the bits of one integer


class Kind(IntEnum):
    collective = 1
    send = 2
    receive = 3


class Post(NamedTuple):
    channel: int
    number: int  # from 1
    seconds: float  # when it was written
    members: int  # bit r: rank r belongs to the channel
    kind: Kind
    # "all_reduce sum of float32 [4, 3]"; the same for all members, or they disagree
    what: str

    @property
    def ranks(self) -> list[int]:
        return [r for r in range(MOST_RANKS) if self.members >> r & 1]


class Board:
    @staticmethod
    def nbytes(world_size: int) -> int:
        return world_size * CHANNELS * DEPTH * POST.size

    def __init__(self, file: SharedFile, world_size: int):
        self.world_size = world_size
        self.memory = mmap.mmap(file.fd, self.nbytes(world_size))

    def _place(self, rank: int, channel: int, number: int) -> int:
        return ((rank * CHANNELS + channel % CHANNELS) * DEPTH + number % DEPTH) * POST.size

    def _read(self, place: int) -> Post | None:
        channel, number, seconds, members, kind, what = POST.unpack(
            self.memory[place : place + POST.size]
        )
        if not number:
            return None
        return Post(
            channel,
            number,
            seconds,
            members,
            Kind(kind),
            what.rstrip(b"\0").decode(errors="replace"),
        )

    def write(self, rank: int, post: Post):
        """The channel and number come last: whoever reads them finds the rest of the post
        written."""
        place, written = (
            self._place(rank, post.channel, post.number),
            POST.pack(*post[:-1], post.what.encode()[:103]),
        )
        self.memory[place : place + HEAD] = bytes(HEAD)
        self.memory[place + HEAD : place + POST.size] = written[HEAD:]
        self.memory[place : place + HEAD] = written[:HEAD]

    def same_call(self, rank: int, post: Post) -> Post | None:
        """The post of `rank` for the same collective, if it has written it and it still stands."""
        for attempt in range(2):
            found = self._read(self._place(rank, post.channel, post.number))
            if found is None or found[:2] != post[:2]:
                return None
            if found.what == post.what or attempt:
                return found
            time.sleep(0.002)  # it may be half written: look again
        return None

    def posts(self, rank: int) -> Iterator[Post]:
        size = CHANNELS * DEPTH * POST.size
        numbers = struct.iter_unpack(
            f"<4xI{POST.size - HEAD}x", self.memory[rank * size : (rank + 1) * size]
        )
        for index, (number,) in enumerate(numbers):
            if number and (post := self._read(rank * size + index * POST.size)):
                yield post

    def absent(self, post: Post) -> list[int]:
        """Members that have not come to this collective. Where the place is taken by another
        channel, nobody can tell."""
        missing = []
        for rank in post.ranks:
            there = self._read(self._place(rank, post.channel, post.number))
            if there is None or (there.channel == post.channel and there.number < post.number):
                missing.append(rank)
        return missing

    def disagreement(self) -> dict[int, Post]:
        """The earliest collective whose members brought different things: their posts. Empty if
        there is none."""
        for post in sorted(
            (p for r in range(self.world_size) for p in self.posts(r)), key=lambda p: p.seconds
        ):
            posts = {r: other for r in post.ranks if (other := self.same_call(r, post))}
            if len({other.what for other in posts.values()}) > 1:
                return posts
        return {}

    def clear(self):
        """While no rank is at work."""
        self.memory[:] = bytes(len(self.memory))

    def close(self):
        self.memory.close()
