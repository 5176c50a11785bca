"""The page of the reader's own run: its commands, run as they are there, print what is there."""

import re
import shlex
import subprocess
import sys

import pytest
import torch
from packaging.version import Version
from pages import ROOT, chapter

from coursekit.__main__ import main

PAGE = chapter("your-own-run")
BLOCKS = re.findall(r"```bash\n([^`]*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
SHOWN = [(command, shown) for command, shown in BLOCKS if "rehearse" not in command]


def check_pieces(shown: str, out: str):
    at = 0
    for piece in shown.split("...\n"):
        at = out.index(piece, at) + len(piece)


@pytest.mark.slow
def test_the_rehearsal_prints_what_the_page_shows(stand_in):
    """A rehearsal replaces torch.cuda, so it has a process of its own. Must catch: a clock, bytes
    or words that changed after the page; an example of more operators."""
    command, shown = BLOCKS[2]
    words = shlex.split(command.replace("\\\n", " "))[1:]
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    if Version(torch.__version__).release >= (2, 15):
        *_, shown = shown.split("...\n")
        assert re.search(r"PyTorch 2\.15 the peak is (\S+ MB)", PAGE)[1] in ended.stdout
    check_pieces(shown, ended.stdout)


@pytest.mark.parametrize("command, shown", SHOWN, ids=[one.split()[3] for one, _ in SHOWN])
def test_commands_print_what_the_page_shows(command, shown, monkeypatch, capsys):
    """Must catch: an option that is no longer there; an output of another version of the formulas;
    a number of the text beside it that nobody computes."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "shardlab"] and main(words[3:]) in (0, 1)
    out, err = capsys.readouterr()
    check_pieces(shown, out)
    if words[3] == "plan":
        words = r"says that a step takes (\S+ s) and the fullest rank (\S+ GB)"
        step, held = re.search(words, PAGE).groups()
        assert err.startswith(f"{step},") and f" {held} of " in err
    if words[3] == "fits":
        before, after = (float(one) for one in re.findall(r"(?:needs|microbatch 1:) (\S+) GB", out))
        assert f"frees {before - after:.0f} GB" in PAGE
        assert re.search(r": (\S+ GB are missing)", PAGE)[1] in out


def test_the_page_shows_four_answers():
    """Must catch: a block that the tests above no longer find."""
    assert [command.split()[3] for command, _ in BLOCKS] == ["fits", "plan", "rehearse", "oom"]
