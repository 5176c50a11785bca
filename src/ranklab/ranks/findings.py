"""The board's findings about ranks that do not continue: absent ranks, ranks that wait for each
other, ranks that disagree.

An absent rank need not be guilty: it may wait for a third rank itself. So waiting ranks are
followed to a rank that does not wait, and that rank is named. If this leads back to the beginning,
the ranks wait for each other, and all of them are named.
"""

from typing import NamedTuple

from .board import DEPTH, Board, ChannelRow, Post, Unfinished, members_of
from .messages import Returned

NCCL_START_SECONDS = 60.0  # of a first call, in which ranks connect their GPUs and load kernels
STILL_SECONDS = 1.0  # ranks must have waited for each other for so long before a circle is reported


class Missed(NamedTuple):
    """A rank has ended its work without a collective in which others wait, or has kept them waiting
    for longer than the world's patience."""

    post: Post
    absent: list[int]
    patience_seconds: float | None = None  # None: the work has ended


class Circle(NamedTuple):
    """Ranks that wait for each other: for each rank the call in which it waits, and the rank that
    it waits for."""

    waits: dict[int, tuple[Post, list[int]]]


Finding = Missed | Circle


def first_finding(
    board: Board, ends: list, patience_seconds: float, now: float, start_seconds: float = 0.0
) -> Finding | None:
    """The first call that a rank will not reach, or has not reached for too long. `ends` has the
    end of each rank's work, None if it has not ended. The first call of a channel may take
    `start_seconds` more."""
    calls = sorted(unfinished(board), key=lambda call: call.post.seconds)
    for call in calls:
        never = [r for r in call.absent if isinstance(ends[r], Returned)]
        someone = any(ends[r] is None or isinstance(ends[r], Returned) for r in call.came)
        if never and someone:
            return Missed(call.post, never)
    waits = waiting_ranks(board, calls, ends)
    if circle := closed(waits, now):
        return circle
    for call in calls:
        patience = patience_seconds + start_seconds * (call.post.number == 1)
        if any(ends[r] is None for r in call.came) and now - call.post.seconds > patience:
            return root(call, waits, patience)
    return None


def waiting_ranks(board: Board, calls: list[Unfinished], ends: list) -> dict[int, Unfinished]:
    """For each rank at work, the last call of all its channels if that call has not ended."""
    waits = {}
    for rank in board.visible:
        rows = board.rows_of(rank).values()
        last = max(rows, key=lambda row: row.seconds, default=None)
        for call in calls:
            if rank in call.came and ends[rank] is None and last.channel == call.post.channel:
                post = board.post(rank, last.channel, last.count) or call.post
                waits[rank] = call._replace(post=post)
    return waits


def closed(waits: dict[int, Unfinished], now: float) -> Circle | None:
    """Ranks that certainly cannot continue: each of them waits, doing nothing else, for another one
    of them."""
    stuck = {
        r: call
        for r, call in waits.items()
        if call.post.blocking and now - call.post.seconds > STILL_SECONDS
    }
    while free := [r for r, call in stuck.items() if stuck.keys().isdisjoint(call.absent)]:
        for r in free:
            del stuck[r]
    return circle_in(stuck, next(iter(stuck))) if stuck else None


def circle_in(waits: dict[int, Unfinished], rank: int) -> Circle:
    """The circle that starts at `rank`, if each rank waits for a waiting one."""
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        rank = next(r for r in waits[rank].absent if r in waits)
    members = sorted(path[path.index(rank) :])
    return Circle({r: (waits[r].post, waits[r].absent) for r in members})


def root(call: Unfinished, waits: dict[int, Unfinished], patience_seconds: float) -> Finding:
    """Follow absent ranks to ranks that do not wait."""
    seen: list[int] = []
    ahead = [(call, rank) for rank in call.absent]
    guilty: list[tuple[Unfinished, int]] = []  # who is absent, and in which call
    while ahead:
        missed, rank = ahead.pop(0)
        if rank in seen:
            continue
        seen.append(rank)
        if rank in waits:
            ahead += [(waits[rank], other) for other in waits[rank].absent]
        else:
            guilty.append((missed, rank))
    if not guilty:
        return circle_in(waits, call.absent[0])
    first = min((missed for missed, _ in guilty), key=lambda missed: missed.post.seconds)
    absent = [rank for missed, rank in guilty if missed is first]
    return Missed(first.post, absent, patience_seconds)


# --- the calls on the board -----------------------------------------------------------------------


def rows_by_channel(board: Board) -> list[dict[int, ChannelRow]]:
    """For each channel the row of each rank that has used it."""
    found: dict[int, dict[int, ChannelRow]] = {}
    for rank in board.visible:
        for channel, row in board.rows_of(rank).items():
            found.setdefault(channel, {})[rank] = row
    return list(found.values())


def unfinished(board: Board) -> list[Unfinished]:
    """For each channel the first call that only some of its members have made. A channel that lost
    its row on some rank is left out."""
    return [*filter(None, (_of_channel(board, used) for used in rows_by_channel(board)))]


def _of_channel(board: Board, used: dict[int, ChannelRow]) -> Unfinished | None:
    members = members_of(next(iter(used.values())).members)
    here = [rank for rank in members if rank in board.visible]  # others are on other machines
    if any(rank not in used and board.has_lost_rows(rank) for rank in here):
        return None
    counts = {rank: used[rank].count if rank in used else 0 for rank in here}
    number = min(counts.values()) + 1
    came = [rank for rank, count in counts.items() if count >= number]
    if not came:
        return None
    # of that call, or of the earliest later call whose post is not overwritten
    kept = {rank: max(number, used[rank].first, used[rank].count - DEPTH + 1) for rank in came}
    found = [board.post(rank, used[rank].channel, kept[rank]) for rank in came]
    posts = [post for post in found if post is not None]
    if not posts:  # it was overwritten just now
        return None
    absent = [rank for rank in counts if rank not in came]
    return Unfinished(min(posts, key=lambda post: post.seconds), came, absent)


def disagreement(board: Board) -> dict[int, Post]:
    """The posts of the earliest call whose members disagree. Empty if there is none."""
    found = [_first_difference(board, used) for used in rows_by_channel(board)]
    return min(
        filter(None, found), key=lambda posts: min(p.seconds for p in posts.values()), default={}
    )


def _first_difference(board: Board, used: dict[int, ChannelRow]) -> dict[int, Post]:
    begin = min(max(row.first, row.count - DEPTH + 1) for row in used.values())
    for number in range(begin, max(row.count for row in used.values()) + 1):
        posts = {r: p for r, row in used.items() if (p := board.post(r, row.channel, number))}
        one = next(iter(posts.values()), None)
        if any(post.differs(one) for post in posts.values()):
            return posts
        for r, post in posts.items():
            for other in uneven(r, post, posts):
                return {r: post, other: posts[other]}
    return {}


def uneven(rank: int, post: Post, posts: dict[int, Post]) -> list[int]:
    """Members of an all-to-all that expect a different number of elements from `rank` than it
    sends, or send a different number than `rank` expects."""
    if not post.sends:
        return []
    place = {member: index for index, member in enumerate(post.ranks)}
    return [
        other
        for other, theirs in posts.items()
        if len(theirs.sends) == len(post.sends)
        and (post.sends[place[other]], post.receives[place[other]])
        != (theirs.receives[place[rank]], theirs.sends[place[rank]])
    ]
