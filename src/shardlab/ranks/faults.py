"""Which rank is guilty, and how to say it.

When one rank fails, all fail: the others wait for it in a collective, and their errors are echoes.
The rank to name is

- the one that raised first, by the time it stamped before it cut its connections: an echo has a
  later stamp;
- or the one whose process is gone;
- where ranks brought different things to one collective, those in the minority;
- where all wait, the one that does not come: not those that wait for it, whose patience happens to
  end first.
"""

import linecache
import re
from collections import Counter

from .messages import BringsNaN, Died, Disagreement, Frame, Raised, Refused, Returned
from .watch import Awaited, Interrupted, Outcome, OverTime, Skipped

OF_CHECKS = (BringsNaN.__name__, Disagreement.__name__)


class RankError(RuntimeError):
    """What went wrong on ranks, in a few lines. `ranks` are those to blame."""

    def __init__(self, message: str, ranks: list[int]):
        super().__init__(message)
        self.ranks = ranks

    def _render_traceback_(self):
        """IPython shows this: the lines of the parent that waited would say nothing."""
        return [f"{type(self).__name__}: {self}"]


class RankRaised(RankError):
    """An exception on a rank."""


class RankDied(RankError):
    """The process of a rank is gone."""


class RankAbsent(RankError):
    """A rank did not come to a collective in which others waited for it."""


class RanksDisagree(RankError):
    """Ranks brought different operations, shapes or types to one collective."""


class RanksTooSlow(RankError):
    """A limit on the whole work has passed."""


class RanksInterrupted(KeyboardInterrupt):
    """The reader stopped the ranks."""

    def _render_traceback_(self):
        return [str(self)]


def verdict(outcome: Outcome, after: str) -> Exception | KeyboardInterrupt:
    """The error to raise. `after` is the last line: how things stand now."""
    ends, trouble = outcome.ends, outcome.trouble
    if isinstance(trouble, Interrupted):
        return RanksInterrupted(_lines("The ranks were interrupted.", *_others(outcome, []), after))
    refused = next((end for end in ends if isinstance(end, Refused)), None)
    if refused:
        return ValueError(refused.sentence)
    raised = {r: end for r, end in enumerate(ends) if isinstance(end, Raised) and not end.stopped}
    own = {r: end for r, end in raised.items() if not end.echo}
    died = {r: end for r, end in enumerate(ends) if isinstance(end, Died)}
    first = min({**own, **died}.items(), key=lambda pair: pair[1].seconds, default=None)
    if isinstance(trouble, (Skipped, Awaited, OverTime)):
        # this was noticed before any error; those that came when the ranks were stopped say nothing
        first = None
    if outcome.posts and (first is None or getattr(first[1], "error", "") == Disagreement.__name__):
        return _disagreement(outcome, after)
    if isinstance(trouble, (Skipped, Awaited)):
        return _absence(outcome, trouble, after)
    if isinstance(trouble, OverTime):
        late = [r for r, end in enumerate(ends) if not isinstance(end, Returned)]
        said = f"After {trouble.limit_seconds:g} s {_ranks(late)} had not ended."
        return RanksTooSlow(_lines(said, *_others(outcome, []), after), late)
    if first is None:  # nothing but echoes
        first = min(raised.items(), key=lambda pair: pair[1].seconds)
    rank, end = first
    if isinstance(end, Died):
        return RankDied(
            _lines(f"Rank {rank} died: {end.how}.", *_others(outcome, [rank]), after), [rank]
        )
    alike = [
        r for r, other in own.items() if (other.error, other.message) == (end.error, end.message)
    ] or [rank]
    said = (
        end.message if end.error in OF_CHECKS else f"raised {end.error}: {end.message}".rstrip(": ")
    )
    return RankRaised(
        _lines(
            f"{_ranks(alike).capitalize()} {said}",
            *_place(end.frames, limit=8),
            f"  It came from {end.cause}" if end.cause else "",
            *_others(outcome, alike),
            after,
        ),
        alike,
    )


