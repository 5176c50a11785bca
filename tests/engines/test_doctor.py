"""The doctor tries things, says what to do, and knows what each lab needs."""

import ast
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from coursekit.machine import doctor
from coursekit.machine.doctor import Diagnosis, Lab, lab_row, labs_in
from ranklab.measure.clock import MedianSeconds

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ranks
def test_the_command():
    """Mutation: ranks not started but assumed; a lab of the folder left out; an exit code that says
    the opposite."""
    command = [sys.executable, "-m", "shardlab", "doctor", str(ROOT / "labs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
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

    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", requires)
    (row,) = doctor.packages()
    assert row.here == f"not installed: it runs from {ROOT / 'src'}" and row.fit
    assert row.do == f"pip install -e {ROOT}; what it needs was not compared"


def test_the_last_line_is_ready_or_what_to_do():
    """Must catch: "ready" where a lab cannot run; advice that is no obstacle in the last line."""
    fine, busy = Diagnosis("CPU", "2 cores", "nothing to do"), Diagnosis("clock", "50%", "repeat")
    old = Diagnosis("torch", "2.7.1", "pip install 'torch>=2.8'", False)
    assert doctor.ready_or_not([fine, busy]) == "ready"
    assert doctor.ready_or_not([fine, old, busy]) == "not ready: torch: pip install 'torch>=2.8'"


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

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    assert "pip install jupyterlab" in doctor.front_end().do and doctor.front_end().fit


def test_the_findings_for_a_program(tmp_path):
    """Must catch: "ready" where something is missing; a row that only the table has."""
    old = Diagnosis("torch", "2.7.1", "pip install 'torch>=2.8'", False)
    row = ("04-ranks", "cannot run", "see torch above")
    found = json.loads(doctor.Examination([old], [row]).as_json())
    assert found == {
        "ready": False,
        "findings": [old._asdict()],
        "labs": [{"lab": "04-ranks", "here": "cannot run", "because": "see torch above"}],
    }


@pytest.mark.ranks
def test_ranks_that_do_not_start_are_one_line(monkeypatch):
    """Mutation: a traceback instead of a report; the wrong sum of a broken backend taken for a
    world that works."""

    def refuse(*_, **__):
        raise ValueError("no room\nmore lines")

    monkeypatch.setattr(doctor, "ranks", refuse)
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
    sources = ("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    calls = (
        node
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in ("capabilities", "ranks_on")
    )
    first = next(calls)
    given = {keyword.arg: keyword.value for keyword in first.keywords}
    if first.func.id == "ranks_on":
        given["ranks"] = first.args[0]
    ranks, needs_gpu = (
        ast.literal_eval(given[name]) if name in given else default
        for name, default in (("ranks", 1), ("needs_gpu", []))
    )
    needs = notebook["metadata"]["shardlab"]
    assert needs["ranks"] == ranks and len(needs.get("needs_gpu", [])) == len(needs_gpu)


def test_what_each_lab_will_do(tmp_path, monkeypatch):
    """Mutation: a lab of one process refused because ranks do not start; the needs of one lab given
    to the next."""
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    needs = {
        "01-plain": {},
        "04-ranks": {"shardlab": {"ranks": 4}},
        "03-gpu": {"shardlab": {"needs_gpu": ["the account"]}},
    }
    for name, metadata in needs.items():
        (tmp_path / f"{name}.ipynb").write_text(json.dumps({"metadata": metadata}))
    labs = list(labs_in(tmp_path))
    assert labs == [
        Lab("01-plain", 1, ()),
        Lab("03-gpu", 1, ("the account",)),
        Lab("04-ranks", 4, ()),
    ]
    fine, broken = [Diagnosis("4 ranks", "", "")], [Diagnosis("4 ranks", "", "", fit=False)]
    assert [lab_row(lab, fine)[1:] for lab in labs] == [
        ("runs", "1 rank"),
        ("runs in part", "1 rank; replayed or skipped: the account"),
        ("runs", "4 ranks"),
    ]
    assert [lab_row(lab, broken)[1] for lab in labs] == ["runs", "runs in part", "cannot run"]
    (tmp_path / "05-torn.ipynb").write_text('{"metadata":')
    assert [lab.name for lab in labs_in(tmp_path)][-1] == "05-torn"
    for count in (0, -1, 2.5, 10**9, True, "4"):
        metadata = {"shardlab": {"ranks": count}}
        (tmp_path / "06-odd.ipynb").write_text(json.dumps({"metadata": metadata}))
        assert f"ask for {count!r} ranks, not for 1 to 64" in list(labs_in(tmp_path))[-1].problem
