"""PyTorch's own techniques on pretended GPUs. They are known to be right on real ones: where one
fails here, the pretence is wrong. Waits of the host in a step have a budget here, too: what is
counted is what a comparison by `make gpu` has to bear."""

import cases_peers as cases
import pytest
import torch
from pretended import are_real

pytestmark = pytest.mark.ranks

REBUILT = 4  # DDP, and ZeRO 1 around it, copy a map of used parameters for each of two buckets
OFFLOADED = 28  # FSDP2 waits for each gradient that goes to the host


@pytest.mark.parametrize(
    "options", [{}, dict(gradient_as_bucket_view=True, static_graph=True)], ids=["plain", "tuned"]
)
@pytest.mark.parametrize("gpus", [1, 2])
def test_data_parallelism(on_gpus, gpus, options):
    """Must catch: a future that C++ finds complete while the sum is on its way."""
    on_gpus(gpus, cases.torch_data_parallel, **options).is_right(0 if options else REBUILT)


@pytest.mark.parametrize("tuned", [False, True])
def test_zero_1(on_gpus, tuned):
    """Must catch: a broadcast whose tensors are not there when wait() returns."""
    on_gpus(2, cases.torch_zero_1, tuned).is_right(0 if tuned else REBUILT)


def whole_parameters_need_nccl(gpus: int):
    """full_tensor() of a GPU's DTensor kills the process where ranks share a real GPU, as gloo
    reads its address on the host: PyTorch's issue 152645."""
    if are_real() and torch.cuda.device_count() < gpus:
        pytest.skip("gloo cannot gather a DTensor of a GPU")


@pytest.mark.parametrize("options", [{}, dict(reshard=True), dict(offload=True)], ids=str)
@pytest.mark.parametrize("gpus", [1, 4])
def test_zero_3(on_gpus, gpus, options):
    """Must catch: streams and events without the methods that FSDP2 calls, memory that resize_ does
    not give back."""
    whole_parameters_need_nccl(gpus)
    on_gpus(gpus, cases.torch_zero_3, **options).is_right(OFFLOADED if "offload" in options else 0)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("gpus", [1, 2])
def test_tensor_parallelism(on_gpus, gpus, sequence):
    """Must catch: coalesced collectives, which functional collectives are, without a kernel."""
    whole_parameters_need_nccl(gpus)
    on_gpus(gpus, cases.torch_tensor_parallel, sequence).is_right()


@pytest.mark.parametrize(
    "name, kind",
    [
        ("GPipe", "ScheduleGPipe"),
        ("1F1B", "Schedule1F1B"),
        ("interleaved 1F1B", "ScheduleInterleaved1F1B"),
        ("zero-bubble H1", "ScheduleInterleavedZeroBubble"),
    ],
)
@pytest.mark.parametrize("gpus", [2, 4])
def test_pipelines(on_gpus, gpus, name, kind):
    """Must catch: a batch of messages that waits for some of them before all are under way."""
    on_gpus(gpus, cases.torch_pipeline, name, kind).is_right()
