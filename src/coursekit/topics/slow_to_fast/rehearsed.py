"""Rehearsals of a script from a notebook, each in a process of its own.

script = example_text("train_gpt2.py")
found = rehearsed_all({"one node": [script], "eight nodes": [script, "--nodes", "8"]})
table_of_rehearsals(found)
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from coursekit.formulas.presets import DATA
from coursekit.show.tables import Table

OF_EXAMPLES = (DATA / "examples", DATA.parents[2] / "examples")  # of a wheel, of the repository
RECORDED = DATA / "rehearsed.json"  # answers where PyTorch takes no stand-in for CUDA


def example_text(name: str) -> str:
    """A script of the repository's examples."""
    folder = next(folder for folder in OF_EXAMPLES if folder.is_dir())
    return folder.joinpath(name).read_text(encoding="utf-8")


def rehearsed_all(asked: dict[str, list[str]]) -> dict[str, dict]:
    """Name -> the answer as JSON, for scripts as text with options of `rehearse`, on nodes of 8
    GPUs, all at once."""
    with ThreadPoolExecutor() as pool:
        runs = pool.map(lambda one: _rehearsed(*one), asked.values())
        return {
            name: answer_elsewhere(name, run.stderr) if run.returncode == 2 else answer_of(run)
            for name, run in zip(asked, runs)
        }


def _rehearsed(script: str, *options: str) -> subprocess.CompletedProcess:
    with TemporaryDirectory() as folder:
        file = Path(folder, "train_gpt2.py")
        file.write_text(script, encoding="utf-8")
        command = [sys.executable, "-m", "shardlab", "rehearse", "--gpus", "8", "--json"]
        return subprocess.run([*command, *options, str(file)], capture_output=True, text=True)


def answer_of(run: subprocess.CompletedProcess) -> dict:
    """The JSON at the end of what a rehearsal prints. The script prints, too."""
    return json.loads(run.stdout[run.stdout.index("{\n") :])


def answer_elsewhere(name: str, said: str) -> dict:
    """The answer of another machine, where this one's PyTorch cannot rehearse. Raises RuntimeError
    with the sentence of a script that nobody can."""
    sentence = said.strip().splitlines()[-1]
    known = json.loads(RECORDED.read_text(encoding="utf-8"))
    if "no stand-in for CUDA" not in sentence or name not in known:
        raise RuntimeError(sentence)
    print("recorded elsewhere, because this PyTorch cannot rehearse")
    return known[name]


def exposed_percent(answer: dict) -> float:
    return 100 * answer["parts"]["waiting for a message"] / answer["seconds"]


def table_of_rehearsals(found: dict[str, dict]) -> Table:
    rows = [
        [name, f"{1e3 * one['seconds']:.1f}", f"{exposed_percent(one):.1f}"]
        + [sum(times for *_, times in one["host_waits"]), f"{one['peak_bytes'] / 1e9:.1f}"]
        for name, one in found.items()
    ]
    return Table(["", "a step, ms", "exposed, %", "waits of the host", "peak, GB"], rows)
