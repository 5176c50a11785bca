"""The assignment: data parallelism with buckets that leave during backward.
assignments/data_parallelism/README.md says what a learner builds; these are the trials.

    given.py      the references, and what trials share
    values.py     are buckets, values and gradients right?
    messages.py   what is sent when, what is held, and in how many seconds?
    faults.py     parameters that are not used, microbatches, errors, wrong arguments
"""

from . import faults, messages, values
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "values", "messages", "faults"]
