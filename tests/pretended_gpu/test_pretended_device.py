"""The pretended GPUs themselves: what a GPU and NCCL refuse is refused, and what makes a host wait
is counted. Otherwise the other tests of this folder would pass whatever a technique does."""

import cases_device as cases
import pytest
from asking import no_gpus
from pretended import are_real, build

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(are_real(), reason="nothing is pretended")]


@pytest.mark.parametrize(
    "case",
    [
        cases.two_devices_are_refused,
        cases.waits_are_counted,
        cases.hidden_waits_are_the_devices_own,
        cases.memory_is_counted_and_holds_garbage,
        cases.backward_runs_in_another_thread,
        cases.random_numbers_are_the_devices_own,
    ],
)
def test_a_gpu(on_gpus, case):
    """Must catch: check_devices() or note_waits() left out of an operator's call in device.cpp,
    memory that comes as zeros, results that are not counted, a guard that is not registered (then
    backward runs in the caller's thread), numbers drawn from the CPU's generator."""
    on_gpus(1, case).is_right()


@pytest.mark.parametrize(
    "case",
    [
        cases.a_collective_wants_contiguous_tensors_of_the_gpu,
        cases.collectives_give_sums_and_averages,
        cases.tags_are_ignored,
        cases.a_message_in_a_batch_has_no_work,
        cases.a_future_gives_tensors_and_keeps_none,
    ],
)
def test_nccl(on_gpus, case):
    """Must catch: check_tensor() left out, an average without its division, a send that goes by its
    tag, a batch with a work for each message, a work that keeps the tensors of its future for good,
    a second future without them."""
    on_gpus(4, case).is_right()


def test_the_first_message_of_a_pair_waits_for_the_peer(on_gpus):
    """Must catch: a communicator that is there without its ranks having met; gloo would deliver."""
    error = on_gpus(4, cases.each_rank_of_a_circle_receives_first).error
    assert "Hangs: NCCL would hang" in error or error.startswith("RanksDeadlocked"), error


def test_ranks_that_disagree_are_told(on_gpus):
    """Must catch: `disagreements` that compares only how many calls there were."""
    (line,) = on_gpus(2, cases.ranks_disagree).order
    assert "call 0 of rank 0 is ('broadcast_'" in line and "of rank 1 ('allreduce_'" in line


def test_a_machine_without_a_compiler_says_what_to_install(monkeypatch, tmp_path):
    """Must catch: a test that passes or fails obscurely where there is no compiler; a skip on a
    continuous integration machine."""
    monkeypatch.setattr(build, "COMPILERS", ())
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    with pytest.raises(build.CannotBuild, match=r"apt-get install g\+\+") as raised:
        build.library()
    with pytest.raises(pytest.skip.Exception):
        no_gpus(raised.value, continuous_integration=False)
    with pytest.raises(pytest.fail.Exception, match="never skipped"):
        no_gpus(raised.value, continuous_integration=True)


def test_another_pytorch_is_named(monkeypatch, tmp_path):
    """Must catch: a failure of the job with the oldest PyTorch, into which nccl.py reaches
    differently; a device.cpp with an error that is excused, or leaves a library behind."""
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "SOURCE", tmp_path / "device.cpp")
    build.SOURCE.write_text("#error wrong")
    with pytest.raises(build.CannotBuild, match="does not compile with torch") as raised:
        build.library()
    assert not raised.value.excused and not list(tmp_path.glob("*.so"))
    monkeypatch.setattr(build, "WRITTEN_FOR", ("1.0",))
    with pytest.raises(build.CannotBuild, match="written for torch 1.0, and this is") as raised:
        build.library()
    with pytest.raises(pytest.skip.Exception):
        no_gpus(raised.value, continuous_integration=True)
