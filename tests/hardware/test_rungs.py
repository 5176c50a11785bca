"""The rungs of a step on one GPU, on the CPU, and the rate that they are compared with."""

import pytest
import torch
import torch.utils.cpp_extension  # for the compiler; fails in a process that has imported pip
from told import from_told

from coursekit.machine import capabilities, profiling
from coursekit.recordings.races import TINY
from coursekit.topics.hardware import one_gpu


@pytest.mark.slow
def test_each_rung_trains_alike():
    """Must catch: a rung that does not go on from the one before it; a rung whose steps train
    something else; a rung that fails."""
    rows = list(one_gpu.one_gpu(torch.device("cpu"), TINY, 1, 32, compiles=False))
    found = {row.case["rung"]: row.value for row in rows if row.name == "one_gpu.loss_ratio"}
    assert list(found) == list(one_gpu.CHANGES)[:-4]
    assert all(value == pytest.approx(1, abs=2e-3) for value in found.values())
    assert [*found.values()][3:] == pytest.approx([[*found.values()][3]] * 5, abs=2e-5)


@pytest.mark.nightly  # by day test_blocks_are_compiled_once
def test_blocks_in_cuda_graphs_train_alike(monkeypatch):
    """Must catch: a rung that compiles nothing; a step that does not say that it begins, so that
    CUDA keeps what the step before it returned; other losses."""
    begun, mark = [], torch.compiler.cudagraph_mark_step_begin
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(mark()))
    rung, losses, modes = one_gpu.Rung(), [], []
    for change in one_gpu.CHANGES.values():
        rung = rung._replace(**change)
    compile_blocks = one_gpu.compile_blocks
    noting = lambda *given, **options: modes.append(options) or compile_blocks(*given, **options)
    monkeypatch.setattr(one_gpu, "compile_blocks", noting)
    for one in (rung, rung._replace(graphs=False), rung._replace(compiled=False, graphs=False)):
        step = one_gpu.build_step(one, TINY, torch.device("cpu"))
        losses.append([step().item() for _ in range(3)])
    assert modes == [dict(mode="reduce-overhead"), {}] and len(begun) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] == pytest.approx(losses[2], rel=2e-3) and losses[0][2] < losses[0][0]


@from_told("called, gigabytes, over")
def test_the_rate_of_this_gpu(monkeypatch, called, gigabytes, over):
    """Must catch: a part of a GPU, a slower board of the same name or another size compared with
    the fast one; an RTX 4090 taken for any RTX; an A100, which the book has in two sizes, profiled
    without its peak."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: called)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(capabilities, "memory_bytes", lambda device: gigabytes * 10**9)
    products = one_gpu.products
    on_cpu = lambda device, *given: products(torch.device("cpu"), *given)
    monkeypatch.setattr(one_gpu, "products", on_cpu)
    assert one_gpu.rate_and_source(torch.device("cuda"), 8)[1] == over
    rate = profiling.peak_rate()
    assert rate is None if "measured" in over else f"{rate / 1e12:g} dense" in over
