"""Ranks that fail, in a real kernel: its stop button, its magic, its files, and imports that stops
meet. Whatever a world can show without one is a row of test_ranks_matrix.py."""

import tempfile
from pathlib import Path

import pytest
from notebook_kernel import descendants, gone, notebook

GRACE = "from ranklab.ranks import watch; watch.GRACE_SECONDS = {}"
ALIVE = "All ranks live on with their variables; their process group was made anew."


@pytest.fixture(scope="module")
def kernel():
    """A kernel that gives ranks longer to stop: beside busy neighbours they need it."""
    with notebook() as kernel:
        assert not kernel.run(GRACE.format(20)).error
        yield kernel


def ranks_of(kernel) -> set[int]:
    """Processes of the ranks: the fork server's children."""
    shown = kernel.run(
        "print(*(m.process.pid for m in"
        " get_ipython().find_line_magic('ranks').__self__.world.members))"
    )
    return {int(pid) for pid in shown.out.split()}


@pytest.fixture
def three(kernel):
    """A kernel with three ranks, of little patience, with a variable. Afterwards no other rank is
    alive, and no file was left."""
    files = set(Path(tempfile.gettempdir()).glob("shardlab*"))
    shown = kernel.run("%%ranks 3 --patience 4\nkept = rank * 10")
    assert not shown.error
    before = ranks_of(kernel)
    assert len(before) == 3
    servers = set(descendants(kernel.pid)) - before
    yield kernel
    now = ranks_of(kernel)
    assert len(now) == 3 and gone(before - now)
    assert set(descendants(kernel.pid)) - now == servers
    assert set(Path(tempfile.gettempdir()).glob("shardlab*")) <= files


def all_reduce_works(kernel, kept: bool):
    """The next cell: a sum over all ranks, and whether the variable of the cell before the fault is
    still there."""
    cell = "x = torch.tensor([rank + 1.0]); dist.all_reduce(x)\n"
    shown = kernel.run(f"%%ranks\n{cell}print(x.item(), globals().get('kept'))")
    assert not shown.error
    lines = [line for line in shown.out.splitlines() if line.startswith("[rank")]
    assert lines == [f"[rank {r}] 6.0 {10 * r if kept else None}" for r in range(3)]


def test_a_rank_that_hears_nothing_keeps_its_variables(three):
    """Mutations: a thread stuck in C++ for good is ended with its rank and all variables; when it
    comes back it cuts the connections of the new process group, or answers for it, or does not take
    over again."""
    for _ in range(2):
        shown = three.run(
            "%%ranks\nstuck = torch.futures.Future()\nif rank == 0:\n    raise ValueError('mine')\n"
            "if rank == 1:\n    stuck.wait()\n    kept = 'it went on'\ndist.barrier()"
        )
        for said in ("Rank 0 raised ValueError: mine", "Rank 1 stopped in <ranks", ALIVE):
            assert said in shown.error
        all_reduce_works(three, kept=True)
        release = "for k in range(50):\n    time.sleep(0.01)\n    dist.barrier()"
        assert not three.run(f"%%ranks\nimport time\nstuck.set_result(None)\n{release}").error
        all_reduce_works(three, kept=True)


def test_a_stop_within_an_import_ends_the_ranks(three, tmp_path):
    """Mutation: the stop raises within an import: what its module has done so far stays, and when a
    later cell imports it anew, it does that a second time."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(60)\n")
    three.run(GRACE.format(3))  # none is long enough
    shown = three.run(
        "%%ranks\nimport sys\nif rank == 0:\n    raise ValueError('mine')\nsys.path.insert(0,"
        f" {str(tmp_path)!r})\nimport slow_to_import"
    )
    three.run(GRACE.format(20))
    assert "Rank 0 raised ValueError: mine" in shown.error and "All ranks were ended" in shown.error
    all_reduce_works(three, kept=False)


def test_the_stop_button(three, tmp_path):
    """Mutation: ranks that take SIGINT themselves, or a parent that leaves them at work when it is
    interrupted."""
    marker = tmp_path / "working"
    cell = f"import pathlib, time\npathlib.Path({str(marker)!r}).touch()\nif rank:\n"
    cell += "    dist.barrier()\ntime.sleep(1000)"
    shown = three.run(f"%%ranks\n{cell}", interrupt_when=marker.exists)
    assert shown.name == "RanksInterrupted"
    assert "The ranks were interrupted." in shown.error and ALIVE in shown.error
    all_reduce_works(three, kept=True)


def test_a_cell_that_is_no_python(three):
    """Must catch: a syntax error that each rank reports by itself."""
    assert three.run("%%ranks\ndef f(:").name == "SyntaxError"
    all_reduce_works(three, kept=True)
