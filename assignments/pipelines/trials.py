"""Trials of the assignment: pipeline schedules, and a pipeline that runs them. README.md beside
this file says what a learner builds.

    trials_given.py      the references, and actions as words
    trials_lists.py      schedules: lists that are checked and simulated, and run by nobody
    trials_running.py    the pipeline
"""

from . import trials_lists, trials_running
from .trials_given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "trials_lists", "trials_running"]
