"""Everything that was seen to go wrong on ranks, a row of faults_of_ranks.txt each: who is named,
how things stand in the next cell, and that no process is left."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import psutil
import pytest
from notebook_kernel import gone

from ranklab.ranks import RankError, ranks

pytestmark = pytest.mark.ranks

PATIENCE = 2.0
BOUND = 120.0  # what has not ended by then hangs, on however busy a machine
ALIVE = "All ranks live on with their variables; their process group was made anew."
ENDED = "the next run starts fresh ones."


class Fault(NamedTuple):
    """A cell of three ranks, the type of its error, whether the ranks live on with their variables,
    and words of the error, and words that it must not have."""

    cell: str
    error: str
    kept: bool
    words: list[str]
    absent: list[str]


def fault(text: str) -> Fault:
    """A fault out of its lines: an indented cell, the error, `- words`, `! words not there`."""
    lines = text.strip("\n").splitlines()
    cell = [line for line in lines if line.startswith("    ") or not line]
    error, *said = [line for line in lines if line and not line.startswith("    ")]
    words = [line[2:].replace("\\n", "\n") for line in said if line.startswith("- ")]
    absent = [line[2:] for line in said if line.startswith("! ")]
    kept = not error.endswith(", fresh ranks")
    return Fault(dedent("\n".join(cell)), error.split(",")[0], kept, words, absent)


TEXT = Path(__file__).with_name("faults_of_ranks.txt").read_text("utf-8")
ROWS = re.findall(r"^## (.*)\n((?:(?!#).*\n)*)", TEXT, re.MULTILINE)
FAULTS = {name: fault(text) for name, text in ROWS}


@pytest.fixture(scope="module")
def three():
    with ranks(3, device="cpu", patience_seconds=PATIENCE, announce=False) as world:
        yield world


def below() -> set[int]:
    """Processes of this test run."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@contextmanager
def bounded():
    """A call that hangs is interrupted, and then is not the error that the test wants."""
    timer = threading.Timer(BOUND, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def next_cell_works(world, capsys, kept: bool):
    world.cell(
        "x = torch.tensor([rank + 1.0])\ndist.all_reduce(x)\nprint(x.item(), globals().get('mark'))"
    )
    mark = 5 if kept else None
    assert capsys.readouterr().out.splitlines() == [f"[rank {r}] 6.0 {mark}" for r in range(3)]


def settings():
    import warnings

    import torch

    x = torch.ones(2, requires_grad=True)
    return (
        (type(x).__name__, (x * x).requires_grad),
        torch.is_inference_mode_enabled(),
        [(torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda")],
        torch.autocast_increment_nesting() + torch.autocast_decrement_nesting(),
        (torch.get_default_dtype(), torch.get_default_device(), x.device, torch.get_num_threads()),
        (torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled()),
        len(warnings.filters),
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault(three, fault, capsys):
    """Must catch: for each row, what was seen before it was mended: a wrong rank named, a hang, a
    wrong number, variables lost for nothing, a process left. Settings: no `self.restore()` before a
    job, or one setting left out of settings_of_contexts."""
    if "signal.signal(" in fault.cell:
        three.close()  # fresh ranks: beside a thread that gloo holds, cells run in another one
    three.cell("mark = 5")
    plain = three.run(settings)
    before = below()  # a browser of other tests is below this run, too
    if not fault.kept:
        before -= {member.process.pid for member in three.members}
    if fault.error == "no fault":
        three.cell(fault.cell)
    else:
        with pytest.raises(RankError) as caught, bounded():
            three.cell(fault.cell)
        said = str(caught.value)
        assert type(caught.value).__name__ == fault.error, said
        for words in (*fault.words, ALIVE if fault.kept else ENDED):
            assert words in said
        assert not any(words in said for words in fault.absent)
        assert len(said) < 100_000
    capsys.readouterr()
    assert three.run(settings) == plain
    next_cell_works(three, capsys, fault.kept)
    members = {member.process.pid for member in three.members}
    assert gone({pid for pid in below() - before - members if not is_server(pid)})


def test_settings_of_a_job_that_ended_well_stay():
    """Must catch: settings of the rank's beginning set again; threads set anew with each process
    group; settings taken over from the thread that is stuck, or none of them."""

    def stuck():
        import torch
        import torch.distributed as dist

        torch.set_grad_enabled(True)
        torch.futures.Future().wait() if dist.get_rank() else 1 / 0

    with ranks(2, device="cpu", announce=False) as world:
        plain = world.run(settings)
        world.cell(
            "torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64)\n"
            "torch.set_default_device('meta'); torch.set_num_threads(2)"
        )
        chosen = world.run(settings)
        assert chosen != plain
        for fails in (lambda: 1 / 0, stuck):
            with pytest.raises(RankError, match="All ranks live on"):
                world.run(fails)
            assert world.run(settings) == chosen


def test_a_broken_group_gives_its_threads_back():
    """Must catch: the old group kept by the worker, by an error or by a frame of it; a group that
    is never destroyed."""

    def threads():
        import os

        return len(os.listdir("/proc/self/task"))

    fails = "kept = dist.group.WORLD\nif rank: raise ValueError\ndist.all_reduce(torch.ones(1))"
    with ranks(2, device="cpu", announce=False) as world:
        before = world.run(threads)
        for _ in range(10):
            with pytest.raises(RankError, match="All ranks live on"):
                world.cell(fails)
        world.cell("del kept")
        deadline = time.monotonic() + BOUND  # a thread of its own ends them
        while world.run(threads) != before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert world.run(threads) == before


def is_server(pid: int) -> bool:
    """The fork server, and multiprocessing's tracker: they serve all ranks of this test run."""
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False
    return (
        "forkserver" in command
        and psutil.Process(pid).ppid() == os.getpid()
        or "tracker" in command
    )
