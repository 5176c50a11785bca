"""The imports of the fork server, made once for all ranks and all checks of a reader's work: their
code, and with it torch.

An import makes permanent objects. Garbage collection among them costs a seventh of the import's
time, and a later collection in a rank would write to memory pages that the ranks share. So these
objects are frozen out of collection.
"""

import gc
from contextlib import suppress

gc.disable()

import torch  # noqa: E402

# What torch.load imports when it first loads. PyTorch 2.6 has no such module, and a fork server
# says nothing of an import that fails here: each rank would import torch for itself.
with suppress(ImportError):
    import torch.utils.serialization

from . import apart, worker  # noqa: E402, F401

# The first optimizer of a process imports the compiler, also where nothing is compiled. On ranks
# that takes seconds, and each of them its own: here it is imported for all.
torch.compiler.disable()

gc.freeze()
gc.enable()
