"""All ranks or none: if one rank cannot write its part of a save, the save fails and every rank
says why."""

import os
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist

from .durable import Damaged, make_folder


class SaveFailed(RuntimeError):
    """A rank could not write. Earlier saves are unchanged."""


@contextmanager
def only_run(folder: Path, group, failed):
    """A context in which no other run saves into the folder. Raises SaveFailed on all ranks if
    another run does."""

    def lock():
        nonlocal handle
        make_folder(folder)
        with suppress(ImportError):  # Windows: the random names keep two runs apart
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SaveFailed(
                    f"another run saves into {folder} at this moment: give each run a folder of"
                    " its own."
                ) from None
            except OSError:  # a file system without locks
                pass

    handle = None
    try:
        run_together(lock, group, failed, only_rank_0=True)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def run_together(
    work: Callable, group, failed: tuple[type, str], only_rank_0: bool = False
) -> list:
    """The results of work() on all ranks. If work() raises on a rank, all ranks raise the error of
    the first such rank. work() must not communicate, so that a rank with an error leaves no rank
    waiting."""
    (kind, could_not), result, trouble, me = failed, None, None, dist.get_rank(group)
    try:
        if me == 0 or not only_rank_0:
            result = work()
    except (Damaged, SaveFailed, ValueError) as error:
        trouble = error
    except Exception as error:
        trouble = kind(f"rank {dist.get_rank()} {could_not}: {reason(error)}.")
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, (result, trouble), group=group)
    for _, trouble in everyone:
        if trouble is not None:
            raise trouble
    return [result for result, _ in everyone]


def reason(error: BaseException) -> str:
    """The reason in one line. torch.save hides the system's message behind an error of its own."""
    within, seen = error, set()
    while within is not None and id(within) not in seen:  # `raise e from e` makes a circle
        seen.add(id(within))
        if isinstance(within, OSError) and within.strerror:
            return within.strerror
        within = within.__cause__ or within.__context__
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
