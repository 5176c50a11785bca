"""The functions of the subset on arrays of NumPy, so that a formula computes many layouts at once.
Imported only when many are asked about."""

from functools import partial, reduce

import numpy as np


def _in_turn(function):
    return lambda *values: reduce(function, values)


def _stacked(*values):
    return np.stack(np.broadcast_arrays(*values))


def _chosen(place, *values):
    return _stacked(*values, place)[place - 1, np.arange(len(place))]


# Name in subset.py -> the same of arrays
OF_ARRAYS = dict(
    CeilDiv=lambda a, b: -(-a // b),
    FloorDiv=lambda a, b: a // b,
    CeilLog2=lambda a: np.frexp(a - 1)[1],
    SquareRoot=np.sqrt,
    PowerOfTwo=partial(np.ldexp, 1.0),
    Maximum=_in_turn(np.maximum),
    Minimum=_in_turn(np.minimum),
    ArgMax=lambda *values: np.argmax(_stacked(*values), axis=0) + 1,
    Choose=_chosen,
    where=np.where,
    equal=np.equal,
)
