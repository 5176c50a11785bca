"""Running out of memory on purpose, without harm to the machine or to what runs beside it."""

import pytest
import torch

from coursekit.machine import capabilities
from coursekit.topics.where_the_memory_goes import limit

CPU = torch.device("cpu")
MIB, GIB = 2**20, 2**30
can_limit = pytest.mark.skipif(
    bool(limit.cannot_try(256 * MIB, CPU)),
    reason=limit.cannot_try(256 * MIB, CPU) or "a CPU that can be limited",
)


def test_the_memory_of_a_container(tmp_path):
    """Must catch: only the root's control group read; a Slurm step without a limit that hides the
    job's; version 1's huge number taken for a limit; pages of files counted as taken."""

    def group(folder, most, used, files, names):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(f"{most}\n")
        (folder / names[1]).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {files}\n")

    def found(lines):
        (tmp_path / "own").write_text(lines)
        return list(capabilities.control_groups(tmp_path / "own", tmp_path / "mounted"))

    one, two = capabilities.VERSIONS[1], capabilities.VERSIONS[2]
    slurm = tmp_path / "mounted" / "memory" / "slurm" / "job_7"
    group(slurm, 4 * GIB, 3 * GIB, GIB, one)
    group(slurm / "step_0", 2**63 - 4096, 2 * GIB, 0, one)
    assert found("4:memory:/slurm/job_7/step_0\n3:cpu:/\n0::/\n") == [(4 * GIB, 2 * GIB)]
    service = tmp_path / "mounted" / "a.slice" / "lab.service"
    group(service, "max", GIB, 0, two)
    group(service.parent, 2 * GIB, GIB, 2 * GIB, two)
    assert found("0::/a.slice/lab.service\n") == [(2 * GIB, 0)]
    assert found("0::/gone/since/then\n") == []
    group(tmp_path / "mounted", 3 * GIB, GIB, 0, two)
    assert found("0::/elsewhere/docker-1234.scope\n") == [(3 * GIB, GIB)]
    assert list(capabilities.control_groups(tmp_path / "nowhere")) == []


