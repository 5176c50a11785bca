"""The assignment: pipeline schedules, and a pipeline that runs them.
assignments/pipelines/README.md says what a learner builds; these are the trials.

    given.py              the references, and actions as words
    lists.py              schedules: lists that are checked and simulated, and run by nobody
    models.py             the model that is cut
    running.py            the pipeline
    running_weighed.py    what it holds and sends
    running_faults.py     what goes wrong
"""

from . import lists, running, running_faults, running_weighed
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "lists", "running", "running_faults", "running_weighed"]
