"""Refusals: the sentence of work that raises."""

from collections.abc import Callable


def said_by(work: Callable, *kinds: type[Exception]) -> str | None:
    """The sentence of the error, which is of one of these kinds; None without one."""
    try:
        work()
    except kinds as error:
        return str(error)
