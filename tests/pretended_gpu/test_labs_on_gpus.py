"""Three labs on pretended GPUs every night, without their slow cells: a GPU for each of four ranks,
two ranks on each of two, and one process. run_labs.py runs all labs."""

import subprocess
import sys

import nbformat
import pytest
from asking import environment_or_skip
from nbformat.v4 import new_code_cell, new_notebook
from run_lab import cells_of
from run_labs import COUNTS, LABS, LIMIT_SECONDS, RUN_LAB, last_lines

GPUS = {"06-zero": 4, "08-pipelines": 2, "10-activation-checkpointing": 1}


@pytest.mark.labs
@pytest.mark.nightly
@pytest.mark.parametrize("lab", [lab for lab in LABS if lab.stem in GPUS], ids=lambda lab: lab.stem)
def test_a_lab_runs_on_gpus(lab):
    """Must catch: a tensor left on the CPU, bytes that are asserted and differ on a GPU, a message
    between ranks that NCCL refuses, gloo's rules for tensors of a GPU."""
    environment = environment_or_skip(GPUS[lab.stem])
    command = [sys.executable, str(RUN_LAB), str(lab), "--quick"]
    done = subprocess.run(
        command, env=environment, timeout=LIMIT_SECONDS, capture_output=True, text=True
    )
    assert not done.returncode, last_lines(done.stdout)


def test_the_labs_are_there():
    """Must catch: a lab that is renamed, and runs here no longer."""
    assert set(GPUS) <= {lab.stem for lab in LABS} and set(GPUS.values()) <= set(COUNTS)


@pytest.mark.nightly  # as the labs on GPUs
def test_a_cell_that_fails_is_seen(tmp_path):
    """Must catch: an error of a cell passed over; a blank that is run; what a blank imports for its
    solution lost."""
    lab = tmp_path / "lab.ipynb"
    blank = {"tags": ["blank"]}
    cells = [
        new_code_cell("1 / 0", metadata={"tags": ["install"]}),
        new_code_cell("import math\n\ncheck(math, ...)\nx = 2", metadata=blank),
        new_code_cell("y = math.sqrt(x)"),
        new_code_cell("assert y > 2, 'too small'"),
        new_code_cell("print('never')"),
    ]
    nbformat.write(new_notebook(cells=cells), lab)
    assert cells_of(lab)[:2] == ["import math\nx = 2", "y = math.sqrt(x)"]
    done = subprocess.run([sys.executable, RUN_LAB, lab], capture_output=True, text=True)
    assert done.returncode == 1 and "too small\n" in done.stdout
    assert "ZeroDivisionError" not in done.stdout and "never" not in done.stdout.split("---")[-1]


def test_what_is_slow_is_left_out(tmp_path):
    """Must catch: a slow cell that is run; a cell that needs it and fails; a guess that is not
    locked, so that the last table lacks it; more left out than that."""
    lab = tmp_path / "lab.ipynb"
    slow = "my_x = 3\npredictions.lock('x', my_x)\nfound = train()\nfound.table()"
    cells = [
        new_code_cell(slow, metadata={"tags": ["slow", "predict"]}),
        new_code_cell("more = found.more\nmore.table()"),
        new_code_cell("print(more)"),
        new_code_cell("found = 2"),
        new_code_cell("print(found)"),
    ]
    nbformat.write(new_notebook(cells=cells), lab)
    locked = "my_x = 3\npredictions.lock('x', my_x)"
    assert cells_of(lab, quick=True) == [locked, "found = 2", "print(found)"]
    assert len(cells_of(lab)) == 5
