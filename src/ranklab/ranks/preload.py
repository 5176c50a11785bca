"""The imports of the fork server, made once for all ranks and all checks of a reader's work: their
code, and with it torch.

An import makes permanent objects. Garbage collection among them costs a seventh of the import's
time, and a later collection in a rank would write to memory pages that the ranks share. So these
objects are frozen out of collection.

A notebook's stop reaches the server too, which would end during its imports and begin them again.
"""

import atexit
import gc
import signal

_before = signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.disable()

import torch  # noqa: E402
import torch.utils.serialization  # noqa: E402  # torch.load imports it when it first loads

from . import worker  # noqa: E402, F401

# The first optimizer of a process imports the compiler: here for all ranks, which takes seconds
torch.compiler.disable()

gc.freeze()
atexit.register(gc.unfreeze)  # Triton reports as leaked what Python did not collect at its end
gc.enable()
signal.signal(signal.SIGINT, _before)
