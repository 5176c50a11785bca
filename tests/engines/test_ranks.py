"""Worlds of ranks from a program: results, output, variables, bad input."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from forked_script import forked
from notebook_kernel import gone

from ranklab.ranks import RankDied, RankRaised, RanksInterrupted, ranks, server
from ranklab.ranks import world as parent
from ranklab.ranks.asked import Asked
from ranklab.ranks.devices import CannotBeHad, choose_device
from ranklab.ranks.server import start
from ranklab.ranks.stopping import abort_groups
from ranklab.ranks.wire import packed


@pytest.fixture(scope="module")
def three():
    with ranks(3, announce=False) as world:
        yield world


class Pair:
    """A class of this module, as a reader's class of a cell: results are of it and not of a
    copy."""

    def __init__(self, rank, total):
        self.rank, self.total = rank, total


def sum_of_ranks(factor, *, offset=0):
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    return Pair(dist.get_rank(), factor * x.item() + offset)


def test_results_come_back_in_rank_order(three):
    """Mutation: results in the order in which they arrive; keyword arguments lost; a class sent as
    a copy of itself."""
    results = three.run(sum_of_ranks, 2, offset=1)
    assert [(pair.rank, pair.total) for pair in results] == [(0, 7.0), (1, 7.0), (2, 7.0)]
    assert all(isinstance(pair, Pair) for pair in results)


def test_a_world_without_a_name_ends():
    """A cell that makes a world runs again: the ranks of the first one go. Mutation: something else
    that holds the world, as atexit did."""
    world = ranks(2, announce=False)
    first = world.run(os.getpid)
    world = ranks(1, announce=False)
    second = world.run(os.getpid)
    assert gone(first) and not gone(second, seconds=0)
    world.close()


def test_an_interrupt_while_ranks_are_started(monkeypatch):
    """Mutations: an interrupt between two of them, or within one, that leaves those that were
    started to themselves."""
    started = []

    def interrupted(place, method):
        started.append(start(place, method))
        if place.rank == 0:
            signal.raise_signal(signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(server, "start", interrupted)
    with pytest.raises(
        RanksInterrupted,
        match="The ranks were interrupted while they were started: none of them runs.",
    ):
        ranks(2, announce=False)
    for process in started:
        with pytest.raises(ValueError, match="process object is closed"):
            process.is_alive()


def test_an_interrupt_while_ranks_are_closed(monkeypatch):
    """Must catch: a rank that was told to quit, and that the next run takes for a living one."""
    world, told = ranks(2, announce=False), []

    def interrupted(*given):
        if told:
            raise KeyboardInterrupt
        told.append(given)
        return packed(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(parent, "packed", interrupted)
        world.close()
    assert world.run(int) == [0, 0]
    world.close()


def test_what_is_printed_is_labelled_and_in_rank_order(three, capfd):
    """Mutation: only sys.stdout is captured, so that C++, or a program a rank starts, writes over
    the cell; order of arrival."""

    def speak():
        import os
        import subprocess
        import sys
        import time

        time.sleep(0.05 * (3 - dist.get_rank()))
        print("first\nsecond")
        os.write(1, b"from below\n")
        subprocess.run(["echo", "from a program"], check=True)
        sys.stderr.write("a warning\n")

    three.run(speak)
    shown = capfd.readouterr()
    assert shown.out.splitlines() == [
        f"[rank {r}] {line}"
        for r in range(3)
        for line in ("first", "second", "from below", "from a program")
    ]
    assert shown.err.splitlines() == [f"[rank {r}] a warning" for r in range(3)]


def test_variables_live_from_cell_to_cell(three, capsys):
    """Mutation: each cell gets a namespace of its own; the value of the last line is dropped; None
    is shown."""
    three.cell("kept = [rank]\nlen(kept)")
    three.cell("kept.append(world_size)")
    three.cell("print(kept)")
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        *(f"[rank {r}] 1" for r in range(3)),
        *(f"[rank {r}] [{r}, 3]" for r in range(3)),
    ]

    def look():
        import __main__

        return __main__.kept

    assert three.run(look) == [[0, 3], [1, 3], [2, 3]]


def test_an_error_is_the_root_cause_with_the_readers_line(three):
    """Mutation: the innermost frame shown is torch's; the error that led to it is lost; `ranks`
    names a victim."""

    def wrong():
        try:
            if dist.get_rank() == 2:
                torch.ones(2) @ torch.ones(3)
        except RuntimeError as error:
            raise ValueError("no product") from error
        dist.barrier()

    with pytest.raises(
        RankRaised,
        match=r"(?s)^Rank 2 raised ValueError: no product\n  .*, wrong: raise ValueError.*"
        r"It came from RuntimeError: .*\n  Ranks 0 and 1 waited in a collective",
    ) as caught:
        three.run(wrong)
    assert caught.value.ranks == [2]
    assert len(three.run(sum_of_ranks, 1)) == 3


def test_a_lock_is_not_sent(three):
    """Mutation: it is left to pickle, whose message names neither the value nor the rule."""
    with pytest.raises(
        TypeError,
        match=r"sum_of_ranks and what it needs cannot be sent to the ranks \(.*\): make it on",
    ):
        three.run(sum_of_ranks, threading.Lock())
    with pytest.raises(
        RankRaised,
        match="Ranks 0, 1 and 2 raised TypeError: what <lambda> returned, a lock, cannot be sent",
    ):
        three.run(lambda: __import__("threading").Lock())


def test_more_nccl_ranks_than_gpus():
    """Mutation: NCCL started with two ranks on one GPU, which hangs or says "Duplicate GPU
    detected"."""
    gpus = torch.cuda.device_count()
    words = f"NCCL wants a GPU for each rank: {gpus + 1} ranks, {gpus} GPUs"
    with pytest.raises(ValueError, match=words):
        ranks(gpus + 1, backend="nccl")


