"""Kernels that share a machine or are restarted: ranks do not disturb each other and none outlives
its notebook."""

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import StringIO

import pytest
from notebook_kernel import descendants, gone, notebook

from ranklab.ranks import ranks

COUNT = (
    "%%ranks 2\nfor k in range(50):\n    x = torch.ones(3); dist.all_reduce(x)\nprint(int(x.sum()))"
)


FAULTS = dict(
    kill=("import os; os.kill(os.getpid(), 9)", "Rank 1 died: it was killed"),
    hang=("import time; time.sleep(1000)", "Rank 1 did not come to barrier"),
    fail=("raise ValueError('mine')", "Rank 1 raised ValueError: mine"),
)


@pytest.mark.nightly  # by day: one kernel's ranks
@pytest.mark.parametrize("names", [["kill"], [*FAULTS]])
def test_learners_on_one_box(names):
    """Mutation: a fixed port, a file with a fixed name, or a search for ranks to end that finds
    another notebook's. One learner has a rank killed, and at night one has a rank that hangs, and
    one a rank that raises; what the last has at work and in its variables stays."""
    options, faults = "2 --patience 2", {name: FAULTS[name] for name in names}
    count = COUNT.replace("%%ranks 2", f"%%ranks {options}")
    found, over = {name: [] for name in (*faults, "none")}, threading.Barrier(len(faults) + 1)

    def work(name, kernel):
        assert not kernel.run(f"%%ranks {options}\nkept = rank").error
        over.wait()
        fault, _ = faults.get(name, ("pass", ""))
        cell = f"if rank == 1:\n    {fault}\ndist.barrier()\nkept"
        asked = (count, f"%%ranks\n{cell}", count, count)
        found[name] = [kernel.run(one) for one in asked]

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(found)))
        kernels = [pool.submit(stack.enter_context, notebook()) for _ in found]
        works = [pool.submit(work, *one) for one in zip(found, (k.result() for k in kernels))]
        for done in works:
            done.result()
    for name, (before, at_once, *after) in found.items():
        for one in (before, *after):
            assert not one.error and "[rank 0] 6\n[rank 1] 6\n" in one.out
        if name in faults:
            assert faults[name][1] in at_once.error
        else:
            assert at_once.out == "[rank 0] 0\n[rank 1] 1\n"


@pytest.mark.nightly  # by day: a killed parent
def test_a_restarted_kernel_starts_anew():
    """Mutation: ranks in a session of their own that nobody ends; the fork server of the old kernel
    asked for new ones."""
    with notebook() as kernel:
        assert not kernel.run(COUNT).error
        before = descendants(kernel.pid)
        assert len(before) >= 3  # two ranks and the fork server
        kernel.manager.restart_kernel(now=True)
        kernel.client.wait_for_ready(timeout=60)
        assert gone(before)
        assert not kernel.run("%load_ext ranklab.ranks").error
        assert "[rank 1] 6" in kernel.run(COUNT).out


def test_no_folder_to_delete(tmp_path, monkeypatch):
    """Mutation: the store kept in a file with a name: whoever clears the folder of temporary files
    breaks every new group."""

    def in_a_new_group():
        import torch
        import torch.distributed as dist

        x = torch.ones(1)
        dist.all_reduce(x, group=dist.new_group([0, 1]))
        return x.item()

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with ranks(2, device="cpu", announce=False) as world:
        assert world.run(in_a_new_group) == [2.0, 2.0]
        (tmp_path / "temporary").rmdir()  # it is empty
        assert world.run(in_a_new_group) == [2.0, 2.0]


def test_the_magic():
    """Mutations: a new world for each cell; the same options taken for others, or others for the
    same; functions of the notebook that the ranks do not know; a notebook's variable in a cell of
    ranks, and no word that they have their own."""
    with notebook() as kernel:
        assert "how many ranks? Say %%ranks 4 the first time." in kernel.run("%%ranks\n1").err
        said = "2 ranks on the CPU, 1 thread each; backend gloo\n"
        assert kernel.run("%%ranks 2\nkept = rank").out == said
        assert kernel.run("%%ranks 2\nkept").out == "[rank 0] 0\n[rank 1] 1\n"
        error = kernel.run("%%ranks 2 --patience 50\nkept").error
        assert "name 'kept' is not defined" in error and "of the notebook" not in error
        kernel.run("mine = 1")
        error = kernel.run("%%ranks\ndef f():\n    return mine\nf()").error
        assert error.endswith(
            "\nmine is a variable of the notebook, and ranks have variables of their own: make or"
            " import it in a %%ranks cell, or hand it to a function with world.run(function, mine)."
        )
        kernel.run(
            "from ranklab.ranks import ranks\nimport torch.distributed as dist\n"
            "def double(x):\n    return half(4 * x) + dist.get_rank()\n"
            "def half(x):\n    if x < 0:\n        raise ValueError(x)\n    return x // 2"
        )
        works = "    print(world.run(double, 21))\n    world.run(double, -1)"
        shown = kernel.run(f"with ranks(2, announce=False) as world:\n{works}")
        assert shown.out == "[42, 43]\n"
        for line in ("4, double: return half(4 * x)", "7, half: raise ValueError(x)\n"):
            assert f"\n  a cell, line {line}" in shown.error
        assert "Ranks 0 and 1 raised ValueError: -4\n  a cell, line 4" in shown.error


class Screen(StringIO):
    """A terminal that remembers."""

    def isatty(self):
        return True


def test_long_work_shows_how_it_goes(monkeypatch):
    """Mutations: a line for work of a second, which every stored notebook would keep; the line left
    standing at the end."""
    import os

    from ranklab.ranks import output

    pipes = [os.pipe(), os.pipe()]
    screen, printed = Screen(), [output.Printed(ours) for ours, _ in pipes]
    monkeypatch.setattr(output.sys, "stderr", screen)
    os.write(pipes[1][1], b"epoch 1\nepoch 2\n")
    printed[1].drain()
    short = output.Progress(printed)
    short(0.5)
    short(9.9)
    short.end()
    assert screen.getvalue() == ""
    long = output.Progress(printed)
    for tenth in range(125):
        long(tenth / 10)
    assert screen.getvalue().count("\r") == 3 and "10 s | rank 1: epoch 2" in screen.getvalue()
    long.end()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert printed[1].take() == "epoch 1\nepoch 2\n"  # the line of progress takes nothing away
    for ours, theirs in pipes:
        os.close(ours)
        os.close(theirs)
