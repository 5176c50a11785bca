"""Thousands of layouts solved at once: each formula is called with arrays."""

import numpy as np

from coursekit.formulas.registry import BOOK
from coursekit.formulas.subset import EXACT_LIMIT, Values


def solve_many(targets, given, registry=BOOK):
    """(values, right): what solve() finds at each place of the arrays of whole numbers in `given`,
    and whether solve() takes the place. A value is an array, or a number where no array is in it.
    Raises for presets and numbers what solve() raises."""
    flat = registry.expand(given)
    arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in flat.items() if name not in arrays}
    formulas, inputs = registry.resolve(targets, flat)
    values = registry.validate(**numbers) | arrays
    values |= registry.assumed(inputs, values)
    right = np.ones(len(next(iter(arrays.values()))), dtype=bool)
    for name, array in arrays.items():
        if name in registry.formulas:  # a choice, given
            continue
        quantity = registry.find(name)
        right &= (array >= quantity.least) & (array <= quantity.most)
    with np.errstate(all="ignore"):  # a place that is refused may divide by 0
        for name in formulas:
            formula = registry.formulas[name]
            value = formula.function(Values(values))
            if not formula.whole:
                value = value.astype(float) if isinstance(value, np.ndarray) else float(value)
            values[name] = value
            right &= np.isfinite(value)
            if formula.whole:
                right &= (value >= 0) & (value <= EXACT_LIMIT)
        for rule in registry.applicable_rules(values):
            right &= rule.function(Values({**dict(rule.assumed), **values}))
    return values, right
