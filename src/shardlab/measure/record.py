"""Run everything that `make gpu` measures on this machine and write one recording.

    python -m shardlab.measure.record measured          # on the first GPU
    python -m shardlab.measure.record --cpu FOLDER      # to try it where there is none
    python -m shardlab.measure.record measured --cpu --only slow_links      # what needs no GPU, for labs to replay
"""

import argparse
import datetime
import platform
import sys
import time
from pathlib import Path

import torch

from .. import __version__
from ..capabilities import find_device, memory_bytes
from .recordings import Hardware, Recording
from .rows import ALL


def hardware(device: torch.device) -> Hardware:
    """The machine in the words of the schema."""
    if device.type == "cuda":
        return Hardware(torch.cuda.get_device_name(device), "gpu", torch.cuda.device_count(), memory_bytes(device))
    return Hardware(platform.processor() or platform.machine(), "cpu", 1, memory_bytes(device) or 1)


def versions(device: torch.device) -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "shardlab": __version__}
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found


def record(device: torch.device, command: str, groups=ALL) -> Recording:
    """Measure these groups; says what it is doing, one line a group."""
    rows = []
    for group in groups:
        start = time.perf_counter()
        rows += group(device)
        print(f"gpu:    {group.__name__}: {len(rows)} rows so far, {time.perf_counter() - start:.0f} s", flush=True)
    return Recording(hardware(device), versions(device), datetime.date.today().isoformat(), command, tuple(rows))


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m shardlab.measure.record", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cpu", action="store_true", help="measure the CPU, to try the program")
    names = [group.__name__ for group in ALL]
    parser.add_argument("--only", choices=names, nargs="+", default=names, metavar="GROUP", help=f"of {', '.join(names)}")
    parsed = parser.parse_args(arguments)
    device, why_not = (torch.device("cpu"), "") if parsed.cpu else find_device()
    if device.type == "cpu" and not parsed.cpu:
        print(f"nothing was recorded: {why_not}. The pages say \"not yet recorded on a GPU\".", file=sys.stderr)
        return 1
    command = "make gpu" if (parsed.cpu, parsed.only) == (False, names) else " ".join(
        ["python -m shardlab.measure.record", *["--cpu"] * parsed.cpu, *(["--only", *parsed.only] if parsed.only != names else [])])
    path = record(device, command, [group for group in ALL if group.__name__ in parsed.only]).write(parsed.folder)
    print(f"gpu:    written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
