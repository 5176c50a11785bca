"""Files of a rehearsed script: written into its folder of links, and never through one.

torch.save costs what it costs the GPU, and leaves an empty file.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from shardlab.common.torch_internals import tree_leaves

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod")


@contextmanager
def writes_stay_in(folder: Path) -> Iterator[None]:
    """A context in which a file of the folder that is opened to write, and each folder above the
    file, become the folder's own if they were links."""
    busy, on = [], [True]

    def hook(event: str, given: tuple):
        opened = event == "open" and given[2] is not None and given[2] & WRITING
        if not on or busy or not (opened or event in CHANGING):
            return
        busy.append(event)
        try:
            for path in given[:2] if event == "os.rename" else given[:1]:
                if isinstance(path, (str, bytes, os.PathLike)):
                    own(folder, Path(os.path.abspath(os.fsdecode(path))), copied=opened)
        finally:
            busy.pop()

    sys.addaudithook(hook)  # for the rest of the process, which is the rehearsal's own
    try:
        yield
    finally:
        on.clear()


def own(folder: Path, path: Path, copied: bool):
    if not path.is_relative_to(folder) or path == folder:
        return
    for above in reversed([one for one in path.parents if one != folder]):
        if above.is_relative_to(folder) and above.is_symlink() and above.is_dir():
            there = above.resolve()
            above.unlink()
            above.mkdir()
            link_entries(there, above)
    if copied and path.is_symlink() and path.is_file():
        there = path.resolve()
        path.unlink()
        shutil.copy2(there, path)


def link_entries(start: Path, folder: Path):
    for entry in start.iterdir():
        (folder / entry.name).symlink_to(entry.resolve())


def saved_without(found, file, *_, **__):
    """torch.save: the GPU's tensors go to the host, and an empty file is there."""
    for leaf in tree_leaves(found):
        if isinstance(leaf, Tensor) and leaf.device.type == "cuda":
            leaf.detach().cpu()
    if isinstance(file, (str, os.PathLike)):
        Path(file).write_bytes(b"")
