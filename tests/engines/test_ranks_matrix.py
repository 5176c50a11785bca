"""Everything that was seen to go wrong on ranks, one row each: who is named, how things stand in
the next cell, and that no process is left."""

import os
import signal
import threading
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import pytest
from notebook_kernel import gone

from ranklab.ranks import RankError, ranks

pytestmark = pytest.mark.ranks

PATIENCE = 2.0
BOUND = 120.0  # what has not ended by then hangs, on however busy a machine
KEPT, FRESH = True, False
ALIVE = "All ranks live on with their variables; their process group was made anew."
ENDED = "All ranks were ended and their variables are gone; the next run starts fresh ones."


class Fault(NamedTuple):
    """A cell of three ranks, words of the error, and whether variables are kept afterwards."""

    cell: str
    error: str
    words: tuple[str, ...]
    kept: bool = KEPT
    absent: tuple[str, ...] = ()  # words that must not be there


def on(rank: int, *lines: str, others: str = "dist.barrier()") -> str:
    """A cell in which one rank does this, and the others wait."""
    return "\n".join(
        [f"if rank == {rank}:", *(f"    {line}" for line in lines), "else:", f"    {others}"]
    )


RING = "x = torch.ones(4)\nright, left = (rank + 1) % 3, (rank - 1) % 3\n"
ALL = "Ranks 0, 1 and 2 wait for each other, so none of them can go on"

