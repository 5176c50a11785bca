"""Files that are really on the disk after `write`, and unchanged when `read` returns.

written = write(path, content)         # [size, SHA-256]
content = read(path, *written)         # Damaged, if one bit is another
"""

import hashlib
import io
import json
import os
import pickle
from pathlib import Path

import torch


class Damaged(RuntimeError):
    """A file differs from the saved one, or cannot be read."""


class Hashed:
    """A file with the size and SHA-256 of the data given to it. Hashing the file after the write
    would accept an error made by the write."""

    def __init__(self, file):
        self.file, self.size, self.sha256, self.flush = file, 0, hashlib.sha256(), file.flush

    def write(self, part):
        self.sha256.update(part)
        self.size += len(part)
        return self.file.write(part)


def write(path: Path, content) -> list:
    """Write the content; the file's [size, SHA-256]. The file is on the disk when this returns."""
    with open(path, "xb") as file:
        torch.save(content, hashed := Hashed(file))
        flush(file)
    return [hashed.size, hashed.sha256.hexdigest()]


def read(path: Path, size: int, sha256: str):
    """The file's content. The file is read once, so the content used is the content compared."""
    name = f"{path.parent.name}/{path.name}"
    if not path.exists():
        raise Damaged(f"{name} is missing.")
    if path.stat().st_size != size:  # before the file takes memory
        raise Damaged(f"{name} has {path.stat().st_size:,} bytes, {size:,} were saved.")
    content = path.read_bytes()
    compare(name, hashlib.sha256(content).hexdigest(), sha256)
    try:
        return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError:  # torch's own message says how to run it all the same
        raise Damaged(
            f"{name} holds more than numbers, strings, tensors, lists and dicts: it was not read,"
            " because reading it could run code."
        ) from None


def write_json(path: Path, content: dict):
    """Write JSON that carries its own checksum."""
    with open(path, "x") as file:
        json.dump(content | {"sha256": digest(content)}, file)
        flush(file)


def read_json(path: Path) -> dict:
    name = f"{path.parent.name}/{path.name}"
    try:
        content = json.loads(path.read_text())
        sha256 = content.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(f"{name} cannot be read: {error}.") from None
    compare(name, digest(content), sha256)
    return content


def compare(name: str, found: str, saved: str):
    if found != saved:
        raise Damaged(f"{name} is damaged: its SHA-256 differs from the one that was saved.")


def digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def make_folder(folder: Path):
    """Make the folder and its parents, with their names on the disk."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        flush_folder(place.parent)


def flush(file):
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path):
    """Flush the folder, so that the names in it are on the disk."""
    if os.name == "nt":  # Windows opens no folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
