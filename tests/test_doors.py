"""Doors: the programs that listen, and the code of strangers, on a cluster and for Gradescope."""

import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from gradescope import write_zip
from pages import ROOT
from programs import ran

TOKEN = "http://127.0.0.1:20042/?token=SECRET"


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_job_of_jupyter_keeps_its_token_and_its_port_to_itself(tmp_path):
    """Must catch: a server that a whole cluster reaches, or a token in a file that all may read,
    also where an older file of that name was open to all, or the home is not on the node."""
    program(tmp_path / "bin", "jupyter", f'echo "$@"; umask; echo "{TOKEN}"')
    private = tmp_path / "jupyter-42.txt"
    private.touch(mode=0o666)
    own, path = dict(SLURM_JOB_ID="42", USER="ada"), f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    for home in (tmp_path / "nowhere", tmp_path):
        settings = {**own, "HOME": str(home), "PATH": path}
        done = ran("bash", ROOT / "workshop/jupyter.slurm", env=settings, umask=0o022)
        assert str(home / private.name) in done.stdout
        assert "SECRET" not in done.stdout + done.stderr
    said = private.read_text()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600 and TOKEN in said and "0077" in said
    assert "--ip 127.0.0.1 --port 20042" in said and "-L 20042:127.0.0.1:20042" in said


@pytest.mark.parametrize("folder", ["workshop", "examples", "tools", "bench", "Makefile", "src"])
def test_nothing_listens_to_all(folder):
    """Must catch: a server that other machines reach."""
    there = ROOT / folder
    for path in [there] if there.is_file() else there.rglob("*"):
        if path.is_file() and path.suffix not in (".png", ".woff2", ".pyc", ".gz"):
            text = path.read_text(encoding="utf-8", errors="replace")
            assert "0.0.0.0" not in text and "--ip=*" not in text, path


def test_the_autograder_runs_nothing_of_a_learner_as_root(tmp_path):
    """Must catch: a learner's torch.py beside the submission that root's Python imports, ranks that
    stay root, results that the learner's user may write, a file that is not graded without a
    score."""
    wheel = tmp_path / "shardlab-1.whl"
    wheel.touch()
    packed = write_zip("zero", tmp_path / "zero.zip", wheel, [])
    run = zipfile.ZipFile(packed).read("run_autograder").decode()
    for name in ("source", "submission", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "submission" / "torch.py").write_text("raise SystemExit")
    program(tmp_path / "bin", "python3", 'echo "$PWD" "$@"')
    program(tmp_path / "bin", "id", "echo 0")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = ran("bash", "-c", run.replace("/autograder", str(tmp_path)), env={"PATH": path})
    where, _, command = done.stdout.strip().partition(" ")
    assert where == str(tmp_path / "source") and done.stderr == ""
    mine, results = tmp_path / "submission/zero.py", tmp_path / "results/results.json"
    asked = f"-m shardlab grade zero {mine} --gradescope {results} --user nobody"
    assert command == asked
    assert stat.S_IMODE(results.parent.stat().st_mode) == 0o700
    assert json.loads(results.read_text())["score"] == 0
