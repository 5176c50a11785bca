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
    """Must catch: no first message of each pair when a pipeline is made (drop Wire.connect()). A
    tied weight then hangs in a batch among some ranks, the group's first use; with messages posted
    ahead (`self.ahead = True`) an untied model hangs too, in a receive before the send that its
    gradient needs."""
    on_gpus(gpus, cases.pipelined, name, tied).is_right()
