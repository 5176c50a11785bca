"""The fixture by which a test runs a case on ranks with pretended GPUs."""

from contextlib import ExitStack

import pytest
from asking import Answer, Driver


@pytest.fixture(scope="session")
def on_gpus():
    """on_gpus(n, case, ...): runs case(...) on n ranks, each with a pretended GPU of its own."""
    with ExitStack() as stack:
        drivers = {}

        def run(gpus: int, case, *args, **named) -> Answer:
            if gpus not in drivers:
                drivers[gpus] = Driver(gpus)
                stack.callback(drivers[gpus].close)
            return drivers[gpus].run(case, *args, **named)

        yield run
