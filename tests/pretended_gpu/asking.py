"""Asking the process that has ranks with pretended GPUs (driver.py) to run a case."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pretended import environment
from pretended.build import CannotBuild

DRIVER = Path(__file__).with_name("driver.py")
MOST = 4


@dataclass
class Answer:
    """How a case went on all ranks."""

    error: str
    waits: list[
        dict[str, int]
    ]  # of each rank's host for its GPU, by the cause, in the watched step
    order: list[str]  # where ranks disagree about the order of their calls

    def is_right(self, waits: int = 0):
        """No assertion failed on a rank, ranks agree about the order of their calls, and no host
        waited more often than `waits`."""
        assert not self.error, self.error
        assert not self.order, "\n".join(self.order)
        for rank, causes in enumerate(self.waits):
            assert sum(causes.values()) <= waits, (
                f"in the last step rank {rank} waits for its GPU, where {waits} waits are expected:"
                f" {causes}. An .item() waits, and so does a tensor made on the host in the step."
            )


class Driver:
    """The process that has ranks with GPUs, up to MOST."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER)],
            env=environment_or_skip(MOST),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, n: int, case, *args, **named) -> Answer:
        """case(...) on n ranks, each with a pretended GPU of its own."""
        asked = json.dumps((n, case.__module__, case.__name__, args, named))
        print(asked, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"the process with the pretended GPUs is gone: {self.process.wait()}"
        return Answer(**json.loads(answer))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def environment_or_skip(gpus: int) -> dict[str, str]:
    """The environment of a process that sees so many pretended GPUs."""
    try:
        return environment(gpus)
    except CannotBuild as error:
        no_gpus(error, os.environ.get("CI", "").lower() == "true")


def no_gpus(error: CannotBuild, continuous_integration: bool):
    """Skips a test, or fails it on a continuous integration machine."""
    if continuous_integration and not error.excused:
        pytest.fail(f"{error} (with CI=true this is never skipped)", pytrace=False)
    pytest.skip(str(error))
