"""A rank's device, and the files that a world and its ranks share. On Linux they have no name: they
leave nothing behind, and nobody can delete them."""

import os
import tempfile
from multiprocessing.reduction import DupFd

_given: dict = {}  # "device": that of this process, once it is a rank


class NotARank(RuntimeError):
    """A rank's device asked for in a process that is not a rank: one sentence."""


def rank_device():
    """The torch.device that this rank was given: its GPU, which it may share, or the CPU.

    Put the model and its data there: in a function for world.run, in a %%ranks cell, or in a script
    under torchrun once ranks() was called. NotARank elsewhere.
    """
    if "device" not in _given:
        raise NotARank(
            "rank_device() was called in a process that is not a rank: call it in a function that"
            " world.run(function) runs, in a %%ranks cell, or under torchrun after ranks(...)."
        )
    return _given["device"]


def give_device(device) -> None:
    """Make this process a rank that has the device."""
    _given["device"] = device


class SharedFile:
    """An open file that no folder lists. Sent to a rank it is the same file; it is gone when the
    last process closes it."""

    def __init__(self, nbytes: int = 0, path: str = ""):
        """A new file, or the file that another process has open at `path`."""
        self.named = ""  # where a path to an open file shares its position: the store would break
        if path:
            self.fd = os.open(path, os.O_RDWR)
            return
        if hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd"):
            self.fd = os.memfd_create("shardlab")
        else:
            self.fd, self.named = tempfile.mkstemp(prefix="shardlab-")
        os.truncate(self.fd, nbytes)

    @property
    def path(self) -> str:
        """Where each process that has the file opens it for itself."""
        return self.named or f"/proc/self/fd/{self.fd}"

    def __getstate__(self):
        return DupFd(self.fd), self.named

    def __setstate__(self, state: tuple):
        duplicate, self.named = state
        self.fd = duplicate.detach()

    def close(self):
        os.close(self.fd)
        if self.named and os.path.exists(self.named):
            os.remove(self.named)
