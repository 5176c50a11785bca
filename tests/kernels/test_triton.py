"""The source of each shipped kernel under Triton's own interpreter: the same bits. Triton is
optional: it takes a gigabyte, and a job of continuous integration installs it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import NAMES

HERE = Path(__file__).parent
HAS_TRITON = importlib.util.find_spec("triton") is not None
without = pytest.mark.skipif(not HAS_TRITON, reason="pip install triton: its peers are run then")


@without
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_bits_of_tritons_interpreter(dtype):
    """Not bf16, which the interpreter multiplies as integers. Must catch: a sum in another type or
    order; a constant of fp64; a function that Triton names otherwise."""
    given = os.environ | {"TRITON_INTERPRET": "1"}  # read when Triton is imported
    script = [sys.executable, HERE / "by_triton.py", dtype]
    done = subprocess.run(script, cwd=HERE, env=given, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name}: equal" for name in NAMES]
