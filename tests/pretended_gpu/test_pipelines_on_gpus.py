"""Pipelines on pretended GPUs: every schedule, tied and untied. NCCL makes the communicator of a
pair at its first message, and the host waits there for the peer."""

import cases_ranks as cases
import pytest

pytestmark = pytest.mark.ranks

COUNTS = (1, 2, 4)


@pytest.mark.parametrize(
    "name", ["GPipe", "1F1B", "eager 1F1B", "interleaved 1F1B", "zero-bubble H1", "zero-bubble H2"]
)
@pytest.mark.parametrize("tied", [0, 1])
@pytest.mark.parametrize("gpus", COUNTS)
def test_pipelines(on_gpus, gpus, name, tied):
    """Must catch: a receive posted before the send that its gradient needs, with no communicator of
    the pair yet (A1: drop the tokens at the start); a batch of a tied weight's first values among
    some ranks as the group's first use (A2)."""
    on_gpus(gpus, cases.pipelined, name, tied).is_right()
