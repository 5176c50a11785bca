"""Rows of a test that wait for the night, which `make nightly` runs and `make test` does not; rows
for numbers of ranks."""

import pytest


def at_night(*rows) -> list:
    """The rows, each a tuple of the test's arguments or its only one."""
    given = (row if isinstance(row, tuple) else (row,) for row in rows)
    return [pytest.param(*row, marks=pytest.mark.nightly) for row in given]


def world_of(*rows):
    """A fixture `world`: as many ranks as each row says."""

    @pytest.fixture(params=rows)
    def world(request, worlds):
        return worlds(request.param)

    return world
