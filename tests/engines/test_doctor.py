"""The doctor tries things, says what to do, and knows what each lab needs; the table of a lab says
what was tried."""

import ast
import json
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from pages import ROOT
from told import from_told

from coursekit.__main__ import main
from coursekit.machine import capabilities, doctor
from coursekit.machine.capabilities import MemoryLimit, find_device, memory_bytes
from coursekit.machine.doctor import Diagnosis, rows_of_labs
from coursekit.machine.units import has_units
from ranklab.measure.clock import MedianSeconds


@pytest.mark.ranks
def test_the_command(capsys):
    """Mutation: ranks not started but assumed; a lab of the folder left out; an exit code that says
    the opposite."""
    code, shown = main(["doctor", str(ROOT / "labs")]), capsys.readouterr()
    assert code == 0, shown
    rows = {line.split("  ")[0]: line for line in shown.out.splitlines()}
    assert "4 ranks on " in rows["4 ranks"] and "their first sum after" in rows["4 ranks"]
    assert {"Python", "packages", "CPU", "GPU", "NCCL", "slow links"} <= set(rows)
    for path in (ROOT / "labs").glob("*.ipynb"):
        assert path.stem in rows
    assert {"front end", "disk", "clock"} <= set(rows) and list(rows)[-1] == "ready"


def test_what_is_missing_is_named_with_what_to_do(monkeypatch):
    """Mutation: a missing package that raises, one too old that passes, an extra taken for a
    requirement."""
    found = dict(torch="2.7.1+cpu", numpy="1.26.0")

    def version(name):
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(doctor, "version", version)
    wanted = ["torch>=2.8", "numpy>=1.26", "sympy>=1.13", "pytest>=8; extra == 'test'"]
    monkeypatch.setattr(doctor, "requires", lambda name: wanted)
    assert list(doctor.packages()) == [
        Diagnosis("torch", "2.7.1+cpu", "pip install 'torch>=2.8'", False),
        Diagnosis("sympy", "missing", "pip install 'sympy>=1.13'", False),
        Diagnosis("packages", "numpy 1.26.0", "nothing to do"),
    ]
    monkeypatch.setattr(doctor.sys, "version_info", (3, 9, 1))
    assert doctor.python().do == "install Python 3.11 or newer" and not doctor.python().fit


def test_a_checkout_that_is_not_installed_is_named(monkeypatch):
    """Must catch: a PackageNotFoundError; "nothing to do" where nothing was compared."""
    monkeypatch.setattr(doctor, "requires", Mock(side_effect=PackageNotFoundError("shardlab")))
    (row,) = doctor.packages()
    assert row.here == f"not installed: it runs from {ROOT / 'src'}" and row.fit
    assert row.do == f"pip install -e {ROOT}; what it needs was not compared"


def test_front_end_disk_and_clock_are_looked_at(monkeypatch, tmp_path):
    """Must catch: a full or closed disk called fine; a spread or a load that is never compared;
    silence about a front end that is missing."""
    assert doctor.disk(tmp_path).do == "nothing to do"
    monkeypatch.setattr(doctor.os, "access", lambda place, how: False)
    assert "not writable" in doctor.disk(tmp_path).here
    assert "copy the labs" in doctor.disk(tmp_path).do
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "GB_OF_DISK", 1e9)
    assert doctor.disk(tmp_path).do.startswith("labs want")
    monkeypatch.setattr(doctor, "cores", lambda: 2)
    for times, load, advice in (
        ([1, 1, 1, 1], 1.0, "nothing to do"),
        ([1, 1, 2, 2], 1.0, "this machine is busy"),
        ([1, 1, 1, 1], 58.0, "labs take about 29 times as long"),
    ):
        monkeypatch.setattr(doctor, "median_seconds", lambda *_, t=times, **__: MedianSeconds(t))
        monkeypatch.setattr(doctor.os, "getloadavg", lambda load=load: (load, 0, 0))
        assert doctor.clock().do.startswith(advice)
    monkeypatch.setattr(doctor, "version", Mock(side_effect=PackageNotFoundError("jupyterlab")))
    assert "pip install jupyterlab" in doctor.front_end().do and doctor.front_end().fit


