"""Results, the machine they were measured on, a table of both, and the recording that pages
show."""

import json
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from coursekit.recordings.races import Result
from coursekit.recordings.recordings import Hardware, Recording, Row

PACKAGES = (
    "jupyter-book",
    "Sphinx",
    "sphinx-book-theme",
    "myst-nb",
    "playwright",
    "torch",
)


def machine(root: Path) -> dict:
    """The machine of a measurement: hardware, versions, date, and how busy it was."""

    def first_line(path, pattern):
        try:
            found = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            return ""
        return found.group(1).strip() if found else ""

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
    )
    memory_kib = first_line("/proc/meminfo", r"^MemTotal:\s*(\d+)")
    return {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": first_line("/proc/cpuinfo", r"^model name\s*:(.*)$") or platform.processor(),
        "cores": (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        ),
        "memory_gib": round(int(memory_kib) / 2**20, 1) if memory_kib else None,
        "system": platform.platform(),
        "load_average": (
            [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None
        ),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def table(results: list[Result], described: dict) -> str:
    """Everything as text: a line for each number, its figure and whether it is met."""
    lines = [f"{name}: {value}" for name, value in described.items()]
    part = None
    for result in results:
        if result.part != part:
            part = result.part
            lines += ["", part]
        value = f"{result.value:,.10g} {result.unit}"
        figure = f"at most {result.most:,.10g}" if result.most is not None else ""
        lines.append(
            f"  {result.what:<78}{value:>18}  {figure:<16}{result.verdict:<8}{result.note}".rstrip()
        )
    return "\n".join(lines)


def recording(results: list[Result], described: dict, command: str) -> Recording:
    """The named results as a Recording (coursekit.recordings.recordings): this
    book's code over a peer."""
    hardware = Hardware(
        f"{described['processor']}, {described['cores']} cores",
        "cpu",
        1,
        int(described["memory_gib"] * 2**30),
    )
    versions = {name: described[name] for name in ("python", "torch")} | {
        "shardlab": version("shardlab")
    }
    rows = tuple(
        Row(result.row, result.value, "ratio", result.case) for result in results if result.row
    )
    return Recording(hardware, versions, described["date"][:10], command, rows)


def write(path: Path, results: list[Result], described: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**result._asdict(), "verdict": result.verdict} for result in results]
    path.write_text(
        json.dumps({"machine": described, "results": rows}, indent=1) + "\n", encoding="utf-8"
    )
