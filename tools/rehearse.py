"""A workshop played through before the room fills.

    python tools/rehearse.py plan 90            the sections of a plan, cell by cell with a clock
    python tools/rehearse.py seats 8 --memory 24 --lab 05      a room's learners, all at once

`plan` runs what the rows of a plan in workshop/plans.md name, and writes the seconds into
workshop/walked.json, from which the role `{walked}` of the pages takes them. `seats` gives each
learner a folder, and a kernel with its ranks in a memory group of the share that `shardlab seats`
works out; each runs the core of a lab and hands in, and one of them then asks for more memory than
its share. It prints what each took and what is left running, then what `shardlab collect` shows.
Both take a lab as it is stored, with its solutions. A memory group wants a right that root has.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from bookkit.learner import has_tag
from coursekit.machine.capabilities import memory_bytes
from coursekit.show.tables import Table
from ranklab.measure.clock import cores
from workshop.room import HEADING, class_report
from workshop.room.seats import Seat, seats

ROOT = Path(__file__).resolve().parents[1]
LABS, PLANS = ROOT / "labs", ROOT / "workshop" / "plans.md"
WALKED = ROOT / "workshop" / "walked.json"
GROUPS = Path("/sys/fs/cgroup")
TIMEOUT_S = 600
GREEDY = "rows = []\nwhile True:\n    rows.append(bytearray(64 * 2**20))"


def cells_of(lab: nbformat.NotebookNode) -> dict[str, list]:
    """The code cells of each section; "" has those that set the lab up."""
    found, title = {"": []}, ""
    for cell in lab.cells:
        if cell.cell_type == "markdown" and (heading := HEADING.search(cell.source)):
            title = heading[1].strip()
        elif cell.cell_type == "code":
            before = has_tag(cell, "setup") or has_tag(cell, "install")
            found.setdefault("" if before else title, []).append(cell)
    return found


def core_of(lab: nbformat.NotebookNode) -> list:
    """The cells of a lab without the sections that begin with More."""
    kept, more = [], False
    for cell in lab.cells:
        if cell.cell_type == "markdown" and (heading := HEADING.search(cell.source)):
            more = heading[1].startswith("More")
        if not more:
            kept.append(cell)
    return kept


def client_for(lab: nbformat.NotebookNode, folder: Path) -> NotebookClient:
    place = {"metadata": {"path": str(folder)}}
    return NotebookClient(lab, timeout=TIMEOUT_S, kernel_name="python3", resources=place)


# --- a plan with a clock --------------------------------------------------------------------------


def walk(plan: str) -> dict[str, float]:
    """Seconds of the doctor, of starting each lab of a plan, and of the cells of each section."""
    text = PLANS.read_text("utf-8").partition(f"(plan-{plan})=")[2].partition("\n(plan-")[0]
    wanted: dict[str, list[str]] = {}
    for lab, title in re.findall(r"\{section\}`(.+?): (.+?)`", text):
        wanted.setdefault(lab, []).append(title)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "shardlab", "doctor", LABS], capture_output=True)
    seconds = {"doctor": time.perf_counter() - begun}
    for name, titles in wanted.items():
        lab = nbformat.read(LABS / f"{name}.ipynb", as_version=4)
        parts = cells_of(lab)
        with TemporaryDirectory() as folder:
            client = client_for(lab, Path(folder))
            begun = time.perf_counter()
            with client.setup_kernel():
                for title in ["", *titles]:
                    for cell in parts[title]:
                        client.execute_cell(cell, lab.cells.index(cell))
                    key = f"{name}: {title}" if title else name
                    seconds[key] = time.perf_counter() - begun
                    print(f"{seconds[key]:7.1f} s  {key}", flush=True)
                    begun = time.perf_counter()
    return seconds


def run_plan(asked) -> int:
    load = os.getloadavg()[0]
    seconds = {key: round(took, 1) for key, took in walk(asked.plan).items()}
    busy = f", on which other work ran (load {load:.0f})" if load > 1 else ""
    write_down(seconds, machine=f"{this_machine()}{busy}, {time.strftime('%Y-%m-%d')}")
    return 0


def this_machine() -> str:
    return f"{os.cpu_count()} cores, {memory_gib():.0f} GiB and no GPU"


def memory_gib() -> float:
    import torch

    return (memory_bytes(torch.device("cpu")) or 0) / 2**30


def write_down(seconds: dict[str, float], **words: str) -> None:
    """Put what was seen beside what other runs saw."""
    known = json.loads(WALKED.read_text("utf-8")) if WALKED.exists() else {}
    written = dict(words=known.get("words", {}) | words, seconds=known.get("seconds", {}) | seconds)
    WALKED.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", "utf-8")


# --- a room of learners at once -------------------------------------------------------------------


class Group:
    """A control group that holds its processes to a number of bytes; `why_not` says why there is
    none."""

    def __init__(self, name: str, limit: int):
        old = (GROUPS / "memory").is_dir()  # version 1
        self.folder = GROUPS / "memory" / name if old else GROUPS / name
        limits, peak = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        if not old:
            limits, peak = ("memory.max", "memory.peak")
        self.peak, self.why_not = peak, ""
        try:
            self.folder.mkdir()
            (self.folder / limits).write_text(str(limit))
        except OSError as error:
            self.why_not = f"no limit of memory: {error.strerror} ({self.folder})"

    def join(self) -> None:
        if not self.why_not:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak_gib(self) -> float:
        return 0 if self.why_not else int((self.folder / self.peak).read_text()) / 2**30

    def processes(self) -> list[int]:
        text = "" if self.why_not else (self.folder / "cgroup.procs").read_text()
        return [int(number) for number in text.split()]

    def close(self) -> None:
        with suppress(OSError):
            self.folder.rmdir()


def learn(folder: Path, lab: str, shared: Path, name: str, greedy: bool) -> None:
    """Run the core as a learner does, save, hand in, and perhaps ask for too much."""
    [path] = folder.glob(f"{lab}-*.ipynb")
    book = nbformat.read(path, as_version=4)
    book.cells = core_of(book)
    client, begun, said = client_for(book, folder), time.perf_counter(), "right"
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    last = nbformat.v4.new_code_cell(GREEDY)
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError, TimeoutError) as error:
        said = str(error).strip().splitlines()[-1]
    took = time.perf_counter() - begun
    nbformat.write(book, path)
    hand_in = [sys.executable, "-m", "shardlab", "hand-in", shared, "--name", name]
    done = subprocess.run([*hand_in, "--labs", folder], capture_output=True, text=True)
    said += "" if done.returncode == 0 else f"; not handed in: {done.stdout}{done.stderr}"
    if greedy and said == "right":
        client = client_for(nbformat.v4.new_notebook(cells=[last]), folder)
        try:
            client.execute()
        except (CellExecutionError, DeadKernelError) as error:
            said += f"; asked for too much: {type(error).__name__}"
        else:
            said += "; asked for too much, and had it"
    print(f"{took:.0f}|{said}")


def run_seats(asked) -> int:
    load = os.getloadavg()[0]
    [lab] = LABS.glob(f"{asked.lab}-*.ipynb")
    places = seats(asked.learners, [], max(cores(), asked.learners), asked.memory or memory_gib())
    names = {seat: f"Seat {seat.number}" for seat in places}
    rows: list[list[str]] = []
    peaks = []
    with TemporaryDirectory() as room:
        shared = Path(room, "shared")
        shared.mkdir()
        groups: dict[Seat, Group] = {}
        running = []
        for seat in places:
            groups[seat] = Group(f"seat-{seat.number}-{os.getpid()}", int(seat.memory_gib * 2**30))
            home = Path(room, f"seat-{seat.number}")
            home.mkdir()
            shutil.copy(lab, home)
            command = [sys.executable, __file__, "learn", home, asked.lab, shared, names[seat]]
            running.append(
                subprocess.Popen(
                    [*command, *(["--greedy"] if seat is places[-1] else [])],
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                    preexec_fn=groups[seat].join,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for seat, learner in zip(places, running):
            out = learner.communicate()[0].strip().splitlines()
            took, _, said = (
                out[-1].partition("|") if out else ("-", "", f"ended: {learner.returncode}")
            )
            group = groups[seat]
            for _ in range(100):  # ranks end a moment after their kernel
                if not group.processes():
                    break
                time.sleep(0.1)
            peaks.append(group.peak_gib())
            peak = f"{peaks[-1]:.1f} of {seat.memory_gib:.1f}"
            left = len(group.processes())
            rows.append([names[seat], str(seat.port), took, peak, str(left), group.why_not or said])
            group.close()
        print(repr(Table(["", "port", "seconds", "GiB", "processes left", "lab"], rows)))
        print(f"\n{class_report(shared, asked.lab)}")
    if any(row[4] != "0" or not row[5].startswith("right") for row in rows):
        return 1
    took = [int(row[2]) for row in rows]
    alone = max(peaks[:-1], default=0)  # the last one has asked for all that there is
    write_down(
        {},
        seats=f"the core of lab {int(asked.lab)} took {len(rows)} learners {min(took)} to"
        f" {max(took)} s at once, and each at most {alone:.1f} GiB, on {this_machine()}"
        + (f", on which other work ran (load {load:.0f})" if load > 1 else ""),
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    plan = commands.add_parser("plan", help="run the sections of a plan with a clock")
    plan.add_argument("plan", help="such as 90, of (plan-90)= in workshop/plans.md")
    plan.set_defaults(run=run_plan)
    room = commands.add_parser("seats", help="run a lab's core for all learners at once")
    room.add_argument("learners", type=int)
    room.add_argument("--memory", type=float, metavar="GIB", help="by default what is here")
    room.add_argument("--lab", default="05", metavar="NN")
    room.set_defaults(run=run_seats)
    one = commands.add_parser("learn")
    for name in ("folder", "lab", "shared", "name"):
        one.add_argument(name, type=Path if name in ("folder", "shared") else str)
    one.add_argument("--greedy", action="store_true")
    one.set_defaults(
        run=lambda asked: (
            learn(asked.folder, asked.lab, asked.shared, asked.name, asked.greedy) or 0
        )
    )
    asked = parser.parse_args()
    return asked.run(asked)


if __name__ == "__main__":
    sys.exit(main())
