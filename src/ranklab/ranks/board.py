"""The board: which rank is in which collective, in memory that the ranks and their parent see.

Before a collective a rank writes a post: the channel, the number of the call in that channel, and
what the rank brings. A channel is a process group, or a direction between two of its ranks for send
and recv. The members of a channel make the same calls in the same order, so the posts with the same
number belong to one collective: posts that differ, or a post that never comes, tell who is wrong.

Each rank writes only its own part, so no lock is needed. The part has a row for each channel: the
number of calls, and the last posts. A channel is found by its key, not by its key modulo something,
so that two channels never share a row. If a rank has more channels than rows, the least recently
used channel gives up its row.

A post carries a digest of all earlier posts of its channel. Two ranks that differed once differ
forever, with any number of calls under way and even after the posts themselves were overwritten.
"""

import mmap
import struct
import time
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from .place import SharedFile

CHANNELS, DEPTH = 64, 512  # rows of a rank, posts of a row
ROW = struct.Struct("<QQdIIB7x")
POST = struct.Struct("<IIIdBBH160s")
FLAGS = 8  # bytes before the rows of a rank: how many channels have lost their row
ROWS_END = FLAGS + CHANNELS * ROW.size  # bytes before the posts
TEXT = 160
MOST_RANKS = 64  # the members of a channel are the bits of one integer


class CallKind(IntEnum):
    collective = 1
    send = 2
    receive = 3


class Post(NamedTuple):
    channel: int
    number: int  # from 1
    seconds: float  # when it was written
    members: int  # bit r: rank r belongs to the channel
    kind: CallKind
    # "all_reduce sum of float32 [4, 3]"; the same for all members, or they disagree
    what: str
    blocking: bool = False  # the rank waits in this call and does nothing else
    history: int = 0  # a digest of the earlier posts of this channel
    # of an all-to-all: elements to each member and from each member
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[int]:
        return members_of(self.members)

    @property
    def digest(self) -> int:
        return zlib.crc32(self.what.encode())

    @property
    def said(self) -> str:
        """The post in words, also with the parts that may differ between ranks."""
        if not self.sends:
            return self.what
        sends, receives = list(self.sends), list(self.receives)
        return f"{self.what}, which sends {sends} and awaits {receives} elements"

    def differs(self, other: "Post") -> bool:
        return (self.what, self.history) != (other.what, other.history)


class ChannelRow(NamedTuple):
    """One rank's use of a channel."""

    channel: int
    members: int
    seconds: float  # of the last call
    first: int  # the first call since the channel got this row
    count: int  # the number of the last call
    kind: CallKind


class Unfinished(NamedTuple):
    """The first call of a channel that some members have reached and others have not."""

    post: Post
    came: list[int]
    absent: list[int]


def members_of(bits: int) -> list[int]:
    return [rank for rank in range(MOST_RANKS) if bits >> rank & 1]


def shortened(text: str) -> str:
    """The text shortened to the room of a post, still different for different texts."""
    if len(text.encode()) <= TEXT:
        return text
    text = text.encode("ascii", "replace").decode()
    return f"{text[: TEXT - 54]} ... {text[-32:]} (#{zlib.crc32(text.encode()):08x})"


