"""Where there is no browser, tests that need one are skipped with advice; on continuous integration
they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("continuous_integration", "outcome"), [("", "1 skipped"), ("true", "1 error")]
)
def test_without_a_browser(tmp_path, continuous_integration, outcome):
    """Must catch: CI passing although no page was looked at; a newcomer's run failing, or not
    saying what to install."""
    (tmp_path / "conftest.py").write_text(
        CONFTEST.read_text().replace("/Applications/", "/nowhere/")
    )
    (tmp_path / "test_page.py").write_text("def test_page(chromium):\n    pass\n")
    environment = os.environ | {"PATH": str(tmp_path), "CI": continuous_integration}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        tmp_path,
        "-p",
        "no:cacheprovider",
        "-rsE",
        tmp_path,
    ]
    report = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True
    ).stdout
    assert outcome in report.splitlines()[-1], report
    assert "apt-get install chromium" in report.split("short test summary")[0], (
        "the header says how to get one"
    )
    assert "apt-get install chromium" in report.split("short test summary")[1], (
        "and so does the reason"
    )
