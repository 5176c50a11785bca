"""Ranks that fail, as a reader sees them in a real kernel: bounded time, the guilty rank named,
nothing left, the next cell works.

Each test runs a cell that fails, and then asks whether the ranks that can live on still have their
variables, or fresh ones came.
"""

import sys
import tempfile
import time
from pathlib import Path

import pytest
from notebook_kernel import descendants, gone, notebook

from ranklab.ranks import stopping

ALIVE = "All ranks live on with their variables; their process group was made anew."
FRESH = "All ranks were ended and their variables are gone; the next run starts fresh ones."


@pytest.fixture(scope="module")
def kernel():
    with notebook() as kernel:
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
    shown = kernel.run(
        "%%ranks\nx = torch.tensor([rank + 1.0]); dist.all_reduce(x)\nprint(x.item(),"
        " globals().get('kept'))"
    )
    assert not shown.error
    assert [line for line in shown.out.splitlines() if line.startswith("[rank")] == [
        f"[rank {r}] 6.0 {10 * r if kept else None}" for r in range(3)
    ]


def test_an_exception_on_one_rank_while_others_wait(three):
    """Mutation: the verdict takes the first error that arrives, or the lowest rank's; a victim's
    "connection closed" is shown."""
    shown = three.run(
        "%%ranks\nif rank == 1:\n    raise ValueError('a bad"
        " batch')\ndist.all_reduce(torch.ones(2))"
    )
    assert shown.name == "RankRaised"
    assert "Rank 1 raised ValueError: a bad batch\n  <ranks" in shown.error
    assert "line 2: raise ValueError('a bad batch')" in shown.error
    assert "Ranks 0 and 2 waited in a collective" in shown.error and ALIVE in shown.error
    assert "world.py" not in shown.error and "Connection closed" not in shown.error
    all_reduce_works(three, kept=True)


def test_a_rank_killed(three):
    """Mutation: only connections are watched, not processes: a program that the rank has forked
    holds its connection open. Or the ranks that are left are asked to go on without it."""
    shown = three.run(
        "%%ranks\nimport os, time\nif rank == 2:\n    if os.fork() == 0:\n        time.sleep(5);"
        " os._exit(0)\n    os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(2))"
    )
    assert (
        shown.name == "RankDied"
        and "Rank 2 died: it was killed by SIGKILL" in shown.error
        and FRESH in shown.error
    )
    all_reduce_works(three, kept=False)


def test_a_rank_that_leaves(three):
    """Mutation: exit code 0 taken for success; what it printed before it left is lost."""
    shown = three.run(
        "%%ranks\nimport os\nif rank == 0:\n    print('good', 'bye')\n   "
        " os._exit(0)\ndist.barrier()"
    )
    assert (
        shown.name == "RankDied"
        and "Rank 0 died: its process ended with exit code 0" in shown.error
    )
    assert "[rank 0] good bye" in shown.out
    all_reduce_works(three, kept=False)


def test_sys_exit_is_an_exception_of_the_cell(three):
    """Mutation: `except Exception` in the rank, which lets SystemExit end it."""
    shown = three.run("%%ranks\nimport sys\nif rank == 1:\n    sys.exit(3)\ndist.barrier()")
    assert "Rank 1 raised SystemExit: 3" in shown.error
    all_reduce_works(three, kept=True)


def test_a_hang_names_the_absent_rank(three):
    """Mutation: the backend's own timeout is waited for, so that a victim is named; or a victim
    that gives its error other words is taken for the guilty one."""
    shown = three.run(
        "%%ranks\nimport time\nif rank == 1:\n    time.sleep(1000)\ntry:\n   "
        " dist.all_reduce(torch.ones(2))\nexcept RuntimeError:\n    raise ValueError('in words of"
        " its own') from None"
    )
    assert shown.name == "RankAbsent"
    assert "Rank 1 did not come to all_reduce sum of float32 [2] (collective " in shown.error
    assert "of ranks 0, 1 and 2) within 4 s, while ranks 0 and 2 waited." in shown.error
    assert (
        "rank 1 was in <ranks" in shown.error
        and "time.sleep(1000)" in shown.error
        and ALIVE in shown.error
    )
    all_reduce_works(three, kept=True)


def test_a_rank_that_cannot_be_stopped_is_ended(three):
    """Mutation: no end to the grace: a rank that swallows every exception would hold the cell
    forever."""
    shown = three.run(
        "%%ranks\nimport time\nwhile rank == 1:\n    try:\n        time.sleep(1000)\n    except"
        " BaseException:\n        pass\ndist.all_reduce(torch.ones(2))"
    )
    assert (
        shown.name == "RankAbsent" and "Rank 1 did not come" in shown.error and FRESH in shown.error
    )
    all_reduce_works(three, kept=False)


