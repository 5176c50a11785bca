"""Rows of a test that wait for the night: `make nightly` runs them, `make test` does not."""

import pytest


def at_night(*rows) -> list:
    """The rows, each a tuple of the test's arguments or its only one."""
    given = (row if isinstance(row, tuple) else (row,) for row in rows)
    return [pytest.param(*row, marks=pytest.mark.nightly) for row in given]