def asked(world_size, device=None, backend=None, share_gpus=False) -> Asked:
    return Asked(world_size, device, backend, share_gpus, 60.0, (), None, False)


def test_ranks_that_share_a_gpu_by_nccl(monkeypatch):
    """Mutations: an NCCL that is too old asked all the same, which hangs; its switch not set, or
    set where nothing is shared; several blocks a rank where they may not all fit; a CPU or gloo
    asked for and not given."""
    switches = "NCCL_MULTI_RANK_GPU_ENABLE NCCL_NVLS_ENABLE NCCL_MAX_CTAS TORCH_NCCL_HIGH_PRIORITY"
    for name in switches.split():
        monkeypatch.setenv(name, "before")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    for share_gpus, words in (
        (True, "share_gpus wants NCCL 2.30 or newer, and this PyTorch brings 2.29.7: leave it"),
        (False, "wants a GPU for each rank: 2 ranks, 1 GPUs.* share one: share_gpus=True"),
    ):
        with pytest.raises(CannotBeHad, match=words):
            choose_device(1, 2, 1, asked(2, None, "nccl", share_gpus))
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    cases = (2, None, None), (0, None, None), (1, "cpu", None), (1, None, "gloo")
    backends = [choose_device(0, 2, gpus, asked(2, *of, True))[1] for gpus, *of in cases]
    assert backends == ["nccl", "gloo", "gloo", "gloo"]
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in os.environ
    assert os.environ["TORCH_NCCL_HIGH_PRIORITY"] == "1"  # messages overtake kernels
    device, backend = choose_device(1, 2, 1, asked(2, share_gpus=True))
    assert (device.index, backend, os.environ["NCCL_MULTI_RANK_GPU_ENABLE"]) == (0, "nccl", "1")
    assert "NCCL_MAX_CTAS" not in os.environ
    assert choose_device(3, 4, 1, asked(4, "cuda", "nccl", True))[1] == "nccl"
    assert os.environ["NCCL_MAX_CTAS"] == "4"


def test_devices_and_backends():
    """Mutation: NCCL for ranks that share a GPU; the CPU where there is a GPU; one GPU for all
    ranks."""

    def chosen(size, gpus, *of):
        found = (choose_device(rank, size, gpus, asked(size, *of)) for rank in range(size))
        return [(str(device), backend) for device, backend in found]

    assert chosen(2, 0, None, None) == chosen(2, 8, "cpu", None) == [("cpu", "gloo")] * 2
    assert chosen(4, 8, None, None) == [(f"cuda:{rank}", "nccl") for rank in range(4)]
    assert chosen(4, 2, None, None) == [(f"cuda:{rank % 2}", "gloo") for rank in range(4)]


def test_kernels_of_nccl_are_aborted(monkeypatch):
    """Mutation: the first group that cannot be aborted leaves the others as they are, with the
    threads that wait in them."""

    class Group:
        aborted = False

        def abort(self):
            self.aborted = True
            raise RuntimeError("no communicator yet")

    groups = [Group(), Group()]
    world = SimpleNamespace(pg_map=dict.fromkeys(groups))
    monkeypatch.setattr(dist.distributed_c10d, "_world", world)
    abort_groups()
    assert all(group.aborted for group in groups)


