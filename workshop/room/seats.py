"""One machine for several learners: a share of it for each.

    python -m shardlab seats 8                          this machine, eight kernels
    python -m shardlab seats 8 --gpus 4 --cores 64 --memory 256     another one
    python -m shardlab seats 8 --mig MIG-a,MIG-b,...    slices of GPUs, one a seat

Prints a table and, for each seat, the line of a shell that starts its JupyterLab. A seat sees its
own GPUs alone. Where several share a GPU, each of their ranks is held to a fraction of its memory;
the fraction is checked by PyTorch's allocator, not by the card. PyTorch 2.13 reads it; an older
one may ignore it.
"""

import argparse
import re
import shlex
from typing import NamedTuple

from coursekit.show.tables import Table

FIRST_PORT = 8801
RANKS_OF_A_SEAT = 4  # of a lab
LEAVE = 0.10  # of a GPU's memory and of the host's, for contexts and the system


class CannotSeat(ValueError):
    """A machine that does not hold so many learners."""


class Seat(NamedTuple):
    """A learner's share: GPUs as CUDA_VISIBLE_DEVICES names them, and the fraction of a GPU's
    memory for one rank, None where no other seat shares the GPU."""

    number: int
    gpus: str
    fraction: float | None
    cores: int
    memory_gib: float
    port: int

    def line(self, folder: str = "labs") -> str:
        """The line of a shell that starts this seat's JupyterLab, held to its memory by systemd."""
        settings = {"CUDA_VISIBLE_DEVICES": self.gpus, "OMP_NUM_THREADS": "1"}
        if self.fraction is not None:
            settings["PYTORCH_CUDA_ALLOC_CONF"] = f"per_process_memory_fraction:{self.fraction:.3f}"
        names = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        scope = f"systemd-run --user --scope -p MemoryMax={self.memory_gib:.0f}G"
        home = f"seat-{self.number}"
        return (
            f"cp -rn {folder} {home} && {scope} env {names}"
            # a port that somebody has is an error: the next one is another seat's
            f" jupyter lab --no-browser --port {self.port} --ServerApp.port_retries=0"
            f" --notebook-dir {home}"
        )


def seats(learners: int, gpus: list[str], cores: int, memory_gib: float) -> list[Seat]:
    """The shares of a machine. Raises CannotSeat where a learner would have no core or too little
    memory."""
    if learners < 1:
        raise CannotSeat(f"{learners} learners: there is one seat at least.")
    each_cores, each_memory = cores // learners, memory_gib * (1 - LEAVE) / learners
    if each_cores < 1:
        raise CannotSeat(f"{learners} learners want a core each, and there are {cores}: pair them.")
    if not each_memory >= 2:  # nor is it a number at all
        raise CannotSeat(
            f"{learners} learners want 2 GiB each, and {memory_gib:.0f} GiB hold"
            f" {int(memory_gib * (1 - LEAVE) / 2)}: pair them."
        )
    found = []
    for number in range(learners):
        own, sharing = _gpus(number, learners, gpus)
        local = -(-RANKS_OF_A_SEAT // max(1, len(own)))  # ranks of a seat on one of its GPUs
        fraction = (1 - LEAVE) / (sharing * local) if sharing > 1 else None
        found.append(
            Seat(number + 1, ",".join(own), fraction, each_cores, each_memory, FIRST_PORT + number)
        )
    return found


def _gpus(number: int, learners: int, gpus: list[str]) -> tuple[list[str], int]:
    """A seat's GPUs, and how many seats share each."""
    if not gpus:
        return [], 1
    if learners <= len(gpus):
        each = len(gpus) // learners
        return gpus[number * each : (number + 1) * each], 1
    own = number % len(gpus)
    return [gpus[own]], len(range(own, learners, len(gpus)))


def report(found: list[Seat]) -> str:
    heads = ["seat", "GPUs", "of a GPU, each rank", "cores", "GiB", "port"]
    rows = []
    for seat in found:
        each = "all" if seat.fraction is None else f"{seat.fraction:.0%}"
        row = [seat.number, seat.gpus or "none", each, seat.cores, f"{seat.memory_gib:.0f}"]
        rows.append(list(map(str, [*row, seat.port])))
    return "\n\n".join([repr(Table(heads, rows)), *(seat.line() for seat in found)])


def slice_names(text: str) -> list[str]:
    """The names of slices, such as MIG-b2a3..., each once."""
    names = text.split(",")
    if len({*names}) < len(names) or not all(re.fullmatch(r"[\w/.-]{1,80}", one) for one in names):
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not names with commas, each once")
    return names


def run_seats(asked) -> int:
    import torch

    from coursekit.machine.capabilities import memory_bytes
    from ranklab.measure.clock import cores

    if asked.mig and asked.gpus is not None:
        raise CannotSeat("--mig is not allowed with --gpus: slices are the GPUs of seats.")
    count = torch.cuda.device_count() if asked.gpus is None else asked.gpus
    gpus = asked.mig or [str(gpu) for gpu in range(count)]
    memory = asked.memory or (memory_bytes(torch.device("cpu")) or 0) / 2**30
    print(report(seats(asked.learners, gpus, asked.cores or cores(), memory)))
    return 0
