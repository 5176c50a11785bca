"""The assignment: collectives from send and recv. assignments/collectives/README.md says what a
learner builds; these are the trials.

    given.py      the references, and what trials share
    sums.py       are the sums and the chunks right?
    messages.py   what does each rank send and hold?
    faults.py     strange tensors, wrong shards, and the speed of what is right
"""

from . import faults, messages, sums
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "sums", "messages", "faults"]
