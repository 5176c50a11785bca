"""What a world says to a rank, what a rank answers, and what became of it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import cloudpickle

Frame = tuple[str, int, str]  # file, line, function


# --- to a rank: work, in the order sent -----------------------------------------------------------


class Call(NamedTuple):
    """Call a function. `pickled` holds (function, args, kwargs), the functions of a notebook by
    value."""

    pickled: bytes


class Cell(NamedTuple):
    """Run a notebook cell in the rank's own `__main__`."""

    source: str
    name: str


class Regroup(NamedTuple):
    """Make the process group anew, after it broke."""

    generation: int


class Quit(NamedTuple):
    """End."""


# --- to a rank: at once, also while it works ------------------------------------------------------


class Stop(NamedTuple):
    """Say where you are, cut your connections so that nobody waits for you, and leave what you are
    doing."""


# --- from a rank: how a piece of work ended -------------------------------------------------------


class Returned(NamedTuple):
    pickled: bytes
    ungrouped: bool = False  # the work has ended the process group, or made another


class Raised(NamedTuple):
    error: str
    message: str
    frames: tuple[Frame, ...]
    seconds: float  # when, on the clock that all processes of a machine share
    echo: bool  # a collective that failed because another rank had left it
    stopped: bool  # it was told to stop
    cause: str = ""  # "KeyError: 'x'", where another error led to this one


class Refused(NamedTuple):
    """What was asked for cannot be had here: one sentence."""

    sentence: str


class Died(NamedTuple):
    """Found by the parent: the process is gone."""

    how: str
    seconds: float


class Seen(NamedTuple):
    """Where a rank was when it was told to stop; its work has not ended yet."""

    frames: tuple[Frame, ...]


# --- what a rank raises in itself, instead of a collective; the message goes on from "Rank 1"


class Disagreement(RuntimeError):
    """This rank brings something else than another. What the reader sees is RanksDisagree, made of
    all posts."""


class BringsNaN(RuntimeError):
    """This rank brings a NaN to a reduction, where that was forbidden."""


# --- functions of a notebook or a script ----------------------------------------------------------


def call_of(function, args: tuple, kwargs: dict) -> Call:
    try:
        with by_value(function):
            return Call(cloudpickle.dumps((function, args, kwargs)))
    except Exception as error:
        raise TypeError(
            f"{function_name(function)} and what it needs cannot be sent to the ranks ({error}):"
            " make it on the rank."
        ) from None


def function_name(function) -> str:
    return getattr(function, "__name__", type(function).__name__)


@contextmanager
def by_value(function) -> Iterator[None]:
    """A script that `runpy` runs is not a module that ranks could import: its functions travel as
    those of a notebook do."""
    module = sys.modules.get(getattr(function, "__module__", None))
    by_name = module is None or module.__name__ == "__main__" or module.__spec__ is not None
    if by_name or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)
