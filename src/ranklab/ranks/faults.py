"""Which rank is to blame, and the message that says so.

When one rank fails, all fail: the others wait for it in a collective, and their errors are echoes.
The rank to name is

- the one that raised first, by the time it stamped before it cut its connections: an echo has a
  later stamp;
- or the one whose process is gone;
- where ranks brought different things to one collective, those in the minority;
- where ranks wait, the one that does not come and does not wait itself: not those that wait for it,
  whose patience happens to end first;
- where they wait for each other, all of them.
"""

import linecache
import re
from collections import Counter

from .board import CallKind, Post
from .findings import Circle, Finding, Missed
from .messages import Died, Disagreement, Frame, Raised, Refused, Returned
from .output import MOST_BYTES
from .watch import NOTICED, Flooded, Interrupted, Outcome, OverTime

OF_CHECKS = Disagreement.__name__


class RankError(RuntimeError):
    """An error on ranks, in a few lines. `ranks` are the ranks to blame."""

    def __init__(self, message: str, ranks: list[int]):
        super().__init__(message)
        self.ranks = ranks

    def _render_traceback_(self):
        """The traceback for IPython: the lines of the waiting parent would not help."""
        return [f"{type(self).__name__}: {self}"]


class RankRaised(RankError):
    """An exception on a rank."""


class RankDied(RankError):
    """The process of a rank is gone."""


class RankAbsent(RankError):
    """A rank did not reach a collective in which other ranks waited for it."""


class RanksDeadlocked(RankAbsent):
    """Ranks wait for each other, so that none of them can go on."""


class RankFlooded(RankError):
    """A rank prints without end."""


class RanksDisagree(RankError):
    """Ranks brought different operations, shapes or types to one collective."""


class RanksTooSlow(RankError):
    """A limit on the whole work has passed."""


class RanksInterrupted(KeyboardInterrupt):
    """The reader stopped the ranks."""

    def _render_traceback_(self):
        return [str(self)]


def verdict(outcome: Outcome, after: str) -> Exception | KeyboardInterrupt:
    """The error to raise. `after` is its last line: the state of the ranks now."""
    ends, trouble = outcome.ends, outcome.trouble

    def error(kind: type[RankError], ranks: list[int], *lines: str, told: list[int]) -> RankError:
        """`told` are the ranks of which these lines tell already."""
        return kind(_lines(*lines, *_others(outcome, told), after), ranks)

    if isinstance(trouble, Interrupted):
        return RanksInterrupted(_lines("The ranks were interrupted.", *_others(outcome, []), after))
    refused = next((end for end in ends if isinstance(end, Refused)), None)
    if refused:
        return ValueError(refused.sentence)
    raised = {r: end for r, end in enumerate(ends) if isinstance(end, Raised) and not end.stopped}
    own = {r: end for r, end in raised.items() if not end.echo}
    died = {r: end for r, end in enumerate(ends) if isinstance(end, Died)}
    first = min({**own, **died}.items(), key=lambda pair: pair[1].seconds, default=None)
    if isinstance(trouble, NOTICED):
        # this was noticed before any error; errors raised when the ranks were stopped do not count
        first = None
    if outcome.posts and (first is None or getattr(first[1], "error", "") == Disagreement.__name__):
        lines, guilty = _disagreement(outcome.posts)
        return RanksDisagree(_lines(*lines, *_whereabouts(outcome, guilty), after), guilty)
    if isinstance(trouble, Finding):
        kind = RanksDeadlocked if isinstance(trouble, Circle) else RankAbsent
        ranks = ranks_of(trouble)
        said = sentence_of(trouble), *_whereabouts(outcome, ranks)
        return error(kind, ranks, *said, told=ranks)
    if isinstance(trouble, Flooded):
        said = (
            f"{_ranks(trouble.ranks).capitalize()} printed more than {MOST_BYTES // 10**6} MB in"
            " one piece of work: what is shown is the beginning and the end."
        )
        return error(RankFlooded, trouble.ranks, said, told=[])
    if isinstance(trouble, OverTime):
        late = [r for r, end in enumerate(ends) if not isinstance(end, Returned)]
        who = f"{_ranks(late)} had not ended" if late else "the work had only just ended"
        said = f"After {trouble.limit_seconds:g} s {who}."
        return error(RanksTooSlow, late, said, told=[])
    if first is None:  # nothing but echoes
        first = min(raised.items(), key=lambda pair: pair[1].seconds)
    rank, end = first
    if isinstance(end, Died):
        return error(RankDied, [rank], f"Rank {rank} died: {end.how}.", told=[rank])
    alike = [
        r for r, other in own.items() if (other.error, other.message) == (end.error, end.message)
    ] or [rank]
    said = (
        end.message if end.error == OF_CHECKS else f"raised {end.error}: {end.message}".rstrip(": ")
    )
    lines = [f"{_ranks(alike).capitalize()} {said}"]
    lines += [f"  {line}" for line in reader_lines(end.frames, limit=8)]
    lines += [f"  It came from {end.cause}"] * bool(end.cause)
    return error(RankRaised, alike, *lines, told=alike)


