"""A rank's report about itself: its error, and its place in the code."""

import os
import sys
import threading
import traceback

import torch
import torch.distributed as dist

from shardlab.common import torch_internals

from .messages import Frame, Raised, text_of

ECHOES = ("gloo", "NCCL", "peer", "Broken pipe", "Wait timeout", "Timed out")
STANDARD_LIBRARY = os.path.dirname(os.path.abspath(threading.__file__))
OUR_FOLDER = os.path.dirname(os.path.abspath(__file__))
NOT_THE_READERS = (OUR_FOLDER, torch_internals.__file__, os.path.dirname(torch.__file__))
MOST_LETTERS = 20_000  # of an error's message
MOST_CAUSES = 1000


def raised(error: BaseException, seconds: float, stopped: type[BaseException]) -> Raised:
    """`stopped` is the exception of a rank that was told to stop."""
    first = origin(error)
    return Raised(
        str.__str__(type(error).__name__),
        message_of(error),
        readers_frames(traceback.walk_tb(error.__traceback__)),
        seconds,
        is_echo(first),
        isinstance(first, stopped),
        named(first) if first is not error else "",
    )


def origin(error: BaseException) -> BaseException:
    """The error that led to this one, through all errors between them. An error may be its own
    cause, as after `raise error from error`."""
    chain = [error]
    while len(chain) < MOST_CAUSES:
        before = error.__cause__
        if before is None and not error.__suppress_context__:
            before = error.__context__
        if before is None or any(before is one for one in chain):
            break
        chain.append(error := before)
    return error


def named(error: BaseException) -> str:
    """KeyError: 'x'"""
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")


def message_of(error: BaseException) -> str:
    """The error's text; a very long text keeps its beginning and end."""
    text = text_of(error)
    if len(text) > MOST_LETTERS:
        half = MOST_LETTERS // 2
        left_out = f"{len(text) - 2 * half:,} letters are left out here"
        return f"{text[:half]} ... {left_out} ... {text[-half:]}"
    return text


def is_echo(error: BaseException) -> bool:
    """Whether a collective raised this because another rank has left it."""
    echoes = type(error) is RuntimeError and any(word in message_of(error) for word in ECHOES)
    return echoes or isinstance(error, dist.DistError)


def thread_frames(thread: threading.Thread) -> tuple[Frame, ...]:
    """The thread's place in the reader's code now."""
    frame = sys._current_frames().get(thread.ident)
    return readers_frames(reversed(list(traceback.walk_stack(frame))))


def readers_frames(frames) -> tuple[Frame, ...]:
    """(file, line, function), outermost first, without the frames of this package and of torch.

    Python 3.11 has no line for the jump that ends a loop: then the function's first line is
    used."""
    found = (
        (frame.f_code.co_filename, line or frame.f_code.co_firstlineno, frame.f_code.co_name)
        for frame, line in frames
    )
    return tuple(
        f
        for f in found
        if not f[0].startswith((*NOT_THE_READERS, "<frozen", "<string>"))
        and (not f[0].startswith(STANDARD_LIBRARY) or "site-packages" in f[0])
    )
