"""The fixture by which a test runs a case on ranks with pretended GPUs."""

import pytest
from asking import Driver


@pytest.fixture(scope="session")
def on_gpus():
    """on_gpus(n, case, ...): runs case(...) on n ranks, each with a pretended GPU of its own."""
    driver = Driver()
    yield driver.run
    driver.close()
