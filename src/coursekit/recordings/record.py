"""Run all measurements of `make gpu` on this machine and write one recording, again after each row.

    python -m coursekit.recordings.record measured --apart  # on the first GPU
    python -m coursekit.recordings.record --cpu FOLDER      # to try it where there is none
    python -m coursekit.recordings.record --cpu --quick FOLDER      # little of everything
    python -m coursekit.recordings.record measured --cpu --only slow_links
        # what needs no GPU, for labs to replay

A part that fails leaves a row `record.failed` with its name and its error, and the others go on.
With --apart each group has a process of its own and limited time, so that a broken CUDA context or
a hang costs that group alone. Each group leaves its seconds, and the same command, on the same day
and machine, goes on with the groups that failed or were not begun.
"""

import argparse
import datetime
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from coursekit import topics
from coursekit.machine.capabilities import find_device, memory_bytes
from shardlab import __version__

from .attempts import FAILED, attempt, failure
from .races import Run
from .recordings import Hardware, InvalidRecording, Recording, Row, read_all

ALL_GROUPS_SECONDS = 570  # for all groups together
GROUP_SECONDS = 180  # for one
# RUNS of all topics; lower orders come first, so that an interrupted run has them
ALL = tuple(
    sorted(
        (run for module in topics.modules("runs") for run in getattr(module, "RUNS", ())),
        key=lambda run: run.order,
    )
)
READ_EVERY_SECONDS = 1.0  # between two reads of a group's output
TOOK = "record.seconds"  # the last row of a group, `whole` where nothing failed
Keep = Callable[[Recording], object]


def hardware(device: torch.device) -> Hardware:
    """The machine as the schema describes it."""
    if device.type == "cuda":
        name, count = torch.cuda.get_device_name(device), torch.cuda.device_count()
        return Hardware(name, "gpu", count, memory_bytes(device))
    return Hardware(platform.processor() or platform.machine(), "cpu", 1, memory_bytes(device) or 1)


def installed_versions(device: torch.device) -> dict[str, str]:
    found = dict(python=platform.python_version(), torch=torch.__version__, shardlab=__version__)
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda or "none"
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
        found |= {name: os.environ[name] for name in names if name in os.environ}
    return found


def about_this(device: torch.device, command: str) -> tuple:
    """The fields of a recording beside its rows."""
    today = datetime.date.today().isoformat()
    return hardware(device), installed_versions(device), today, command


def record(
    about: tuple,
    groups: Iterable[tuple[str, Iterable[Row]]],
    keep: Keep = lambda recording: None,
    earlier: Recording | None = None,
) -> Recording | None:
    """Measure these groups, pairs (name, rows); prints one line for each. After each row, `keep`
    gets the recording with all rows so far, which replace those of an earlier one. None if there
    are no rows."""
    rows, recording = [], None

    def add(row):
        nonlocal recording
        found = Recording(*about, (*rows, row))
        recording = found.after(earlier) if earlier else found
        rows.append(row)
        keep(recording)

    for name, measured in groups:
        start, begun = time.perf_counter(), len(rows)
        for row in attempt(name, measured):
            try:
                add(row)
            except InvalidRecording as error:  # a row that stands there already
                add(failure(f"{name}, row {len(rows)}", str(error)))
        seconds = time.perf_counter() - start
        if measured_rows := rows[begun:]:
            whole = all(row.name != FAILED for row in measured_rows)
            add(Row(TOOK, round(seconds, 1), "seconds", dict(group=name, whole=whole)))
        print(f"gpu:    {name}: {len(rows)} rows so far, {seconds:.0f} s", flush=True)
    return recording


def rows_apart(name: str, arguments: list[str], end: float) -> Iterator[Row]:
    """The rows of a group, as a process of its own writes them, which gets these arguments besides
    and ends by `end` on the monotonic clock. This process leaves the GPU alone."""
    seen = 0
    with tempfile.TemporaryDirectory() as folder:
        this = [sys.executable, "-m", "coursekit.recordings.record", folder, "--only", name]
        for _ in watched([*this, *arguments], min(GROUP_SECONDS, end - time.monotonic())):
            for found in read_all(folder):  # one at most
                rows = [row for row in found.rows if row.name != TOOK]
                yield from rows[seen:]
                seen = len(rows)


