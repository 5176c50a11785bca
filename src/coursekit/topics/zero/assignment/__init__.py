"""The assignment: ZeRO, all three stages. assignments/zero/README.md says what a learner builds;
these are the trials.

    given.py                what trials share, with the references
    steps.py                a step of stages 1 and 2, and what misconceptions make of it
    optimizers.py           stages 1 and 2: optimizers of shards
    optimizers_weighed.py   what they hold and send
    optimizers_faults.py    what goes wrong
    stacks.py               the model of stage 3
    modules.py              stage 3: modules whose parameters are shards
    modules_weighed.py      what they hold and send
"""

from . import modules, modules_weighed, optimizers, optimizers_faults, optimizers_weighed
from .given import ASSIGNMENT

__all__ = [
    "ASSIGNMENT",
    "modules",
    "modules_weighed",
    "optimizers",
    "optimizers_faults",
    "optimizers_weighed",
]