FAULTS = {
    # --- ranks that wait --------------------------------------------------------------------------
    "all send first": Fault(
        RING + "dist.send(x, right)\ndist.recv(x, left)",
        "RanksDeadlocked",
        (ALL, "rank 0 waits for rank 1 in a send to rank 1 of float32, 4 elements", "dist.send(x"),
    ),
    "two send to each other": Fault(
        "x = torch.ones(4)\nif rank < 2:\n    dist.send(x, 1 - rank)\n    dist.recv(x, 1 - rank)",
        "RanksDeadlocked",
        (
            "Ranks 0 and 1 wait for each other",
            "rank 0 waits for rank 1 in a send to rank 1",
            "rank 1 waits for rank 0 in a send to rank 0",
            "Rank 2 had finished",
        ),
    ),
    "all receive first": Fault(
        RING + "dist.recv(x, right)\ndist.send(x, left)",
        "RanksDeadlocked",
        (ALL, "rank 2 waits for rank 0 in a recv from rank 0"),
    ),
    "a ring of messages that are waited for": Fault(
        RING + "dist.isend(x, right).wait()\ndist.irecv(x, left).wait()", "RanksDeadlocked", (ALL,)
    ),
    "two groups in two orders": Fault(
        "g = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]\n"
        "mine = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]\n"
        "for k in mine:\n    dist.barrier(group=g[k])",
        "RanksDeadlocked",
        (ALL,),
    ),
    "behind one that waits is one that does not": Fault(
        "import time\nif rank == 0:\n    dist.recv(torch.ones(1), 1)\n"
        "if rank == 1:\n    dist.recv(torch.ones(1), 2)\nif rank == 2:\n    time.sleep(1000)",
        "RankAbsent",
        ("Rank 2 did not come to send and recv", "rank 2 was in <ranks", "time.sleep(1000)"),
    ),
    "a recv that nobody serves": Fault(
        "if rank == 0:\n    dist.recv(torch.ones(1), 1)",
        "RankAbsent",
        ("Rank 1 ended without send and recv of float32, 1 elements",),
    ),
    "a recv from anybody that nobody serves": Fault(
        "if rank == 0:\n    dist.recv(torch.ones(1))",
        "RankAbsent",
        ("Ranks 1 and 2 ended without a message for recv from any rank", "in which rank 0 waited"),
    ),
    "a send that nobody takes": Fault(
        "if rank == 0:\n    dist.send(torch.ones(1), 1)",
        "RankAbsent",
        ("Rank 1 ended without send and recv of float32, 1 elements",),
    ),
    "a message that nobody waits for": Fault(
        "if rank == 0:\n    dist.isend(torch.ones(1), 1)",
        "RankAbsent",
        ("Rank 1 ended without send and recv of float32, 1 elements",),
    ),
    "new_group left out": Fault(
        "if rank != 2:\n    g = dist.new_group([0, 1, 2])",
        "RankAbsent",
        ("Rank 2 ended without new_group of ranks 0, 1, 2", "ranks 0 and 1 took part"),
    ),
    "new_group left out by a rank that is not in it": Fault(
        "if rank != 2:\n    g = dist.new_group([0, 1])",
        "RankAbsent",
        ("Rank 2 ended without new_group of ranks 0, 1 (",),
    ),
    "new_group of other ranks": Fault(
        "g = dist.new_group([0, 1] if rank else [0, 2])",
        "RanksDisagree",
        ("Rank 0 disagrees", "rank 0: new_group of ranks 0, 2"),
    ),
    "a collective left out": Fault(
        "if rank != 1:\n    dist.all_reduce(torch.ones(5))",
        "RankAbsent",
        ("Rank 1 ended without all_reduce sum of float32 [5]",),
    ),
    "the 41st collective left out": Fault(  # old posts are in the same place of the board
        "for k in range(40):\n    dist.all_reduce(torch.ones(1))\n"
        "if rank != 1:\n    dist.all_reduce(torch.ones(5))",
        "RankAbsent",
        (
            "Rank 1 ended without all_reduce sum of float32 [5] (collective ",
            "of ranks 0, 1 and 2), in which ranks 0 and 2 took part.",
        ),
    ),
    "a collective that nobody waits for": Fault(
        "if rank == 0:\n    work = dist.broadcast(torch.ones(5), 0, async_op=True)",
        "RankAbsent",
        ("Ranks 1 and 2 ended without broadcast of float32 [5], root 0",),
    ),
    "a collective more": Fault(
        "if rank == 1:\n    dist.all_reduce(torch.ones(5))",
        "RankAbsent",
        ("Ranks 0 and 2 ended without all_reduce sum of float32 [5]", "rank 1 took part"),
    ),
    "the group is gone on one rank": Fault(
        on(1, "dist.destroy_process_group()"),
        "RankAbsent",
        ("Rank 1 ended without barrier", "in which ranks 0 and 2 took part"),
    ),
    "sleep": Fault(
        on(1, "import time", "time.sleep(1000)"),
        "RankAbsent",
        ("Rank 1 did not come to barrier", "rank 1 was in <ranks", "time.sleep(1000)"),
    ),
    "sleep, and a victim has words of its own": Fault(
        "import time\nif rank == 1:\n    time.sleep(1000)\n"
        "try:\n    dist.all_reduce(torch.ones(2))\n"
        "except RuntimeError:\n    raise ValueError('in words of its own') from None",
        "RankAbsent",
        (
            "Rank 1 did not come to all_reduce sum of float32 [2] (collective ",
            "of ranks 0, 1 and 2) within 2 s, while ranks 0 and 2 waited.",
            "rank 1 was in <ranks",
            ALIVE,
        ),
    ),
    "a loop": Fault(
        on(
            1,
            "n = 0",
            "for i in range(10**12):",
            "    j = i * i",
            "    if j == 3:",
            "        n += 1",
        ),
        "RankAbsent",
        ("Rank 1 did not come to barrier", "rank 1 was in <ranks"),
    ),
    "a loop in C that holds the interpreter": Fault(
        on(1, "sum(range(10**12))"),
        "RankAbsent",
        ("Rank 1 did not come to barrier", "rank 1 gave no answer, as where code outside Python"),
        FRESH,
    ),
    "stopped by a signal": Fault(
        on(1, "import os", "os.kill(os.getpid(), 19)"),
        "RankAbsent",
        ("Rank 1 did not come to barrier", "rank 1 gave no answer: its process was stopped"),
        FRESH,
    ),
    "swallows every exception": Fault(
        on(
            1,
            "import time",
            "while True:",
            "    try:",
            "        time.sleep(1000)",
            "    except BaseException:",
            "        pass",
        ),
        "RankAbsent",
        ("Rank 1 did not come to barrier", "time.sleep(1000)", ENDED),
        FRESH,
    ),
    "changes the handlers of signals": Fault(
        on(
            1,
            "import signal, time",
            "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
            "time.sleep(1000)",
        ),
        "RankAbsent",
        ("Rank 1 did not come to barrier",),
    ),
    # --- ranks that disagree ----------------------------------------------------------------------
    "another shape": Fault(
        "dist.all_reduce(torch.ones(3 + (rank == 2)))",
        "RanksDisagree",
        ("Rank 2 disagrees with the others", "rank 2: all_reduce sum of float32 [4]"),
    ),
    "another type": Fault(
        "dist.all_reduce(torch.ones(3).to(torch.float64 if rank == 1 else torch.float32))",
        "RanksDisagree",
        ("Rank 1 disagrees with the others", "\n  rank 1: all_reduce sum of float64 [3]"),
    ),
    "another order": Fault(
        "x = torch.ones(3)\nif rank == 0:\n    dist.barrier(); dist.all_reduce(x)\n"
        "else:\n    dist.all_reduce(x); dist.barrier()",
        "RanksDisagree",
        ("Rank 0 disagrees with the others", "\n  rank 0: barrier"),
    ),
    "another root": Fault(
        "dist.broadcast(torch.ones(3), src=min(rank, 1))",
        "RanksDisagree",
        ("Rank 0 disagrees with the others", "\n  rank 0: broadcast of float32 [3], root 0"),
    ),
    "other strides": Fault(
        "x = torch.arange(6.)\nx = x.view(2, 3).t() if rank == 1 else x.view(3, 2)\n"
        "dist.all_reduce(x)",
        "RanksDisagree",
        ("Rank 1 disagrees", "rank 1: all_reduce sum of float32 [3, 2] with strides [1, 3]"),
    ),
    "another memory format": Fault(
        "x = torch.ones(2, 3, 4, 4)\nif rank == 0:\n"
        "    x = x.to(memory_format=torch.channels_last)\n"
        "dist.broadcast(x, 1)",
        "RanksDisagree",
        ("Rank 0 disagrees", "with strides [48, 1, 12, 3]"),
    ),
    "another reduction": Fault(
        "dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)",
        "RanksDisagree",
        ("Rank 1 disagrees", "all_reduce max of float32 [3]"),
    ),
    "one of 80 under way": Fault(
        "import time\nif rank == 1:\n    time.sleep(0.3)\n"
        "xs = [torch.full((4,), 2).to(torch.int32 if (rank, k) == (1, 5) else torch.float32)"
        " for k in range(80)]\n"
        "for work in [dist.all_reduce(x, async_op=True) for x in xs]:\n    work.wait()",
        "RanksDisagree",
        ("Rank 1 disagrees with the others about collective ", "all_reduce sum of int32 [4]"),
    ),
    "one of 80 under way, of another shape": Fault(
        "import time\nif rank == 1:\n    time.sleep(0.3)\n"
        "xs = [torch.full((4 + ((rank, k) == (1, 5)),), 2.0) for k in range(80)]\n"
        "for work in [dist.all_reduce(x, async_op=True) for x in xs]:\n    work.wait()",
        "RanksDisagree",
        ("Rank 1 disagrees with the others about collective ", "all_reduce sum of float32 [5]"),
    ),
    "one of 600 under way": Fault(
        # more than a row of the board holds; rank 1 comes when the others have asked for all
        "import os, tempfile, time\n"
        "signs = [os.path.join(tempfile.gettempdir(), f'all-asked-{os.getppid()}-{r}')"
        " for r in range(3)]\n"
        "while rank == 1 and not (os.path.exists(signs[0]) and os.path.exists(signs[2])):\n"
        "    time.sleep(0.01)\n"
        "xs = [torch.full((4,), 2).to(torch.int32 if (rank, k) == (1, 5) else torch.float32)"
        " for k in range(600)]\n"
        "works = [dist.all_reduce(x, async_op=True) for x in xs]\n"
        "open(signs[rank], 'w').close() if rank != 1 else [os.remove(signs[r]) for r in (0, 2)]\n"
        "for work in works:\n    work.wait()",
        "RanksDisagree",
        ("disagree with each other about a call before collective",),
    ),
    "an uneven all-to-all": Fault(
        "out, x = torch.empty(6), torch.ones(6 + 2 * (rank == 0))\n"
        "dist.all_to_all_single(out, x, [2, 2, 2], [2, 4, 2] if rank == 0 else [2, 2, 2])",
        "RanksDisagree",
        ("Ranks 0 and 1 disagree with each other", "which sends [2, 4, 2] and awaits [2, 2, 2]"),
    ),
    "an all-to-all uneven in itself": Fault(
        "out, x = torch.empty(6), torch.ones(6 + 2 * (rank == 0))\n"
        "dist.all_to_all_single(out, x, [2, 2, 2], [4, 2, 2] if rank == 0 else [2, 2, 2])",
        "RanksDisagree",
        ("Rank 0 disagrees with itself about collective ", "which sends [4, 2, 2] and awaits"),
    ),
    "the third of three tensors at once": Fault(
        "xs = [torch.ones(2), torch.ones(3), torch.ones(4 + (rank == 1))]\n"
        "dist.all_reduce_coalesced(xs)",
        "RanksDisagree",
        ("Rank 1 disagrees", "float32 [5]"),
    ),
    "send and recv of other types": Fault(
        "if rank == 0:\n    dist.send(torch.ones(3), 1)\n"
        "if rank == 1:\n    dist.recv(torch.ones(3).double(), 0)",
        "RanksDisagree",
        ("Ranks 0 and 1 disagree with each other", "rank 1: send and recv of float64, 3 elements"),
    ),
    "send and recv of other sizes": Fault(
        "if rank == 0:\n    dist.send(torch.ones(3), 1)\n"
        "if rank == 1:\n    dist.recv(torch.ones(4), 0)",
        "RanksDisagree",
        ("Ranks 0 and 1 disagree with each other", "rank 1: send and recv of float32, 4 elements"),
    ),
    # --- ranks that raise -------------------------------------------------------------------------
    "an exception": Fault(
        on(1, "raise ValueError('a bad batch')"),
        "RankRaised",
        (
            "Rank 1 raised ValueError: a bad batch\n  <ranks",
            "line 2: raise ValueError('a bad batch')",
            "Ranks 0 and 2 waited in a collective",
            ALIVE,
        ),
        absent=("world.py", "Connection closed"),
    ),
    "the same exception on all": Fault(
        "not_defined",
        "RankRaised",
        ("Ranks 0, 1 and 2 raised NameError: name 'not_defined' is not defined",),
    ),
    "more memory than there is": Fault(
        "x = torch.empty(2**60 if rank == 2 else 1, dtype=torch.uint8)\ndist.all_reduce(x)",
        "RankRaised",
        ("Rank 2 raised RuntimeError", "memory"),
    ),
    "more memory than there is, on two": Fault(
        "x = torch.empty(2**60 if rank else 1, dtype=torch.uint8)\ndist.all_reduce(x)",
        "RankRaised",
        ("Ranks 1 and 2 raised RuntimeError",),
    ),
    "a group whose end takes long": Fault(  # as gloo's may: it waits for what was under way
        "import time\nclass Group:\n    def __del__(self):\n        time.sleep(1000)\n"
        "dist.distributed_c10d._world.pg_map[Group()] = None\n"
        "if rank == 1:\n    raise ValueError('mine')\ndist.barrier()",
        "RankRaised",
        ("Rank 1 raised ValueError: mine", ALIVE),
    ),
    "its own cause": Fault(
        on(
            1,
            "try:",
            "    raise ValueError('boom')",
            "except ValueError as e:",
            "    raise e from e",
        ),
        "RankRaised",
        ("Rank 1 raised ValueError: boom",),
    ),
    "a circle of causes": Fault(
        on(
            1,
            "a, b, c = ValueError('a'), KeyError('b'), TypeError('c')",
            "a.__cause__, b.__cause__, c.__cause__ = b, c, a",
            "raise a",
        ),
        "RankRaised",
        ("Rank 1 raised ValueError: a",),
    ),
    "an exception without a text": Fault(
        on(1, "class E(Exception):", "    __str__ = lambda self: None", "raise E"),
        "RankRaised",
        ("Rank 1 raised E: <its text cannot be had: str() raised TypeError>",),
    ),
    "an exception with a string of its own": Fault(
        on(
            1,
            "class Text(str):",
            "    pass",
            "class E(Exception):",
            "    __str__ = lambda self: Text('mine')",
            "raise E",
        ),
        "RankRaised",
        ("Rank 1 raised E: mine",),
    ),
    "a message of 100 MB": Fault(
        on(1, "raise ValueError('x' * 10**8)"),
        "RankRaised",
        ("Rank 1 raised ValueError: xxx", "letters are left out here"),
    ),
    "sys.exit": Fault(
        on(1, "import sys", "sys.exit(3)"), "RankRaised", ("Rank 1 raised SystemExit: 3",)
    ),
    "a group of exceptions, in a finally": Fault(
        on(1, "try:", "    raise KeyError('first')", "finally:", "    raise OSError('second')"),
        "RankRaised",
        ("Rank 1 raised OSError: second", "It came from KeyError: 'first'"),
    ),
    "a recursion": Fault(
        on(1, "def f():", "    return f()", "f()"), "RankRaised", ("Rank 1 raised RecursionError",)
    ),
    "twice the process group": Fault(
        "dist.init_process_group('gloo')", "RankRaised", ("Ranks 0, 1 and 2 raised ValueError",)
    ),
    # --- ranks that die ---------------------------------------------------------------------------
    "os._exit": Fault(
        on(1, "import os", "os._exit(7)"), "RankDied", ("Rank 1 died", "exit code 7"), FRESH
    ),
    "exit code 0": Fault(
        on(0, "import os", "os._exit(0)"),
        "RankDied",
        ("Rank 0 died: its process ended with exit code 0",),
        FRESH,
    ),
    "killed, while a program holds its connection": Fault(
        "import os, time\nif rank == 2:\n    if os.fork() == 0:\n        time.sleep(5)\n"
        "        os._exit(0)\n    os.kill(os.getpid(), 9)\ndist.barrier()",
        "RankDied",
        ("Rank 2 died: it was killed by SIGKILL", ENDED),
        FRESH,
    ),
    "a segmentation fault": Fault(
        on(1, "import ctypes", "ctypes.string_at(0)"), "RankDied", ("Rank 1 died", "SIGSEGV"), FRESH
    ),
    "every descriptor closed": Fault(
        on(1, "import os", "os.closerange(0, 1024)"), "RankDied", ("Rank 1 died",), FRESH
    ),
    "another program": Fault(
        on(1, "import os", "os.execv('/bin/sleep', ['sleep', '1000'])"),
        "RankDied",
        ("Rank 1 died: it closed its files, or became another program",),
        FRESH,
    ),
    # --- ranks that print -------------------------------------------------------------------------
    "prints without end": Fault(
        "while rank == 1:\n    print('y' * 1000)",
        "RankFlooded",
        ("Rank 1 printed more than 64 MB",),
    ),
    "a program prints without end": Fault(
        "import os\nif rank == 1:\n    os.system('yes')",
        "RankFlooded",
        ("Rank 1 printed more than 64 MB",),
        FRESH,
    ),
}


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
    capsys.readouterr()
    world.cell(
        "x = torch.tensor([rank + 1.0])\ndist.all_reduce(x)\nprint(x.item(), globals().get('mark'))"
    )
    mark = 5 if kept else None
    assert capsys.readouterr().out.splitlines() == [f"[rank {r}] 6.0 {mark}" for r in range(3)]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault(three, fault, capsys):
    """Must catch: for each row, the mutation that brings back what was seen before it was mended: a
    wrong rank named, a hang, a wrong number, variables lost for nothing, a process left."""
    if "signal.signal(" in fault.cell:
        three.close()  # fresh ranks: beside a thread that gloo holds, cells run in another one
    three.cell("mark = 5")
    before = below()  # a browser of other tests is below this run, too
    if not fault.kept:
        before -= {member.process.pid for member in three.members}
    with pytest.raises(RankError) as caught, bounded():
        three.cell(fault.cell)
    said = str(caught.value)
    assert type(caught.value).__name__ == fault.error, said
    for words in fault.words:
        assert words in said
    assert not any(words in said for words in fault.absent)
    assert len(said) < 100_000
    next_cell_works(three, capsys, fault.kept)
    members = {member.process.pid for member in three.members}
    assert gone({pid for pid in below() - before - members if not is_server(pid)})


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
