"""Sending less: fewer bytes a step, or fewer steps that send.

core.py              hooks of data parallelism: 16 bits, the largest elements, thin matrices
core_bits.py         codes of 1, 4 and 8 bits, summed in two hops
core_optimizers.py   1-bit Adam, DeMo, DiLoCo and local SGD
core_zero.py         ZeRO++: stage 3 between nodes
large_batch.py       LARS and LAMB, for the batch of fewer and larger messages
"""

from .core import Compressed, power_sgd, sixteen_bits, top_k
from .core_bits import four_bits, signs
from .core_optimizers import DeMo, DiLoCo, OneBitAdam
from .core_zero import zero_plus_plus
from .large_batch import LAMB, LARS
