"""The sentence a lab opens with says what was tried, also on machines that this one is not."""

from types import SimpleNamespace

import torch

from coursekit.machine import capabilities
from coursekit.machine.capabilities import find_device, memory_bytes, multiplies_bf16
from coursekit.machine.limit import MemoryLimit

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
T4 = dict(
    get_device_name="Tesla T4",
    get_device_capability=(7, 5),
    get_device_properties=SimpleNamespace(total_memory=15_835_660_288),
)


def pretend(monkeypatch, **cuda):
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)


def test_without_a_gpu_the_cpu_is_used_and_the_reason_is_said(monkeypatch):
    """Mutation: the reason left empty, so that the table says "the CPU is used" and not why."""
    pretend(monkeypatch, is_available=False)
    device, why_not = find_device()
    assert (device, why_not) == (CPU, "no CUDA GPU was found")
    assert any(why_not in row.so for row in capabilities.capabilities(device, why_not))


def test_a_gpu_that_cannot_compute_is_no_gpu(monkeypatch):
    """Mutation: is_available() believed. An old GPU is "available" to a PyTorch that has no kernels
    for it."""

    said = "CUDA error: no kernel image is available for execution on the device"

    def refuse(*_, **__):
        raise RuntimeError(f"{said}\nmore lines")

    pretend(monkeypatch, is_available=True)
    monkeypatch.setattr(capabilities.torch, "ones", refuse)
    assert find_device() == (CPU, f"the GPU refused: {said}")


def test_a_t4_has_no_bf16_units(monkeypatch):
    """Mutation: torch.cuda.is_bf16_supported() asked, which is true on a T4 by emulation."""
    pretend(monkeypatch, get_device_capability=(7, 5), is_bf16_supported=True)
    assert not multiplies_bf16(GPU)
    pretend(monkeypatch, get_device_capability=(8, 0))
    assert multiplies_bf16(GPU)
    assert not multiplies_bf16(CPU)


def test_the_table_of_a_gpu(monkeypatch):
    """Mutations: memory in GB; the second GPU said to be used; what needs a GPU said to be skipped
    on one; ranks and a backend named in a lab of one process."""
    pretend(monkeypatch, device_count=2, **T4)
    rows = {row.question: row for row in capabilities.capabilities(GPU, needs_gpu=["it"])}
    assert rows["device"].here == "Tesla T4, 14.7 GiB"
    assert rows["device"].so == "one of 2 GPUs is used"
    assert rows["skipped"].here == "nothing"
    assert "ranks" not in rows and "backend" not in rows


def test_a_lab_of_several_ranks(monkeypatch):
    """Mutations: NCCL promised with one GPU for two ranks, or on the CPU of a machine with two, or
    to a lab whose ranks stay on the CPU; "one process" said; one of two GPUs said to be used where
    each rank has its own; the reason for gloo left out of the sentence."""
    pretend(monkeypatch, device_count=1, **T4)

    def rows(device, **given):
        found = capabilities.capabilities(device, ranks=2, **given)
        return {row.question: row.here for row in found}

    def said(**given):
        return str(capabilities.in_a_sentence(capabilities.capabilities(GPU, ranks=2, **given)))

    assert (rows(GPU)["ranks"], rows(GPU)["backend"]) == ("2", "gloo")
    assert "backend gloo: 2 ranks share the GPU, and NCCL wants one for each" in said()
    pretend(monkeypatch, device_count=2)
    assert "2 of 2 GPUs are used. It starts 2 ranks, backend nccl: a GPU for each rank." in said()
    assert "one of 2 GPUs is used" in said(on_cpu=True)
    assert rows(GPU)["backend"] == "nccl" and rows(CPU)["backend"] == "gloo"
    assert rows(GPU, on_cpu=True)["backend"] == "gloo"


def test_memory_of_a_container_and_where_the_system_does_not_tell(monkeypatch):
    """Mutations: the whole machine's memory, shown to each of thirty learners on it; the
    AttributeError of a Windows machine let through, so that the lab's first cell fails there."""
    assert memory_bytes(CPU) > 2**30
    with monkeypatch.context() as patched:
        patched.setattr(capabilities, "control_groups", lambda: [MemoryLimit(2**30, 0)])
        assert memory_bytes(CPU) == 2**30
    monkeypatch.delattr(capabilities.os, "sysconf")
    assert memory_bytes(CPU) is None
    rows = capabilities.capabilities(CPU)
    assert any(row.question == "device" and "GiB" not in row.here for row in rows)


def test_one_sentence_instead_of_a_table(monkeypatch):
    """Must catch: a lab that needs a GPU said to need none; ranks named in a lab of one process;
    what is skipped left out."""
    monkeypatch.setattr(capabilities.torch.cuda, "device_count", lambda: 0)

    def said(**given):
        rows = capabilities.capabilities(CPU, "no CUDA GPU was found", **given)
        return str(capabilities.in_a_sentence(rows))

    assert "(no CUDA GPU was found). Nothing in it needs a GPU." in said()
    assert "It starts 4 ranks, backend gloo: " in said(ranks=4) and "ranks" not in said()
    skipped = said(needs_gpu=["the card's account"])
    assert "only a GPU can show it: the card's account." in skipped and "Nothing" not in skipped
