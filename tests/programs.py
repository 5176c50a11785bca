"""Programs that tests run, and the files that git knows."""

import subprocess
from pathlib import Path

from pages import ROOT


def ran(*command: str | Path, **options) -> subprocess.CompletedProcess:
    """The program when it has ended, with its output as text."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def tracked_files() -> list[Path]:
    """Without those that are about to be deleted."""
    names = ran("git", "ls-files", "-z", cwd=ROOT, check=True).stdout
    return [path for name in names.split("\0") if name and (path := ROOT / name).is_file()]
