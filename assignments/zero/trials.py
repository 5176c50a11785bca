"""Trials of the assignment: ZeRO, all three stages. README.md beside this file says what a learner
builds.

    trials_given.py         the references, and what trials share
    trials_optimizers.py    stages 1 and 2: optimizers of shards
    trials_units.py         stage 3: modules whose parameters are shards
"""

from . import trials_optimizers, trials_units
from .trials_given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "trials_optimizers", "trials_units"]
