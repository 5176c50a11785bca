"""The abilities of this machine that a lab needs, found by trying: a visible GPU that cannot
compute does not count."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from coursekit.sentences import first_sentence
from ranklab.measure.clock import cores

UNLIMITED = 2**60  # version 1 of control groups says 2**63 less a page


def find_device() -> tuple[torch.device, str]:
    """(device to train on, why not a GPU): the first CUDA GPU if it multiplies two matrices, else
    the CPU and the reason."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), "no CUDA GPU was found"
    try:
        a = torch.ones(16, 16, device="cuda")
        if (a @ a).sum().item() == 16**3:
            return torch.device("cuda", torch.cuda.current_device()), ""
        return torch.device("cpu"), "the GPU computed a wrong product"
    # a driver too old, an architecture this PyTorch was not built for, no memory left
    except RuntimeError as error:
        return torch.device("cpu"), f"the GPU refused: {str(error).strip().splitlines()[0]}"


def memory_bytes(device: torch.device) -> int | None:
    """Memory of the device; on a CPU that of the machine, its container or its job, None where the
    system does not tell."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None
    return min([installed, *(group.most for group in control_groups())])


class MemoryLimit(NamedTuple):
    """Bytes that processes of a container, a job or a service may use together, and do use."""

    most: int
    used: int  # without pages of files, which the system takes back when memory is short


# a control group's folder, by version: its files, and the line of memory.stat with pages of files
VERSIONS = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def control_groups(
    own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Iterator[MemoryLimit]:
    """The control groups around this process that have a limit of memory: a container's, a Slurm
    job's, a service's, of either version, and those around them. None where the system has no
    control groups."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, place in lines:
        version = 1 if "memory" in controllers.split(",") else 2 if not controllers else 0
        if not version:
            continue
        root = mounted / "memory" if version == 1 else mounted
        inside = Path(place.lstrip("/"))
        folders = [root / part for part in (inside, *inside.parents)]
        for folder in dict.fromkeys([*folders, root]):  # a container sees its own as the root
            if group := control_group(folder, version):
                yield group


def control_group(folder: Path, version: int) -> MemoryLimit | None:
    """The control group of a folder, None without a limit."""
    most, used, files = VERSIONS[version]
    try:
        most, used = (int((folder / name).read_text()) for name in (most, used))
    except (OSError, ValueError):  # "max", or a controller that is off here
        return None
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        used -= int(stat[files])
    except (OSError, ValueError, KeyError):
        pass
    return MemoryLimit(most, max(0, used)) if most < UNLIMITED else None


def preset_of(device: torch.device):
    """The book's preset of a GPU, which has its name and its memory; None where there is none. PCIe
    and NVL boards and the RTX 4090 D have the name too, and lower rates: they have none."""
    from coursekit.formulas.presets import GPUS  # all formulas

    words = set(re.split(r"\W+", torch.cuda.get_device_name(device)))
    for gpu in {} if words & {"PCIe", "PCIE", "NVL", "D"} else GPUS.values():
        share = memory_bytes(device) / gpu.quantities["gpu_memory_bytes"]
        if {*gpu.name.split(" SXM")[0].split()} <= words and abs(share - 1) < 0.1:
            return gpu
    return None


def capabilities(
    device: torch.device,
    why_not: str = "",
    needs_gpu: Sequence[str] = (),
    ranks: int = 1,
    on_cpu: bool = False,
    backend: str = "",
) -> str:
    """Sentences for a reader: on what a lab runs, and what it cannot show there; `why_not` is
    find_device's reason.

    `needs_gpu` names the parts that a CPU cannot run, `ranks` is the number of processes, `on_cpu`
    says that the ranks stay on the CPU, `backend` is the one that a cell has chosen. Where the CPU
    computes, PyTorch is told to leave a core free.
    """
    gpus, total = torch.cuda.device_count(), memory_bytes(device)
    memory = f", {total / 2**30:.1f} GiB" if total else ""
    on_gpus = ranks > 1 and device.type == "cuda" and not on_cpu
    started = _of_ranks(ranks, gpus if on_gpus else 0, on_cpu, backend) if ranks > 1 else ""
    if device.type == "cuda":
        used = min(ranks, gpus) if on_gpus else 1
        so = f"{used if used > 1 else 'one'} of {gpus} GPUs {'are' if used > 1 else 'is'} used"
        so = so if gpus > 1 else "the GPU is used"
        return f"This lab runs on {torch.cuda.get_device_name(device)}{memory}; {so}.{started}"
    threads = leave_a_core_free()
    here = f"the CPU, {threads} thread{'s' * (threads > 1)}{memory}"
    skipped = f"Skipped, because only a GPU can show it: {'; '.join(needs_gpu)}."
    skipped = skipped if needs_gpu else "Nothing in it needs a GPU."
    return f"This lab runs on {here} ({why_not or 'the CPU is used'}).{started} {skipped}"


def leave_a_core_free() -> int:
    """Let PyTorch compute on all cores but one, so that threads need not wait for each other when
    the machine has something else to do; OMP_NUM_THREADS, if somebody has set it, wins. Returns the
    number of threads."""
    most = max(1, cores() - 1)
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > most:
        torch.set_num_threads(most)
    return torch.get_num_threads()


def _of_ranks(ranks: int, gpus: int, on_cpu: bool, chosen: str) -> str:
    """The sentence of several ranks on so many GPUs; on the CPU where there is none."""
    backend = "nccl" if gpus >= ranks else "gloo"
    known = dict(ranks=ranks, gpus=gpus, on_cpu=on_cpu, chosen=chosen, backend=backend)
    why = first_sentence("machine.md", "why ranks have this backend", known)
    return f" It starts {ranks} ranks, backend {chosen or backend}: {why}."


class Sentence(str):
    """Text that a notebook wraps."""

    def __repr__(self):
        return str(self)

    _repr_markdown_ = __repr__


def in_a_sentence(said: str) -> Sentence:
    """The words of `capabilities` as the last line of a cell shows them."""
    return Sentence(said)
