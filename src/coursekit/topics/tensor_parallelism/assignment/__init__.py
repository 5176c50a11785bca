"""The assignment: layers cut by width, and a transformer block made of them.
assignments/tensor_parallelism/README.md says what a learner builds; these are the trials.

    given.py     the references, and what trials share
    pieces.py    the pair of functions, the layers, the loss
    blocks.py    a block of the plain GPT, cut
"""

from . import blocks, pieces
from .given import ASSIGNMENT

__all__ = ["ASSIGNMENT", "blocks", "pieces"]
