"""The folders of saves: which of them are whole, which of them save() made, and the names of their
files."""

import os
import re
from pathlib import Path

MANIFEST = "manifest.json"
WHOLE_SAVE = re.compile(r"step-[0-9]+")
PARTIAL = re.compile(r"step-[0-9]+\.partial-[0-9a-f]{8}")
OUR_FILES = re.compile(r"rank-[0-9]+\.pt|rest(-[0-9]+)?\.pt|manifest\.json")


def saves(folder: Path) -> list[Path]:
    """The whole saves, the newest first."""
    # not glob: glob takes an unreadable folder for an empty one
    names = os.listdir(folder) if folder.exists() else []
    found = (folder / name for name in names if WHOLE_SAVE.fullmatch(name))
    return sorted(found, key=step_of, reverse=True)


def is_ours(place: Path, whole: bool = False) -> bool:
    """Whether save() made this folder. A link, a file, or a folder with other files belongs to the
    reader and is left alone. With `whole`, the folder must have a manifest."""
    if place.is_symlink() or not place.is_dir():
        return False
    names = os.listdir(place)
    return all(OUR_FILES.fullmatch(name) for name in names) and (not whole or MANIFEST in names)


def older(folder: Path) -> str:
    """The folders besides the newest."""
    try:
        newest, *others = [path.name for path in saves(folder)]
    except (OSError, ValueError):
        return ""
    return (
        f"Older saves: {', '.join(others)}; move {newest} away to take that."
        if others
        else "There is no older save."
    )


def step_of(path: Path) -> int:
    return int(path.name[5:])


def file_of(rank: int) -> str:
    return f"rank-{rank}.pt"


def rest_of(part: int) -> str:
    """The file of what all ranks of the part have alike, beside their shards."""
    return f"rest-{part}.pt" if part else "rest.pt"
