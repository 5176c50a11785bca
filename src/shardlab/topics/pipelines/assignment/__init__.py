"""The assignment: pipeline schedules, and a pipeline that runs them.
assignments/pipelines/README.md says what a learner builds; these are the trials.

    given.py      the references, and actions as words
    lists.py      schedules: lists that are checked and simulated, and run by nobody
    running.py    the pipeline
"""

from . import lists, running
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "lists", "running"]