def _disagreement(posts: dict[int, Post]) -> tuple[list[str], list[int]]:
    """The lines of the message, and the ranks to blame."""
    counts = Counter(post.said for post in posts.values()).most_common()
    any_post = next(iter(posts.values()))
    where = f"collective {any_post.number} of {_ranks(any_post.ranks)}"
    ranks = sorted(posts)
    if len(posts) == 1:  # an all-to-all
        return [
            f"Rank {ranks[0]} disagrees with itself about {where}, {any_post.said}: it sends itself"
            " another number than it awaits from itself."
        ], ranks
    if len(counts) == 1:  # the difference is in what was before, and no longer on the board
        return [
            f"{_ranks(ranks).capitalize()} disagree with each other about a call before {where},"
            f" {any_post.what}."
        ], ranks
    tie = counts[0][1] == counts[1][1]
    guilty = [r for r in ranks if tie or posts[r].said != counts[0][0]]
    lines = [
        f"{_ranks(guilty).capitalize()} {'disagree' if tie or len(guilty) > 1 else 'disagrees'}"
        f" with {'each other' if tie else 'the others'} about {where}:"
    ]
    for what, _ in counts:
        lines.append(f"  {_ranks([r for r in ranks if posts[r].said == what])}: {what}")
    return lines, guilty


def sentence_of(found: Finding) -> str:
    """The board's finding, in words."""
    return "\n".join(_circle(found)) if isinstance(found, Circle) else _absent(found)


def ranks_of(found: Finding) -> list[int]:
    """The ranks to blame."""
    return sorted(found.waits) if isinstance(found, Circle) else found.absent


def waiting_in(found: Finding) -> list[int]:
    if isinstance(found, Circle):
        return sorted(found.waits)
    return [rank for rank in found.post.ranks if rank not in found.absent]


def _absent(trouble: Missed) -> str:
    """One sentence: which rank did not reach which collective."""
    post, absent = trouble.post, trouble.absent
    waiting = waiting_in(trouble)
    where = f"{post.what} (collective {post.number} of {_ranks(post.ranks)})"
    if trouble.patience_seconds is None:
        return (
            f"{_ranks(absent).capitalize()} ended without {where}, in which {_ranks(waiting)} took"
            " part."
        )
    within = f" within {trouble.patience_seconds:g} s" if trouble.patience_seconds else ""
    return (
        f"{_ranks(absent).capitalize()} did not come to {where}{within}, while {_ranks(waiting)}"
        " waited."
    )


def _circle(trouble: Circle) -> list[str]:
    """Which rank waits for which."""
    ranks = sorted(trouble.waits)
    none = "neither" if len(ranks) == 2 else "none"
    lines = [f"{_ranks(ranks).capitalize()} wait for each other, so {none} of them can go on:"]
    for rank, (post, absent) in sorted(trouble.waits.items()):
        lines.append(f"  rank {rank} waits for {_ranks(absent)} in {_in_call(post, rank)}")
    return lines


def _in_call(post: Post, rank: int) -> str:
    of = post.what.partition(" of ")[2]
    other = [r for r in post.ranks if r != rank]
    if post.kind is CallKind.send:
        return f"a send to {_ranks(other)} of {of}"
    if post.kind is CallKind.receive:
        return f"a recv from {_ranks(other)} of {of}"
    return post.what


def _whereabouts(outcome: Outcome, ranks: list[int]) -> list[str]:
    lines = []
    for rank in ranks:
        end, seen = outcome.ends[rank], outcome.seen[rank]
        if end is None and not seen:
            lines.append(f"  rank {rank} {_silence(outcome, rank)}")
        # another rank that was stopped first may have ended its call before it was asked
        frames = seen or (end.frames if isinstance(end, Raised) else ())
        lines += [f"  rank {rank} was in {line}" for line in reader_lines(frames)]
    return lines


def _silence(outcome: Outcome, rank: int) -> str:
    """The reason for a rank's silence, as far as it is known."""
    if rank in outcome.frozen:
        return "gave no answer: its process was stopped, as by SIGSTOP"
    if outcome.seen[rank] is None:
        return "gave no answer, as where code outside Python holds the interpreter"
    return "did not stop when told to"


def _others(outcome: Outcome, guilty: list[int]) -> list[str]:
    """A line for each kind of end of the other ranks, in rank order."""
    found: dict[str, list[int]] = {}
    for rank in range(len(outcome.ends)):
        if rank not in guilty:
            found.setdefault(_fate(outcome, rank), []).append(rank)
    return [f"  {_ranks(ranks).capitalize()} {fate}." for fate, ranks in found.items()]


def _fate(outcome: Outcome, rank: int) -> str:
    end, seen = outcome.ends[rank], outcome.seen[rank] or ()
    at = "".join(f" in {line}" for line in reader_lines(seen))
    if end is None:
        return f"{_silence(outcome, rank)}{at}"
    if isinstance(end, Returned):
        return "had finished"
    if isinstance(end, Died):
        return f"died: {end.how}"
    if end.stopped:
        return f"stopped{at}"
    if end.echo:  # asked for its place, a rank may have been on its way to the collective
        at = "".join(f" in {line}" for line in reader_lines(end.frames)) or at
        return f"waited in a collective{', last seen' * bool(at)}{at}"
    said = end.message if end.error == OF_CHECKS else f"raised {end.error}: {end.message}"
    return said.rstrip(": .")


def reader_lines(frames: tuple[Frame, ...], limit: int = 1) -> list[str]:
    """The innermost lines of the reader's code, outermost first. The parent knows the text of a
    notebook's cells."""
    lines = []
    for file, line, function in frames[-limit:]:
        text = linecache.getline(file, line).strip()
        file = "a cell" if re.search(r"ipykernel_\d+|<ipython-input", file) else file
        lines.append(
            f"{file}, line {line}{f', {function}' * (function != '<module>')}"
            f"{': ' * bool(text)}{text}"
        )
    return lines


def _ranks(ranks: list[int]) -> str:
    """rank 1; ranks 0 and 2; ranks 0, 1 and 3."""
    names = [str(rank) for rank in ranks]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"
    return f"rank{'s' * (len(names) > 1)} {listed}"


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)
