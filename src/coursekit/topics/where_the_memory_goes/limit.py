"""Running out of memory without harm: run something under a limit, and see how far it gets.

    try_within(900 * 2**20, device, train_once, [dict(microbatch=2), dict(microbatch=4)])
    # Tried: what fitted, what did not and why; or why nothing was tried

The machine is asked first whether it has that much to give. On a GPU the limit is this process's
share of the card, put back afterwards. On a CPU the work runs in a process of its own, which the
system holds to the limit.
"""

import gc
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

from coursekit.machine.apart import apart
from coursekit.machine.capabilities import control_groups

SPARE = 2  # this many times the limit must be free before anything is tried
LINE_LENGTH = 66  # of what a lab prints
CHILD_SECONDS = 300  # against a process that hangs


class Attempt(NamedTuple):
    """One case and how it ended: `error` is empty where it fitted, else the first line of what the
    allocator said."""

    case: dict[str, Any]
    error: str


class Tried(NamedTuple):
    """The attempts, or why none was made."""

    attempts: list[Attempt]
    why_not: str = ""

    @property
    def fitted(self) -> list[int]:
        return [next(iter(attempt.case.values())) for attempt in self.attempts if not attempt.error]

    def __str__(self) -> str:
        if not self.attempts:
            return fill(self.why_not, LINE_LENGTH)
        last = self.attempts[-1]
        fitted = ", ".join(map(str, self.fitted)) or "nothing"
        if not last.error:
            return f"fitted: {fitted}, and nothing failed"
        asked = re.search(r"tried to allocate (\d+) bytes", last.error)
        why = f"no room for a tensor of {int(asked[1]):,} bytes" if asked else last.error
        refused = f"{next(iter(last.case.values()))} did not: {why}"
        return fill(f"fitted: {fitted}; {refused}", LINE_LENGTH)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of the device, or on a CPU of the machine or its container; None if the system
    does not report it."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    return min([free, *(group.most - group.used for group in control_groups())])


def cannot_try(limit_bytes: int, device: torch.device) -> str:
    """One sentence that says why try_within cannot be used here; empty if it can."""
    if device.type == "cpu" and sys.platform != "linux":
        return "not tried: on this system a process cannot be held to a limit of memory."
    free = free_bytes(device)
    if free is None:
        return "not tried: this system does not tell how much memory is free."
    if free < SPARE * limit_bytes:
        return (
            f"not tried: {free / 2**30:.1f} GiB are free, and {SPARE} times the limit of "
            f"{limit_bytes / 2**30:.1f} GiB should be."
        )
    return ""


def try_within(
    limit_bytes: int, device: torch.device, work: Callable, cases: Sequence[dict]
) -> Tried:
    """Call work(**case) for one case after the other with at most `limit_bytes` more than there is
    now; the first that does not fit is the last. Any other error of `work` is raised."""
    if why_not := cannot_try(limit_bytes, device):
        return Tried([], why_not)
    run = _on_gpu if device.type == "cuda" else _in_child
    return Tried(run(limit_bytes, device, work, cases))


def attempt_each(work: Callable, cases: Sequence[dict]) -> list[Attempt]:
    """The attempts up to the first that finds no memory, without a limit of its own."""
    attempts = []
    for case in cases:
        gc.collect()  # garbage in reference cycles of the case before does not belong to this case
        try:
            work(**case)
        except (RuntimeError, MemoryError) as error:
            if not isinstance(
                error, (torch.OutOfMemoryError, MemoryError)
            ) and "can't allocate memory" not in str(error):
                raise
            attempts.append(Attempt(case, (str(error).strip().splitlines() or ["MemoryError"])[0]))
            break
        attempts.append(Attempt(case, ""))
    return attempts


def _on_gpu(limit_bytes, device, work, cases):
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    reserved = torch.cuda.memory_reserved(device)
    # older versions do not report it: the whole GPU
    tell = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    before = tell(device)
    share = min(before, (reserved + limit_bytes) / total)
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        return attempt_each(work, cases)
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)
        torch.cuda.empty_cache()


def _in_child(limit_bytes, device, work, cases):
    found = apart(_held_to, limit_bytes, work, list(cases), seconds=CHILD_SECONDS)
    if isinstance(found, str):
        raise RuntimeError(f"the process that tried it failed: {found}")
    return found


def _held_to(limit_bytes, work, cases) -> list[Attempt] | str:
    """The attempts of a process of its own, or another error. A first forward, backward and update
    load some 100 MiB, which are not the work's: a step is taken before memory is counted."""
    import resource  # not on Windows

    warm = torch.nn.Linear(2, 2)
    cross_entropy(warm(torch.ones(2, 2)), torch.zeros(2).long()).backward()
    torch.optim.AdamW(warm.parameters()).step()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + limit_bytes, hard_limit))
    try:
        return attempt_each(work, cases)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:  # the answer itself always fits
        resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))