def test_a_rank_that_hears_nothing_keeps_its_variables(three):
    """Mutations: a thread stuck in C++ for good, as gloo leaves one that waits for a message it has
    lost, is ended with its rank and all variables. When it comes back at last, it cuts the
    connections of the new process group, or answers for it; or it does not take over again, so that
    the next rank that is stuck is ended."""
    for _ in range(2):
        shown = three.run(
            "%%ranks\nstuck = torch.futures.Future()\nif rank == 0:\n    raise ValueError('mine')\n"
            "if rank == 1:\n    stuck.wait()\n    kept = 'it went on'\ndist.barrier()"
        )
        assert (
            "Rank 0 raised ValueError: mine" in shown.error
            and "Rank 1 stopped in <ranks" in shown.error
        )
        assert ALIVE in shown.error
        all_reduce_works(three, kept=True)
        release = (
            "import time\nstuck.set_result(None)\nfor k in range(50):\n    time.sleep(0.01)\n   "
            " dist.barrier()"
        )
        assert not three.run(f"%%ranks\n{release}").error
        all_reduce_works(three, kept=True)


def test_an_import_is_not_cut_in_two(three, tmp_path):
    """Mutation: the stop raises within an import: what its module has done so far stays, and when a
    later cell imports it anew, it does that a second time. So did our formulas, which then were
    "defined twice" in every cell. And: after the import the thread works on for a moment, beside
    the one that has taken its place."""
    (tmp_path / "slow_to_import.py").write_text(
        "import builtins, time\nbuiltins.begun = getattr(builtins, 'begun', 0) + 1\ntime.sleep(2)\n"
    )
    shown = three.run(
        "%%ranks\nimport sys\nif rank == 0:\n    raise ValueError('mine')\nsys.path.insert(0,"
        f" {str(tmp_path)!r})\nimport slow_to_import; torch.manual_seed(begun := 5)"
    )
    assert "Rank 0 raised ValueError: mine" in shown.error and ALIVE in shown.error
    shown = three.run(
        "%%ranks\nif rank:\n    import slow_to_import\n    print(begun)\ndist.barrier()"
    )
    assert shown.out.split("\n")[:2] == ["[rank 1] 1", "[rank 2] 1"] and not shown.error
    all_reduce_works(three, kept=True)


def test_each_call_within_an_import_costs_one_look(monkeypatch):
    """Must catch: whoever waits for the end of the import looks through the whole stack at each
    call within it. The import of our formulas then took minutes, and the next cell with it."""
    looks, back = [], []
    monkeypatch.setattr(stopping, "importer", lambda frame: looks.append(frame))

    def deep(n):
        return n and deep(n - 1)

    def imports():
        stopping.when_back_in(sys._getframe(1), lambda: back.append(len(looks)))
        deep(50)
        assert not back

    imports()
    assert back == [0]


def test_an_import_that_computes_ends_after_a_stop(three, tmp_path):
    """Mutation: the trace is not taken away, or stops the import again in the next cell."""
    (tmp_path / "deep_to_import.py").write_text(
        "import time\ndef deep(n):\n    return n and deep(n - 1)\ntime.sleep(0.6)\n"
        "for _ in range(40):\n    deep(800)\n"
    )
    shown = three.run(
        f"%%ranks\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "if rank == 0:\n    raise ValueError('mine')\nimport deep_to_import"
    )
    assert "Rank 0 raised ValueError: mine" in shown.error and ALIVE in shown.error
    shown = three.run("%%ranks\nimport deep_to_import")
    assert not shown.error
    all_reduce_works(three, kept=True)


def test_a_stop_while_one_waits_for_an_import(three, tmp_path):
    """Mutation: the stop raises in a thread that waits for another's import of the same module. The
    lock of the module is lost then, and a later cell that imports it waits forever."""
    slow = "import time\nfor _ in range(40):\n    time.sleep(0.1)\n"
    (tmp_path / "long_to_import.py").write_text(slow)
    three.run(
        f"%%ranks\nimport sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "def load():\n    import long_to_import"
    )
    for _ in range(3):
        begin = time.monotonic()
        shown = three.run("%%ranks\nload()", lambda begin=begin: time.monotonic() > begin + 0.7)
        assert "The ranks were interrupted." in shown.error and ALIVE in shown.error
    assert not three.run("%%ranks\nload()").error
    all_reduce_works(three, kept=True)


def test_a_group_whose_end_takes_long(three):
    """Mutation: the old process group is ended where the new one is made. Its end waits for
    collectives that were under way when their connections went, and gloo lets one in ten of those
    wait until its own time is up: minutes. Here it waits longer."""
    shown = three.run(
        "%%ranks\nimport time\nclass Group:\n    def __del__(self):\n        time.sleep(1000)\n"
        "dist.distributed_c10d._world.pg_map[Group()] = None\n"
        "if rank == 1:\n    raise ValueError('mine')\ndist.barrier()"
    )
    assert "Rank 1 raised ValueError: mine" in shown.error and ALIVE in shown.error
    all_reduce_works(three, kept=True)


def test_the_limit_of_a_cell(three):
    """Mutation: the limit asked for is dropped by the magic; the ranks that had ended are
    blamed."""
    shown = three.run("%%ranks --limit 1\nimport time\nif rank == 2:\n    time.sleep(1000)")
    assert shown.name == "RanksTooSlow" and "After 1 s rank 2 had not ended." in shown.error
    assert "Rank 2 stopped in <ranks" in shown.error
    all_reduce_works(three, kept=True)