class Board:
    """`visible` are the ranks that write here; under torchrun the ranks of this machine."""

    def __init__(self, file: SharedFile, world_size: int, visible: Iterable[int] | None = None):
        self.world_size = world_size
        self.visible = list(range(world_size) if visible is None else visible)
        self.memory = mmap.mmap(file.fd, self.nbytes(world_size))
        self.post_size = _post_size(world_size)
        self.rank_size = self.nbytes(world_size) // world_size
        self.forget()

    def forget(self):
        """Forget the places of all rows: the board was cleared."""
        self.rows: dict[tuple[int, int], int] = {}  # (rank, channel) -> where, once found
        # of the writer: channel -> where, its first call
        self.mine: dict[int, tuple[int, int]] = {}

    @staticmethod
    def nbytes(world_size: int) -> int:
        posts = CHANNELS * DEPTH * _post_size(world_size)
        return world_size * (ROWS_END + posts)

    def close(self):
        self.memory.close()

    def clear(self):
        """Call while no rank is at work. A row decides which of its posts count, so clearing the
        rows is enough."""
        for rank in range(self.world_size):
            begin = rank * self.rank_size
            self.memory[begin : begin + ROWS_END] = bytes(ROWS_END)
        self.forget()

    # --- writing ----------------------------------------------------------------------------------

    def write(self, rank: int, post: Post):
        """The numbers are written last: a reader that sees them finds the rest of the post
        complete."""
        index, first = self.mine.get(post.channel) or self._claim(rank, post)
        at = self._post_at(rank, index, post.number)
        struct.pack_into("<I", self.memory, at, 0)
        capped = [min(count, 2**32 - 1) for count in post.sends + post.receives]
        counts = struct.pack(f"<{len(capped)}I", *capped)
        self.memory[at + 4 : at + POST.size] = POST.pack(
            0,
            post.digest,
            post.history,
            post.seconds,
            post.kind,
            post.blocking,
            len(post.sends),
            post.what.encode()[:TEXT],
        )[4:]
        self.memory[at + POST.size : at + POST.size + len(counts)] = counts
        struct.pack_into("<I", self.memory, at, post.number)
        at = self._row_at(rank, index)
        # one copy over the row of before: pack_into would empty it first, and whoever looks in that
        # moment would find a rank that has never been in this channel
        self.memory[at : at + ROW.size] = ROW.pack(
            post.channel, post.members, post.seconds, first, post.number, post.kind
        )

    def _claim(self, rank: int, post: Post) -> tuple[int, int]:
        """A row for a new channel: the next free row, else the least recently used one. Also
        returns the first call of the channel in that row."""
        index = len(self.mine)
        if index == CHANNELS:
            index = min(range(CHANNELS), key=lambda i: self._row(rank, i).seconds)
            lost = struct.unpack_from("<Q", self.memory, rank * self.rank_size)[0]
            struct.pack_into("<Q", self.memory, rank * self.rank_size, lost + 1)
            self.mine.pop(self._key(rank, index))
        self.mine[post.channel] = index, post.number
        return self.mine[post.channel]

    # --- reading ----------------------------------------------------------------------------------

    def post(self, rank: int, channel: int, number: int) -> Post | None:
        """The post of that call of `rank`, if the rank has made it and the post is not
        overwritten."""
        index = self._index(rank, channel)
        if index is None:
            return None
        row, at = self._row(rank, index), self._post_at(rank, index, number)
        written, _, history, seconds, kind, blocking, parts, what = POST.unpack_from(
            self.memory, at
        )
        if written != number or not row.first <= number <= row.count:  # from before the last clear
            return None
        counts = struct.unpack_from(f"<{2 * parts}I", self.memory, at + POST.size)
        return Post(
            channel,
            number,
            seconds,
            row.members,
            CallKind(kind),
            what.rstrip(b"\0").decode(errors="replace"),
            bool(blocking),
            history,
            counts[:parts],
            counts[parts:],
        )

    def same_call(self, rank: int, post: Post, digest: int) -> Post | None:
        """The post of `rank` for the same call, if it exists and differs, or if the call is an
        all-to-all."""
        index = self._index(rank, post.channel)
        if index is None:
            return None
        at = self._post_at(rank, index, post.number)
        number, theirs, history = struct.unpack_from("<III", self.memory, at)
        same = (theirs, history) == (digest, post.history) and not post.sends
        if number != post.number or same:
            return None
        found = self.post(rank, post.channel, post.number)
        if found is not None and found.differs(post):
            time.sleep(0.002)  # the post may be half written: read it again
            found = self.post(rank, post.channel, post.number)
        return found

    def rows_of(self, rank: int) -> dict[int, ChannelRow]:
        begin = rank * self.rank_size
        rows = ROW.iter_unpack(self.memory[begin + FLAGS : begin + ROWS_END])
        # a row whose kind is still 0 is being written: its rank has not made the call yet
        return {
            row[0]: ChannelRow(*row[:-1], CallKind(row[-1])) for row in rows if row[0] and row[-1]
        }

    def has_lost_rows(self, rank: int) -> bool:
        return bool(struct.unpack_from("<Q", self.memory, rank * self.rank_size)[0])

    # --- where things are -------------------------------------------------------------------------

    def _index(self, rank: int, channel: int) -> int | None:
        index = self.rows.get((rank, channel))
        if index is not None and self._key(rank, index) == channel:
            return index
        for index in range(CHANNELS):
            key = self._key(rank, index)
            if key == channel:
                self.rows[rank, channel] = index
                return index
            if not key:  # the rows after it are free
                return None
        return None

    def _key(self, rank: int, index: int) -> int:
        return struct.unpack_from("<Q", self.memory, self._row_at(rank, index))[0]

    def _row(self, rank: int, index: int) -> ChannelRow:
        return ChannelRow(*ROW.unpack_from(self.memory, self._row_at(rank, index)))

    def _row_at(self, rank: int, index: int) -> int:
        return rank * self.rank_size + FLAGS + index * ROW.size

    def _post_at(self, rank: int, index: int, number: int) -> int:
        post = index * DEPTH + number % DEPTH
        return rank * self.rank_size + ROWS_END + post * self.post_size


def _post_size(world_size: int) -> int:
    return POST.size + 8 * world_size
