"""Refusals: the sentence of work that raises, and whether it is the one that is meant."""

import re
from collections.abc import Callable


def said_by(work: Callable, *kinds: type[Exception]) -> str | None:
    """The sentence of the error, which is of one of these kinds; None without one."""
    try:
        work()
    except kinds as error:
        return str(error)


def answer_of(work: Callable, *args, **options):
    """The result of the work, or the type and the sentence of its error."""
    try:
        return work(*args, **options)
    except Exception as error:
        if type(error).__module__.startswith("ranklab.ranks"):  # for the world to tell
            raise
        return f"{type(error).__name__}: {error}"


def pattern(sentence: str) -> str:
    """The regular expression of a sentence in which "..." stands for what is in between."""
    return re.escape(sentence).replace(r"\.\.\.", ".*")


def begins(found: str, sentence: str) -> bool:
    """Whether an answer begins so; "..." stands for what is in between."""
    return bool(re.match(pattern(sentence), found, re.DOTALL))