@pytest.mark.ranks
def test_ranks_that_do_not_start_are_one_line(monkeypatch):
    """Mutation: a traceback instead of a report; the wrong sum of a broken backend taken for a
    world that works."""
    monkeypatch.setattr(doctor, "ranks", Mock(side_effect=ValueError("no room\nmore lines")))
    assert doctor.started_ranks()[:2] == ("4 ranks", "no room") and not doctor.started_ranks().fit
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "SLOW_START_SECONDS", 0.0)
    assert "run it before the session begins" in doctor.started_ranks().do
    monkeypatch.setattr(doctor, "add_up", lambda: 7.0)
    assert doctor.started_ranks().here == "their sum is wrong: [7.0, 7.0, 7.0, 7.0]"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "labs").glob("[0-9]*.ipynb")), ids=lambda path: path.stem
)
def test_the_labs_say_what_they_need(path):
    """Mutations: a lab without metadata, which the doctor takes for one process that needs nothing;
    metadata of another number of ranks than the lab's own table shows, or without what only a GPU
    can show."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    nodes = (node for source in code for node in ast.walk(ast.parse(source)))
    names = ("capabilities", "ranks_on")
    call = next(node for node in nodes if getattr(getattr(node, "func", 0), "id", 0) in names)
    given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    if call.func.id == "ranks_on":
        given["ranks"] = ast.literal_eval(call.args[0])
    needs = notebook["metadata"]["shardlab"]
    assert needs["ranks"] == given.get("ranks", 1)
    assert len(needs.get("needs_gpu", [])) == len(given.get("needs_gpu", []))


def test_what_each_lab_will_do(tmp_path, monkeypatch):
    """Mutation: a lab of one process refused because ranks do not start; the needs of one lab given
    to the next; a damaged notebook that hides the rest of the report."""
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)

    def lab(name, **needs):
        metadata = {"shardlab": needs} if needs else {}
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"metadata": metadata}))

    lab("01-plain")
    lab("04-ranks", ranks=4)
    lab("03-gpu", needs_gpu=["the account"])
    fine, broken = [Diagnosis("4 ranks", "", "")], [Diagnosis("4 ranks", "", "", fit=False)]
    assert list(rows_of_labs(tmp_path, fine)) == [
        ("01-plain", "runs", "1 rank"),
        ("03-gpu", "runs in part", "1 rank; replayed or skipped: the account"),
        ("04-ranks", "runs", "4 ranks"),
    ]
    does = [row[1] for row in rows_of_labs(tmp_path, broken)]
    assert does == ["runs", "runs in part", "cannot run"]
    (tmp_path / "05-torn.ipynb").write_text('{"metadata":')
    (tmp_path / "05-without.ipynb").write_text('{"metadata": {"shardlab": ["ranks"]}}')
    for name, (found, does, why) in zip(
        ("05-torn", "05-without"), list(rows_of_labs(tmp_path, fine))[-2:], strict=True
    ):
        assert (found, does) == (name, "cannot run") and "download it again" in why
    for count in (0, -1, 2.5, 10**9, True, "4"):
        lab("06-odd", ranks=count)
        *_, (_, _, why) = rows_of_labs(tmp_path, fine)
        assert f"ask for {count!r} ranks, not for 1 to 64" in why


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
    assert f"({why_not})" in capabilities.capabilities(device, why_not)


def test_a_gpu_that_cannot_compute_is_no_gpu(monkeypatch):
    """Mutation: is_available() believed. An old GPU is "available" to a PyTorch that has no kernels
    for it."""
    said = "CUDA error: no kernel image is available for execution on the device"
    refuses = Mock(side_effect=RuntimeError(f"{said}\nmore lines"))
    pretend(monkeypatch, is_available=True)
    monkeypatch.setattr(capabilities.torch, "ones", refuses)
    assert find_device() == (CPU, f"the GPU refused: {said}")


def test_a_t4_has_no_bf16_units(monkeypatch):
    """Mutation: torch.cuda.is_bf16_supported() asked, which is true on a T4 by emulation."""
    pretend(monkeypatch, get_device_capability=(7, 5), is_bf16_supported=True)
    assert not has_units(torch.bfloat16, GPU)
    pretend(monkeypatch, get_device_capability=(8, 0))
    assert has_units(torch.bfloat16, GPU)


@from_told("gpus, device, asked, words")
def test_what_a_lab_runs_on(gpus, device, asked, words, monkeypatch):
    """Must catch: memory in GB; the second GPU said to be used, or one of two where each rank has
    its own; NCCL promised with one GPU for two ranks, on the CPU of a machine with two, or for
    ranks that stay on the CPU; ranks named in a lab of one process; what is skipped left out; NCCL
    said to carry the messages of rehearsed hosts."""
    pretend(monkeypatch, device_count=gpus, **T4)
    said = capabilities.capabilities(device, **asked)
    assert words in said and (" ranks" in said) == ("ranks" in asked)
    assert ("Nothing in it" in said) == (device == CPU and "needs_gpu" not in asked)


def test_memory_of_a_container_and_where_the_system_does_not_tell(monkeypatch):
    """Mutations: the whole machine's memory, shown to each of thirty learners on it; the
    AttributeError of a Windows machine let through, so that the lab's first cell fails there."""
    assert memory_bytes(CPU) > 2**30
    with monkeypatch.context() as patched:
        patched.setattr(capabilities, "control_groups", lambda: [MemoryLimit(2**30, 0)])
        assert memory_bytes(CPU) == 2**30
    monkeypatch.delattr(capabilities.os, "sysconf")
    assert memory_bytes(CPU) is None
    assert "GiB" not in capabilities.capabilities(CPU)