def begun_before(folder: Path, about: tuple) -> Recording | None:
    """Rows that this command has recorded today on this machine, without failures. Those of a
    group that is not whole stay until they are measured again."""
    for found in read_all(folder):
        if (found.hardware, found.versions, found.date, found.command) == about:
            rows = [row for row in found.rows if row.name != FAILED and row.case.get("whole", True)]
            return Recording(*about, tuple(rows)) if rows else None
    return None


def watched(
    command: list[str], seconds: float, look_seconds: float = READ_EVERY_SECONDS
) -> Iterator[None]:
    """Run the command for so many seconds at most: yields where its output is worth a look, last
    at its end. Raises RuntimeError for a bad one. The process and its children are gone
    afterwards."""
    if seconds <= 0:
        raise RuntimeError("not begun: the time was up")
    end, code = time.monotonic() + seconds, None
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while code is None and time.monotonic() < end:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(look_seconds)
            yield
        if code is None:
            raise RuntimeError(f"ended after {seconds:.0f} s")
        if code:
            raise RuntimeError(f"its process ended with {code}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(arguments=None, groups: Sequence[Run] = ALL) -> int:
    module = "python -m coursekit.recordings.record"
    parser = argparse.ArgumentParser(prog=module, description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true", help="measure the CPU, to try the program")
    parser.add_argument("--apart", action="store_true", help="a process for each group")
    parser.add_argument("--quick", action="store_true", help="little of everything, to try it")
    names = [group.name for group in groups]
    only = dict(choices=names, nargs="+", default=names, metavar="GROUP")
    parser.add_argument("--only", **only, help=f"of {', '.join(names)}")
    parsed = parser.parse_args(arguments)
    try:
        parsed.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"{parsed.folder} cannot be made ({error.strerror}): name another folder")
    tried = ["--cpu"] * parsed.cpu + ["--quick"] * parsed.quick
    asked = tried + (["--only", *parsed.only] if parsed.only != names else [])
    command = " ".join([module, *asked]) if asked else "make gpu"
    device = torch.device("cpu" if parsed.cpu else "cuda")
    # a closer look would take memory on the GPU
    if not parsed.cpu and not (parsed.apart and torch.cuda.is_available()):
        device, why_not = find_device()
        if device.type == "cpu":
            said = f'{why_not}. The pages say "not yet recorded on a GPU".'
            print(f"nothing was recorded: {said}", file=sys.stderr)
            return 1
    chosen = [group for group in groups if group.name in parsed.only]
    chosen = [group for group in chosen if parsed.cpu or not group.on_cpus_alone]
    about, earlier = about_this(device, command), None

    def keep(recording):
        return recording.write(parsed.folder)

    if parsed.apart:
        said = "gpu:    ended from outside; what was measured is written"
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(said))
        if earlier := begun_before(parsed.folder, about):
            chosen = [group for group in chosen if not earlier.find(TOOK, group=group.name)]
            there = len(earlier.find(TOOK))
            print(f"gpu:    goes on with {earlier.file_name}: {there} groups are there", flush=True)
        end = time.monotonic() + ALL_GROUPS_SECONDS
        measured = ((group.name, rows_apart(group.name, tried, end)) for group in chosen)
    else:
        few = lambda group: group.quick if parsed.quick else {}
        measured = ((group.name, group.measure(device, **few(group))) for group in chosen)
    done = record(about, measured, keep, earlier)
    if done is None:
        print(f"nothing was recorded: {', '.join(parsed.only)} gave no row.", file=sys.stderr)
        return 1
    print(f"gpu:    written: {keep(done)}")
    for row in done.find(FAILED):
        print(f"gpu:    failed: {row.case['part']}: {row.case['error']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
