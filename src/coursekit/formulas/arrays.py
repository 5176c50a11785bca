"""The functions of the subset on arrays of NumPy, so that a formula computes many layouts at once.
Imported only when many are asked about."""

from functools import partial, reduce

import numpy as np


def _in_turn(function):
    return lambda *values: reduce(function, values)


def _chosen(place, *values):
    *rows, place = np.broadcast_arrays(*values, place)
    return np.stack(rows)[place - 1, np.arange(len(place))]


# Name in subset.py -> the same of arrays
OF_ARRAYS = dict(
    ceil_div=lambda a, b: -(-a // b),
    floor_div=lambda a, b: a // b,
    ceil_log2=lambda a: np.frexp(a - 1)[1],
    square_root=np.sqrt,
    power_of_two=partial(np.ldexp, 1.0),
    maximum=_in_turn(np.maximum),
    minimum=_in_turn(np.minimum),
    arg_max=lambda *values: np.argmax(np.broadcast_arrays(*values), axis=0) + 1,
    choose=_chosen,
    where=np.where,
    equal=np.equal,
)
