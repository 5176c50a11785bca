"""The assignment: 16 bits compute, 32 bits remember. assignments/mixed_precision/README.md says
what a learner builds; these are the trials.

    given.py     the references, and what trials share
    steps.py     are the parameters and the scale right, step by step?
    weighed.py   what do copies and agreements cost, and in how many seconds?
    faults.py    overflows, wrong orders, loads, parameters without gradients
"""

from . import faults, steps, weighed
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "steps", "weighed", "faults"]
