"""The rungs of a step on one GPU, on the CPU, and the rate that they are compared with."""

import pytest
import torch

from coursekit.recordings.races import TINY
from coursekit.topics.hardware import one_gpu


def test_each_rung_trains_alike():
    """Must catch: a rung that does not go on from the one before it; a rung whose steps train
    something else; a rung that fails."""
    rows = list(one_gpu.one_gpu(torch.device("cpu"), TINY, 1, 32, compiles=False))
    found = {row.case["rung"]: row.value for row in rows if row.name == "one_gpu.loss_ratio"}
    assert list(found) == list(one_gpu.CHANGES)[:-1]
    assert all(value == pytest.approx(1, abs=2e-3) for value in found.values())
    assert [*found.values()][3:] == pytest.approx([[*found.values()][3]] * 5, abs=2e-5)


@pytest.mark.parametrize(
    "called, gigabytes, over",
    [
        ("NVIDIA H100 80GB HBM3", 85, "H100 SXM 80GB, 80 GB, 989 dense bf16 TFLOP/s"),
        ("NVIDIA A100-SXM4-40GB", 42, "A100 SXM 40GB, 40 GB, 312 dense bf16 TFLOP/s"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 42, "measured: bf16 product of size 8"),
        ("NVIDIA H100 PCIe", 85, "measured: bf16 product of size 8"),
    ],
)
def test_the_rate_of_this_gpu(monkeypatch, called, gigabytes, over):
    """Must catch: a part of a GPU, or a slower board of the same name, compared with the whole of
    the fast one; a GPU of another size."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: called)
    monkeypatch.setattr(one_gpu, "memory_bytes", lambda device: gigabytes * 10**9)
    products = one_gpu.products
    on_cpu = lambda device, *given: products(torch.device("cpu"), *given)
    monkeypatch.setattr(one_gpu, "products", on_cpu)
    assert one_gpu.rate_and_source(torch.device("cuda"), 8)[1] == over
