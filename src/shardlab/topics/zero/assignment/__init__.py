"""The assignment: ZeRO, all three stages. assignments/zero/README.md says what a learner builds;
these are the trials.

    given.py         the references, and what trials share
    optimizers.py    stages 1 and 2: optimizers of shards
    modules.py       stage 3: modules whose parameters are shards
"""

from . import modules, optimizers
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "modules", "optimizers"]
