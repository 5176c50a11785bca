"""Ranks on whatever there is, the small GPT and its batches, numbers to compare: a cell of any lab
calls these beside the technique and torch.

    from coursekit.lab import Predictions, batches, check, far, hint, ranks_on, small_gpt

    world = ranks_on(4)              # says on what the ranks run, and why
    world.run(function)              # a function of a cell, on every rank

virtual.py has virtual GPUs with the numbers of presets, nccl.py what NCCL takes for their messages.
"""

from ..exercises.checker import check
from ..exercises.hints import hint
from ..exercises.predictions import Predictions
from .small import batches, far, ring_bytes, small_gpt
from .start import link_between_hosts, ranks_on
