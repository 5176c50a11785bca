"""What the fork server imports, once for all ranks: the rank, and with it torch.

An import makes objects that stay. Looking for garbage among them costs a seventh of its time; and a
rank that looks there later writes to the pages it shares with the others, so they are left out of
its search for good.
"""

import gc

gc.disable()

from .worker import Rank  # noqa: E402, F401

gc.freeze()
gc.enable()
