"""The messages from a world to a rank, the rank's answers, and the outcomes."""

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
    """Report your place in the code, cut your connections so that no rank waits for you, and stop
    your work."""


# --- from a rank: how a piece of work ended -------------------------------------------------------


class Returned(NamedTuple):
    pickled: bytes
    ungrouped: bool = False  # the work has ended the process group, or made another


class Raised(NamedTuple):
    error: str
    message: str
    frames: tuple[Frame, ...]
    seconds: float  # the time, on the clock that all processes of a machine share
    echo: bool  # the error of a collective that another rank has left
    stopped: bool  # it was told to stop
    cause: str = ""  # "KeyError: 'x'", if another error led to this one


class Refused(NamedTuple):
    """This machine cannot provide the request: one sentence."""

    sentence: str


class Died(NamedTuple):
    """Noticed by the parent: the process is gone."""

    how: str
    seconds: float


class Seen(NamedTuple):
    """The rank's place in the code when it was told to stop; its work has not ended yet."""

    frames: tuple[Frame, ...]


# --- what a rank raises in itself, instead of a collective; the message goes on from "Rank 1"


class Disagreement(RuntimeError):
    """This rank's call differs from another rank's. The reader sees RanksDisagree, made from all
    posts."""


class BringsNaN(RuntimeError):
    """This rank's data for a reduction have a NaN, and NaNs are forbidden."""


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
    """Ranks cannot import a script that `runpy` runs: its functions are sent by value, like a
    notebook's."""
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