@pytest.mark.slow
@can_limit
def test_the_first_that_does_not_fit_is_the_last():
    """Must catch: no limit set, so that all fit; the loop going on after the first failure; the
    work's prints read as the answer; what a case leaves behind charged to the next."""

    def take(mib):
        print(f"taking {mib} MiB")
        circle = [torch.zeros(mib * MIB // 4)]
        circle.append(circle)  # dies only when Python looks for circles

    attempts, _ = limit.try_within(
        256 * MIB, CPU, take, [dict(mib=128), dict(mib=160), dict(mib=1024), dict(mib=1)]
    )
    assert [attempt.case["mib"] for attempt in attempts] == [128, 160, 1024]
    assert attempts[0].error == attempts[1].error == ""
    assert "can't allocate memory" in attempts[2].error
    torch.zeros(1024 * MIB // 4)  # this process is not limited


@pytest.mark.nightly  # the test above limits a process
@can_limit
def test_what_a_first_step_loads_is_not_the_works():
    """Must catch: memory counted before a first backward and update have loaded what they need,
    some 100 MiB that the limit then lacks."""

    def step():
        layer = torch.nn.Linear(3, 3)
        layer(torch.ones(4, 3)).sum().backward()
        torch.optim.AdamW(layer.parameters()).step()

    assert limit.try_within(16 * MIB, CPU, step, [{}]).attempts == [limit.Attempt({}, "")]


@pytest.mark.nightly  # by day test_a_gpus_share_is_put_back
@can_limit
def test_another_error_is_no_lack_of_memory():
    """Must catch: any exception reported as "does not fit"."""
    with pytest.raises(RuntimeError, match="the process that tried it failed: ZeroDivisionError:"):
        limit.try_within(64 * MIB, CPU, lambda: 1 / 0, [{}])

    def wrong_shape():
        torch.zeros(2) @ torch.zeros(3)

    with pytest.raises(RuntimeError, match="size"):
        limit.attempt_each(wrong_shape, [{}])


def test_the_machine_is_asked_first(monkeypatch):
    """Must catch: the check left out, or one that compares with the limit alone; a system that does
    not tell taken for a free one."""
    monkeypatch.setattr(limit.sys, "platform", "linux")
    monkeypatch.setattr(limit, "free_bytes", lambda device: 3 * 2**30)
    assert limit.cannot_try(2**30, CPU) == ""
    assert (
        limit.cannot_try(2 * 2**30, CPU)
        == "not tried: 3.0 GiB are free, and 2 times the limit of 2.0 GiB should be."
    )
    attempts, why_not = limit.try_within(2 * 2**30, CPU, lambda: 1 / 0, [{}])
    assert not attempts and "3.0 GiB are free" in why_not
    monkeypatch.setattr(limit, "free_bytes", lambda device: None)
    assert (
        limit.cannot_try(1, CPU) == "not tried: this system does not tell how much memory is free."
    )
    monkeypatch.setattr(limit.sys, "platform", "win32")
    assert (
        limit.cannot_try(1, CPU)
        == "not tried: on this system a process cannot be held to a limit of memory."
    )


def test_a_container_has_no_more_than_its_limit(monkeypatch):
    """Must catch: the machine's memory taken where a container is allowed less; a file that is
    missing or says "max" taken for an error."""
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8 kB\n",
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/memory.max": "5000",
        "/sys/fs/cgroup/memory.current": "2000",
    }

    def read_text(path):
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(limit.Path, "read_text", read_text)
    assert limit.free_bytes(CPU) == 3000
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert limit.free_bytes(CPU) == 8192
    del files["/sys/fs/cgroup/memory.max"]
    assert limit.free_bytes(CPU) == 8192
    files.clear()
    assert limit.free_bytes(CPU) is None


@pytest.mark.slow
def test_a_gpus_share_is_put_back(monkeypatch):
    """Must catch: the fraction left as it was set, also when the work fails for another reason; a
    limit that forgets what is held already."""
    share = [1.0]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (800, 1000))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: type("Properties", (), dict(total_memory=1000)),
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share[-1])
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda fraction, device: share.append(fraction),
    )

    def work(batch):
        if batch == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
        if batch == 3:
            raise KeyError(batch)

    gpu = torch.device("cuda", 0)
    assert limit.try_within(300, gpu, work, [dict(batch=1), dict(batch=2)]).attempts == [
        limit.Attempt(dict(batch=1), ""),
        limit.Attempt(dict(batch=2), "CUDA out of memory. Tried to allocate 2 GiB."),
    ]
    assert share == [1.0, 0.4, 1.0]
    with pytest.raises(KeyError):
        limit.try_within(300, gpu, work, [dict(batch=3)])
    assert share[-1] == 1.0


def test_an_allocators_message_is_said_in_words():
    """Must catch: the raw line of PyTorch's allocator shown; a message that names no bytes lost; a
    batch called fitting that did not."""
    raw = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 411705344 bytes."  # noqa: E501
    tried = limit.Tried([limit.Attempt(dict(batch=4), ""), limit.Attempt(dict(batch=8), raw)], "")
    assert " ".join(str(tried).split()) == (
        "fitted: 4; 8 did not: no room for a tensor of 411,705,344 bytes"
    )
    assert tried.fitted == [4]
    gpu = limit.Tried(
        [limit.Attempt(dict(batch=1), "CUDA out of memory. Tried to allocate 2 GiB.")], ""
    )
    assert "fitted: nothing; 1 did not: CUDA out of memory. Tried" in " ".join(str(gpu).split())
    assert (
        str(limit.Tried([limit.Attempt(dict(batch=4), "")], "")) == "fitted: 4, and nothing failed"
    )
    assert "not tried" in str(limit.Tried([], "not tried: no memory is free."))
