"""The imports of the fork server, made once for all ranks: the rank's code, and with it torch.

An import makes permanent objects. Garbage collection among them costs a seventh of the import's
time, and a later collection in a rank would write to memory pages that the ranks share. So these
objects are frozen out of collection.
"""

import gc

gc.disable()

from .worker import Rank  # noqa: E402, F401

gc.freeze()
gc.enable()
