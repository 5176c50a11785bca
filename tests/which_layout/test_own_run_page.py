"""The page of the reader's own run: its commands, run as they are there, print what is there."""

import re
import shlex
from pathlib import Path

import pytest

from coursekit.__main__ import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "chapters" / "your-own-run.md").read_text("utf-8")
BLOCKS = re.findall(r"```bash\n([^`]*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
SHOWN = [(command, shown) for command, shown in BLOCKS if "rehearse" not in command]


@pytest.mark.parametrize("command, shown", SHOWN, ids=[one.split()[3] for one, _ in SHOWN])
def test_commands_print_what_the_page_shows(command, shown, monkeypatch, capsys):
    """Must catch: an option that is no longer there; an output of another version of the formulas;
    a number of the text beside it that nobody computes."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "shardlab"] and main(words[3:]) in (0, 1)
    out, err = capsys.readouterr()
    at = 0
    for piece in shown.split("...\n"):
        at = out.index(piece, at) + len(piece)
    if words[3] == "plan":
        step, held = re.search(
            r"it says (\S+ s) for a step, (\S+ GB) on the fullest", PAGE
        ).groups()
        assert err.startswith(f"{step},") and f" {held} of " in err
    if words[3] == "fits":
        before, after = (float(one) for one in re.findall(r"(?:needs|microbatch 1:) (\S+) GB", out))
        assert f"frees {before - after:.0f} GB" in PAGE


def test_the_page_shows_four_answers():
    """Must catch: a block that the test above no longer finds; a line of the rehearsed script that
    is no longer there, or elsewhere."""
    assert [command.split()[3] for command, _ in BLOCKS] == ["fits", "plan", "rehearse", "oom"]
    lines = (ROOT / "examples" / "train_fsdp2.py").read_text("utf-8").splitlines()
    waits = re.findall(r" x train_fsdp2.py:(\d+): (.+)", BLOCKS[2][1])
    assert len(waits) == 2 and all(lines[int(n) - 1].strip() == code for n, code in waits)