def test_a_rank_cannot_start_a_world(three):
    """Mutation: no check; four ranks that start four ranks each, and so on."""

    def nested():
        from ranklab.ranks import ranks

        ranks(2)

    with pytest.raises(
        RankRaised, match="this process is rank [012] of 3: a rank cannot start a world of its own"
    ):
        three.run(nested)


def test_nothing_is_left():
    """Mutation: processes that outlive `close`, or descriptors that stay open with each world:
    sixteen a world of four."""

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0

    with ranks(2, announce=False):
        pass
    before = descriptors()
    for _ in range(3):
        with ranks(2, announce=False) as world:
            pids = [member.process.pid for member in world.members]
            world.run(sum_of_ranks, 1)
        assert gone(pids)
    assert descriptors() <= before


def test_what_ranks_share_stays_shared(three):
    """Mutations: the search for garbage left off in ranks, forever; or it goes through all that
    torch has made, and what a rank shared with the others it has twice."""

    def look():
        import gc

        return gc.isenabled(), gc.get_freeze_count()

    assert all(enabled and frozen > 100_000 for enabled, frozen in three.run(look))


def test_two_worlds_at_once(three):
    """Mutation: a store, a port or a file that two worlds share."""
    results = {}

    def ask(world):
        results[world] = [world.run(sum_of_ranks, 1)[0].total for _ in range(20)]

    with ranks(2, announce=False) as other:
        threads = [threading.Thread(target=ask, args=(world,)) for world in (three, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert results == {three: [3.0] * 20, other: [1.0] * 20}


def test_spawn_does_the_same(capfd):
    """Mutation: something that only a forked rank has, such as an open descriptor or an imported
    module, is relied on."""

    def leave():
        import os

        print("before", flush=True)
        if dist.get_rank() == 1:
            os._exit(7)
        dist.barrier()

    with ranks(2, method="spawn", announce=False) as world:
        assert [pair.total for pair in world.run(sum_of_ranks, 3)] == [3.0, 3.0]
        with pytest.raises(RankDied, match="Rank 1 died: its process ended with exit code 7"):
            world.run(leave)
        assert "[rank 1] before" in capfd.readouterr().out


SCRIPT = """
    import sys
    import torch
    import torch.distributed as dist
    from ranklab.ranks import ranks

    def total(factor):
        x = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(x)
        return factor * x.item()

    with ranks(2, device="cpu") as world:
        results = world.run(total, 10)
    assert results == [30.0, 30.0], results
    print("ended well")
"""


def test_a_script_needs_no_guard(tmp_path):
    """Mutation: multiprocessing left to run the script again in each rank, so that every script
    needs `if __name__ == ...`."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    said = ["2 ranks on the CPU, 1 thread each; backend gloo", "ended well"]
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_same_script_where_torchrun_made_the_ranks(tmp_path, nodes):
    """Mutations: a world of its own started in each of torchrun's ranks; the rank on its machine
    taken for the rank in the world, so that two ranks have the same number."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    out, err, codes = forked(tmp_path / "script.py", ranks=2, folder=tmp_path, nodes=nodes)
    assert codes == [0, 0] and out.count("ended well") == 2 and "backend" not in out, out + err
    between = "are compared within each machine, not between them."
    assert (out + err).count(between) == (nodes == 2)


DISAGREEING = """
    import os
    import torch
    import torch.distributed as dist
    from ranklab.ranks import ranks

    def total(x):
        dist.all_reduce(x)

    with ranks(2, device="cpu") as world:
        for k in range(100):
            world.run(total, torch.ones(3))
        try:
            total(torch.ones(3 + dist.get_rank()))
        except RuntimeError as error:
            os.write(1, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(0)
"""


def test_ranks_that_disagree_under_torchrun(tmp_path):
    """Mutations: each rank looks at a board of its own; the rank has no name. Then gloo gives wrong
    numbers to both."""
    (tmp_path / "script.py").write_text(textwrap.dedent(DISAGREEING))
    out, err, codes = forked(tmp_path / "script.py", ranks=2, folder=tmp_path)
    mine, others = "all_reduce sum of float32 [3]", "all_reduce sum of float32 [4]"
    assert codes == [0, 0], err
    assert (
        f"RanksDisagree: Rank 0 brings {mine}, rank 1 {others}." in out
        or f"RanksDisagree: Rank 1 brings {others}, rank 0 {mine}." in out
    ), out + err


def test_another_number_of_ranks_than_torchruns(monkeypatch):
    """Mutation: the number in the code believed, so that the processes wait for ranks that nobody
    starts."""
    for name, value in dict(
        TORCHELASTIC_RUN_ID="x", RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2"
    ).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="world_size = 3: torchrun started 2 ranks"):
        ranks(3)