def test_the_stop_button(three):
    """Mutation: ranks that take SIGINT themselves, or a parent that leaves them at work when it is
    interrupted."""
    marker = Path(tempfile.mkdtemp()) / "working"
    cell = (
        f"%%ranks\nimport pathlib, time\npathlib.Path({str(marker)!r}).touch()\nif rank:\n   "
        " dist.barrier()\ntime.sleep(1000)"
    )
    shown = three.run(cell, interrupt_when=marker.exists)
    marker.unlink()
    marker.parent.rmdir()
    assert (
        shown.name == "RanksInterrupted"
        and "The ranks were interrupted." in shown.error
        and ALIVE in shown.error
    )
    all_reduce_works(three, kept=True)


def test_a_collective_that_a_rank_skips(three):
    """Mutation: a rank that ended is never called absent, so the others wait until their patience
    ends; or an old post in the same place of the board is taken for the one that is missing."""
    shown = three.run(
        "%%ranks\nfor k in range(40):\n    dist.all_reduce(torch.ones(1))\n"
        "if rank != 1:\n    dist.all_reduce(torch.ones(5))"
    )
    assert shown.name == "RankAbsent"
    assert "Rank 1 ended without all_reduce sum of float32 [5] (collective " in shown.error
    assert "of ranks 0, 1 and 2), in which ranks 0 and 2 took part." in shown.error
    all_reduce_works(three, kept=True)


def test_a_skipped_collective_that_nobody_waits_for(three):
    """Mutation: the board is not looked at when all ranks have ended: one that starts a collective
    need not wait for it."""
    shown = three.run(
        "%%ranks\nif rank == 0:\n    work = dist.broadcast(torch.ones(5), 0, async_op=True)"
    )
    assert (
        shown.name == "RankAbsent"
        and "Ranks 1 and 2 ended without broadcast of float32 [5], root 0" in shown.error
    )
    all_reduce_works(three, kept=True)


@pytest.mark.parametrize(
    "cell, guilty, line",
    [
        (
            "dist.all_reduce(torch.ones(3 + (rank == 2)))",
            "Rank 2 disagrees with the others",
            "rank 2: all_reduce sum of float32 [4]",
        ),
        (
            "dist.all_reduce(torch.ones(3).to(torch.float64 if rank == 1 else torch.float32))",
            "Rank 1 disagrees with the others",
            "rank 1: all_reduce sum of float64 [3]",
        ),
        (
            (
                "x = torch.ones(3)\nif rank == 0:\n    dist.barrier(); dist.all_reduce(x)\nelse:\n "
                "   dist.all_reduce(x); dist.barrier()"
            ),
            "Rank 0 disagrees with the others",
            "rank 0: barrier",
        ),
        (
            "dist.broadcast(torch.ones(3), src=min(rank, 1))",
            "Rank 0 disagrees with the others",
            "rank 0: broadcast of float32 [3], root 0",
        ),
        (
            (
                "if rank == 0:\n    dist.send(torch.ones(3), 1)\nif rank == 1:\n   "
                " dist.recv(torch.ones(4), 0)"
            ),
            "Ranks 0 and 1 disagree with each other",
            "rank 1: send and recv of float32, 4 elements",
        ),
    ],
    ids=["shapes", "dtypes", "order", "roots", "send and recv"],
)
def test_ranks_that_disagree(three, cell, guilty, line):
    """Mutation: the comparison leaves out the shape, the dtype, the operation or the root; gloo
    gives wrong numbers silently."""
    shown = three.run(f"%%ranks\n{cell}")
    assert shown.name == "RanksDisagree" and guilty in shown.error and f"\n  {line}" in shown.error
    all_reduce_works(three, kept=True)


def test_memory_that_is_not_there(three):
    """One rank, or two of three, ask for more memory than there is.

    Mutations: every RuntimeError taken for an echo, which the allocator's is not: then of two ranks
    one is named; the latest of them named."""
    shown = three.run(
        "%%ranks\nx = torch.empty(2**60 if rank == 2 else 1, dtype=torch.uint8)\ndist.all_reduce(x)"
    )
    assert shown.name == "RankRaised" and shown.error.startswith(
        "RankRaised: Rank 2 raised RuntimeError"
    )
    assert "memory" in shown.error
    shown = three.run(
        "%%ranks\nx = torch.empty(2**60 if rank else 1, dtype=torch.uint8)\ndist.all_reduce(x)"
    )
    assert shown.error.startswith("RankRaised: Ranks 1 and 2 raised RuntimeError")
    all_reduce_works(three, kept=True)


def test_the_same_error_on_all(three):
    """Mutation: one rank is named, another one in each run."""
    shown = three.run("%%ranks\nnot_defined")
    assert "Ranks 0, 1 and 2 raised NameError: name 'not_defined' is not defined" in shown.error
    shown = three.run("%%ranks\ndef f(:")
    assert shown.name == "SyntaxError"
    all_reduce_works(three, kept=True)