def _disagreement(outcome: Outcome, after: str) -> RanksDisagree:
    posts = outcome.posts
    counts = Counter(post.what for post in posts.values()).most_common()
    tie = len(counts) > 1 and counts[0][1] == counts[1][1]
    guilty = sorted(r for r, post in posts.items() if tie or post.what != counts[0][0])
    any_post = next(iter(posts.values()))
    lines = [
        f"{_ranks(guilty).capitalize()} {'disagree' if tie or len(guilty) > 1 else 'disagrees'}"
        f" with {'each other' if tie else 'the others'} about collective {any_post.number} of"
        f" {_ranks(any_post.ranks)}:"
    ]
    for what, _ in counts:
        lines.append(f"  {_ranks([r for r in sorted(posts) if posts[r].what == what])}: {what}")
    lines += [
        f"  rank {r} stands in {line.strip()}"
        for r in guilty
        if isinstance(end := outcome.ends[r], Raised)
        for line in _place(end.frames)
    ]
    return RanksDisagree(_lines(*lines, after), guilty)


def _absence(outcome: Outcome, trouble: Skipped | Awaited, after: str) -> RankAbsent:
    post, absent = trouble.post, trouble.absent
    waiting = [r for r in post.ranks if r not in absent]
    where = f"{post.what} (collective {post.number} of {_ranks(post.ranks)})"
    if isinstance(trouble, Skipped):
        first = (
            f"{_ranks(absent).capitalize()} ended without {where}, in which {_ranks(waiting)} took"
            " part."
        )
    else:
        first = (
            f"{_ranks(absent).capitalize()} did not come to {where} within"
            f" {trouble.patience_seconds:g} s, while {_ranks(waiting)} waited."
        )
    lines = [
        f"  rank {r} was in {line.strip()}" for r in absent for line in _place(outcome.seen[r])
    ]
    return RankAbsent(_lines(first, *lines, *_others(outcome, absent), after), absent)


def _others(outcome: Outcome, guilty: list[int]) -> list[str]:
    """A line for each kind of end of the ranks that are not to blame, in rank order."""
    found: dict[str, list[int]] = {}
    for rank, end in enumerate(outcome.ends):
        if rank not in guilty:
            found.setdefault(_fate(end, outcome.seen[rank]), []).append(rank)
    return [f"  {_ranks(ranks).capitalize()} {fate}." for fate, ranks in found.items()]


def _fate(end, seen) -> str:
    at = "".join(f" in {line.strip()}" for line in _place(seen))
    if end is None:
        return f"did not stop when told to{at}"
    if isinstance(end, Returned):
        return "had ended"
    if isinstance(end, Died):
        return f"died: {end.how}"
    if end.stopped:
        return f"stopped{at}"
    if end.echo:
        return (
            "waited in a"
            f" collective{at or ''.join(f' in {line.strip()}' for line in _place(end.frames))}"
        )
    return (end.message if end.error in OF_CHECKS else f"raised {end.error}: {end.message}").rstrip(
        ": ."
    )


def _place(frames: tuple[Frame, ...], limit: int = 1) -> list[str]:
    """The innermost lines of the reader's code, outermost first. The parent knows the text of a
    notebook's cells."""
    lines = []
    for file, line, function in frames[-limit:]:
        text = linecache.getline(file, line).strip()
        file = "a cell" if re.search(r"ipykernel_\d+|<ipython-input", file) else file
        lines.append(
            f"  {file}, line"
            f" {line}{f', {function}' * (function != '<module>')}{': ' * bool(text)}{text}"
        )
    return lines


def _ranks(ranks: list[int]) -> str:
    """rank 1; ranks 0 and 2; ranks 0, 1 and 3."""
    names = [str(rank) for rank in ranks]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "none"
    return f"rank{'s' * (len(names) > 1)} {listed}"


def _lines(*lines: str) -> str:
    return "\n".join(line for line in lines if line)
