"""How labs run on pretended GPUs; run_labs.py runs all of them every night, on several."""

import subprocess
import sys

import nbformat
import pytest
from asking import environment_or_skip
from nbformat.v4 import new_code_cell, new_notebook
from night import at_night
from run_lab import cells_of
from run_labs import LABS, LIMIT_SECONDS, RUN_LAB

(BY_DAY,) = (lab for lab in LABS if "slow-to-fast" in lab.stem)  # it weighs, fakes and rehearses


@pytest.mark.ranks
@pytest.mark.parametrize(
    "lab",
    [BY_DAY, *at_night(*((lab,) for lab in LABS if lab != BY_DAY))],
    ids=lambda lab: lab.stem,
)
def test_a_lab_runs_on_a_gpu(lab):
    """Must catch: a table that wants a CPU's bytes of a GPU's attention; a model without memory on
    another device than its tokens."""
    how = dict(env=environment_or_skip(1), timeout=LIMIT_SECONDS, capture_output=True, text=True)
    done = subprocess.run([sys.executable, RUN_LAB, lab], **how)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.nightly  # as they do
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
