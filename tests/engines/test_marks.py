"""The marks that conftest.py gives: `make check` leaves out what they name."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def conftest():
    spec = spec_from_file_location("conftest_of_all", ROOT / "tests" / "conftest.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def collected(marks: str, *paths: str) -> str:
    """The tests that pytest collects under these paths with `-m marks`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def test_ranks_do_not_start_without_the_mark():
    """Must catch: the ranks not guarded, so that a test without the mark starts some and `make
    check` waits for them."""
    from shardlab.ranks import ranks

    with (
        pytest.raises(pytest.fail.Exception, match="@pytest.mark.ranks"),
        ranks(2, announce=False) as world,
    ):
        world.run(int)


@pytest.mark.ranks
def test_ranks_start_with_the_mark():
    """Must catch: the guard left up for a test that has the mark."""
    from shardlab.ranks import ranks

    with ranks(1, announce=False) as world:
        assert world.run(int) == [0]


@pytest.mark.parametrize(
    "statement, starts",
    [
        ("from shardlab.ranks import ranks", True),
        ("from shardlab import ranks as package", True),
        ("from shardlab.ranks.links import two_hosts", True),
        ("from notebook_kernel import notebook", True),
        ("from coursekit.exercises import thread_ranks", False),
        ("from shardlab.measure import ledger", False),
    ],
)
def test_what_a_module_imports_marks_it(conftest, statement, starts):
    """Must catch: an import of the ranks that is not seen; threads taken for ranks."""
    module = ModuleType("test_some")
    exec(statement, vars(module))
    assert conftest.starts_ranks(module) == starts


@pytest.mark.slow
def test_the_marks_are_given():
    """Must catch: a test that needs the browser or ranks left in `make check`; one whose module
    imports no ranks and takes those of the fixture."""
    explorers = "tests/browser/test_explorer.py"
    mesh, shared = "tests/engines/test_mesh.py", "tests/tensor_parallelism/test_tensor_parallel.py"
    paths = explorers, mesh, "tests/test_labs.py", shared
    cheap = collected("not (ranks or labs or browser or slow)", *paths)
    assert "test_a_lab_is_stored_as_a_run_left_it" in cheap
    assert "test_a_lab_runs_again_and_finds_the_same" not in cheap
    assert "test_explorer.py" not in cheap
    assert "test_a_mesh_on_ranks" not in cheap
    assert "test_what_is_refused[" in cheap and "test_frozen_parameters" not in cheap
    ranks = collected("ranks", mesh, shared)
    assert "test_a_mesh_on_ranks" in ranks and "test_frozen_parameters" in ranks
    assert "test_reset" in collected("browser", explorers)
