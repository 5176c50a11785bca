"""Scripts in processes that have imported torch already: on ranks, as torchrun would start them,
and rehearsed, as `python -m shardlab rehearse` does."""

import multiprocessing
import os
import re
import runpy
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path

from ranklab.ranks import server
from ranklab.ranks.output import OF_GLOO

SECONDS = 200  # a limit for a hang
GRACE_SECONDS = 5  # for the others to end by themselves when a rank has failed


def live(script, arguments, rank, ranks, here, port, printed):
    """A rank as torchrun makes it, in a process that has imported torch."""
    for stream, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_RANK": rank % here}
    told |= {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": here}
    told |= {"TORCHELASTIC_RUN_ID": "forked", "OMP_NUM_THREADS": 1, "CUDA_VISIBLE_DEVICES": ""}
    os.environ.update({name: str(value) for name, value in told.items()})
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))  # as Python does for a script
    left = runpy.run_path(str(script), run_name="__main__")  # noqa: F841
    # Not by return, which frees what the script left. DDP's process group then waits, with the
    # interpreter's lock, for a thread of its own that may be waiting for the lock.
    sys.stdout.flush()
    os._exit(0)


def wait_for(processes):
    """Until all have ended, or one has failed and the others have had their time, as torchrun does
    it."""
    end = time.monotonic() + SECONDS
    while running := [process.sentinel for process in processes if process.exitcode is None]:
        if not connection.wait(running, max(0, end - time.monotonic())):
            return
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + GRACE_SECONDS)


def rehearsals(asked, prepare):
    """Rehearse for whoever asks, each time in a new process: with its exit code as the answer."""
    from coursekit.__main__ import main
    from coursekit.lab import virtual  # noqa: F401  (all rehearsals need it)
    from coursekit.machine import rehearsing
    from ranklab import rehearse  # noqa: F401

    fork = multiprocessing.get_context("fork")
    rehearsing.get_context = lambda _: fork  # a rank that is spawned imports torch again
    rehearsing.GRACE = 1
    if prepare:
        prepare()

    def command(words, folder, printed):
        for stream, path in enumerate(printed, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
        os.chdir(folder)
        sys.path.insert(0, folder)  # as `python -m` does
        sys.exit(main(["rehearse", *words]))

    while told := asked.recv():
        process = fork.Process(target=command, args=told)
        process.start()
        process.join(SECONDS)
        asked.send(process.exitcode)
        process.kill()


@contextmanager
def rehearsing(prepare=None):
    """rehearse(words, folder): the command with these words, as subprocess.run would give it, where
    prepare() was called."""
    server.start_fork_server()
    context = multiprocessing.get_context(server.start_method())
    here, there = context.Pipe()
    process = context.Process(target=rehearsals, args=(there, prepare))
    with server.without_main():
        process.start()
    there.close()

    def rehearse(words, folder):
        printed = [folder / f"printed.{number}" for number in (1, 2)]
        for path in printed:
            path.write_text("")
        here.send((words, os.getcwd(), printed))
        code = here.recv()
        return subprocess.CompletedProcess(words, code, *(path.read_text() for path in printed))

    yield rehearse
    here.send(None)
    process.join()


def forked(
    script: Path, *arguments, ranks: int, folder: Path, nodes: int = 1
) -> tuple[str, str, list[int]]:
    """The lines that all ranks print on stdout, on stderr, and their exit codes. With several
    nodes, ranks are told that they are on as many machines."""
    printed = [folder / f"{script.stem} on {ranks} ranks.{number}" for number in (1, 2)]
    for path in printed:
        path.write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server.start_fork_server()
    context = multiprocessing.get_context(server.start_method())
    words = [str(argument) for argument in arguments]
    more = (ranks, ranks // nodes, port, printed)
    processes = [
        context.Process(target=live, args=(script, words, rank, *more), daemon=True)
        for rank in range(ranks)
    ]
    with server.without_main():
        for process in processes:
            process.start()
    wait_for(processes)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    out, err = (path.read_text() for path in printed)
    return re.sub(f"{re.escape(OF_GLOO)}.*\n", "", out), err, codes
