"""Whether this machine can run the labs: everything is tried, nothing is guessed from a version.

The metadata of a lab's notebook name its needs; a lab without them is one process that runs
anywhere:

    "shardlab": {"ranks": 4, "needs_gpu": ["the allocator's account"]}
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from coursekit.machine.capabilities import find_device, memory_bytes
from coursekit.machine.regular_file import regular_json
from coursekit.sentences import first_sentence
from coursekit.show.tables import Table
from ranklab.measure.clock import BUSY_SPREAD, cores, median_seconds
from ranklab.ranks import ranks
from ranklab.ranks.links import LinksUnavailable, two_hosts
from ranklab.ranks.server import start_method

RANKS_TRIED = 4
RANKS_OF_A_LAB = 64  # of a lab
GIB_A_RANK = 0.25  # a rank with a small model, above what it shares with the others
PYTHONS = ((3, 11), (3, 14))
GB_OF_DISK = 1.0
BUSY_LOAD = 1.5  # processes that want to run, for each core
SLOW_START_SECONDS = 10.0  # of ranks; a quiet machine takes two to four
ENOUGH = "nothing to do"


class Diagnosis(NamedTuple):
    """One row: the test, its result, the advice. If `fit` is False, a lab that needs this cannot
    run."""

    question: str
    here: str
    do: str
    fit: bool = True


def examine(folder: Path) -> list[Diagnosis]:
    """Everything is tried once. `folder` is where the labs are."""
    findings = [python(), *packages(), *this_machine(), front_end(), disk(folder), clock()]
    return [*findings, started_ranks(), nccl(), links()]


def run_doctor(asked) -> int:
    """Prints two tables and a last line."""
    folder = asked.folder or (Path("labs") if Path("labs").is_dir() else Path())
    findings = examine(folder)
    labs = list(rows_of_labs(folder, findings))
    tables = [Table(["what", "on this machine", "what to do"], [one[:3] for one in findings])]
    said = f"No labs were found in {folder.resolve().name}/:"
    said += " python -m shardlab doctor FOLDER looks elsewhere."
    tables.append(Table(["lab", "here it", "because"], labs) if labs else said)
    print(*tables, ready_or_not(findings), sep="\n\n")
    return int(not all(one.fit for one in findings))


def ready_or_not(findings: list["Diagnosis"]) -> str:
    """The last line: ready, or what to do."""
    missing = [f"{finding.question}: {finding.do}" for finding in findings if not finding.fit]
    return "not ready: " + "; ".join(missing) if missing else "ready"


# --- what is tried --------------------------------------------------------------------------------


def python() -> Diagnosis:
    low, high = (".".join(map(str, one)) for one in PYTHONS)
    version = sys.version_info[:2]
    do = advice("Python", version=version, low=low, high=high)
    return Diagnosis("Python", platform.python_version(), do, version >= PYTHONS[0])


def advice(about: str, **found) -> str:
    """The advice of data/machine.md on what was found."""
    return first_sentence("machine.md", f"{about}: what to do", globals() | found) or ENOUGH


def packages() -> Iterator[Diagnosis]:
    """One row for all packages that are right, and one for each package that is not."""
    fine = []
    try:
        lines = requires("shardlab") or ()
    except PackageNotFoundError:  # a checkout whose src/ is on the path
        here = Path(__file__).parents[2]
        do = f"pip install -e {here.parent}; what it needs was not compared"
        yield Diagnosis("shardlab", f"not installed: it runs from {here}", do)
        return
    for line in lines:
        wanted = Requirement(line)
        # for the book's authors, or another system
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            found = ""
        if found and wanted.specifier.contains(found.partition("+")[0], prereleases=True):
            fine.append(f"{wanted.name} {found}")
        else:
            yield Diagnosis(wanted.name, found or "missing", f"pip install '{wanted}'", fit=False)
    yield Diagnosis("packages", ", ".join(fine), ENOUGH)


def front_end() -> Diagnosis:
    """Where notebooks open on this machine; VS Code and Colab bring their own."""
    try:
        return Diagnosis("front end", f"JupyterLab {version('jupyterlab')}", ENOUGH)
    except PackageNotFoundError:
        do = "pip install jupyterlab; VS Code and Colab need nothing"
        return Diagnosis("front end", "no JupyterLab", do)


def disk(folder: Path) -> Diagnosis:
    """Room for predictions and checkpoints beside the labs; without it labs run and say so."""
    place = folder if folder.is_dir() else Path.cwd()
    free, can = shutil.disk_usage(place).free / 1e9, os.access(place, os.W_OK)
    here = f"{free:.1f} GB free, {'' if can else 'not '}writable"
    return Diagnosis("disk", here, advice("disk", can=can, free=free))


def clock() -> Diagnosis:
    """How much the time of one product of matrices varies, and how many want the cores."""
    a = torch.ones(256, 256)
    spread = median_seconds(lambda: a @ a, torch.device("cpu"), repeats=31).spread
    here, load = f"times of the same work differ by {spread:.0%}", 0.0
    if hasattr(os, "getloadavg"):  # not on Windows
        load = os.getloadavg()[0] / cores()
        here += f"; {load:.1f} processes want each core"
    return Diagnosis("clock", here, advice("clock", busy=spread > BUSY_SPREAD, load=load))


def this_machine() -> Iterator[Diagnosis]:
    device, why_not = find_device()
    count, memory = cores(), memory_bytes(torch.device("cpu"))
    needed = RANKS_TRIED * GIB_A_RANK
    enough = memory is None or memory / 2**30 > needed
    yield Diagnosis(
        "CPU",
        f"{count} core{'s' * (count > 1)}" + (f", {memory / 2**30:.1f} GiB" if memory else ""),
        ENOUGH if enough else f"{RANKS_TRIED} ranks want {needed:g} GiB: close other programs",
    )
    gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    names = ", ".join(torch.cuda.get_device_name(k) for k in gpus)
    driver = torch.version.cuda is not None and os.path.exists("/proc/driver/nvidia")
    yield Diagnosis("GPU", names or why_not, advice("GPU", device=device, driver=driver))


def started_ranks() -> Diagnosis:
    """Ranks are started and add up their numbers."""
    what, begin = f"{RANKS_TRIED} ranks", perf_counter()
    try:
        with ranks(RANKS_TRIED, announce=False) as world:
            sums = world.run(add_up)
            seconds, where = perf_counter() - begin, world.places
    except Exception as error:
        do = "if it is not clear what to do, report this line"
        return Diagnosis(what, str(error).splitlines()[0], do, fit=False)
    if sums != [RANKS_TRIED * (RANKS_TRIED - 1) / 2] * RANKS_TRIED:
        do = "report this: its collectives err"
        return Diagnosis(what, f"their sum is wrong: {sums}", do, fit=False)
    here = f"{where}, by {start_method()}; their first sum after {seconds:.1f} s"
    return Diagnosis(what, here, advice("ranks", seconds=seconds))


def add_up() -> float:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.tensor([float(dist.get_rank())], device=device)
    dist.all_reduce(x)
    return x.item()


def nccl() -> Diagnosis:
    gpus, here = torch.cuda.device_count(), dist.is_nccl_available()
    if not gpus or not here:
        missing = "no GPU for it" if here else "not in this PyTorch"
        return Diagnosis("NCCL", missing, "nothing: ranks use gloo")
    found = ".".join(map(str, torch.cuda.nccl.version()))
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") or "not set"
    here = f"{found}, for up to {gpus} rank{'s' * (gpus > 1)}"
    return Diagnosis("NCCL", here, advice("NCCL", gpus=gpus, connections=connections))


def links() -> Diagnosis:
    try:
        with two_hosts(1000):
            return Diagnosis("slow links", "two hosts can be rehearsed", ENOUGH)
    except (LinksUnavailable, OSError) as error:
        return Diagnosis("slow links", "no", f"nothing, or as root: {error}")


# --- labs -----------------------------------------------------------------------------------------


def rows_of_labs(folder: Path, findings: list[Diagnosis]) -> Iterator[tuple[str, str, str]]:
    """The name of each lab of a folder, what it does here, and why."""
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        try:
            needs = regular_json(path)["metadata"].get("shardlab", {})
            count, needs_gpu = needs.get("ranks", 1), ", ".join(needs.get("needs_gpu", ()))
        except Exception as error:  # any error that text other than a notebook can cause
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            problem = f"the file is not a notebook ({said}): download it again"
            yield path.stem, "cannot run", problem
            continue
        alone = count == 1
        needed = [one for one in findings if not (alone and "ranks" in one.question)]
        known = globals() | dict(count=count, broken=[f.question for f in needed if not f.fit])
        world = f"{count} rank{'s' * (not alone)}"
        if why := first_sentence("machine.md", "a lab that cannot run", known):
            yield path.stem, "cannot run", why
        elif needs_gpu and not torch.cuda.is_available():
            yield path.stem, "runs in part", f"{world}; replayed or skipped: {needs_gpu}"
        else:
            yield path.stem, "runs", world
