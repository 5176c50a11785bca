"""Command lines that nobody should type, and somebody does: one sentence, and exit code 2."""

import json
import os
import re

import pytest

from coursekit.__main__ import main

LONG = "x" * 5_000
ASKED = ["--model", "GPT-2 124M", "--gpu", "H100 SXM 80GB", "--gpus", "8", "--sequence", "1024"]


@pytest.mark.parametrize(
    "asked, said",
    [
        *[(["seats", "8", "--memory", one], "is not from 1 to") for one in ("nan", "inf", "1e400")],
        *[(["seats", "8", "--memory", one], "is not from 1 to") for one in ("0", "-1")],
        (["seats", "8", "--memory", "1", "--cores", "8"], "2 GiB each"),
        *[(["seats", "8", "--cores", one], "is not from 1 to") for one in ("0", "9" * 30)],
        *[(["seats", "8", "--gpus", one], "is not from 0 to 1,000") for one in ("-1", "9" * 30)],
        *[
            (["seats", "8", "--mig", one], "each once")
            for one in ("", " ", "\0", "a,a", "a,", LONG)
        ],
        (["seats", "8", "--mig", "a", "--gpus", "1"], "not allowed with"),
        (["seats", "60000"], "is not from 1 to 1,000"),
        (["seats", "9" * 5_000], "invalid int value"),
        (["plan", *ASKED, "--batch", "64", "--shard-groups", "0"], "shard_groups = 0"),
        (["plan", *ASKED, "--batch", "64", "--shard-groups", "-1"], "shard_groups = -1"),
        *[([command, LONG], "File name too long") for command in ("collect", "doctor", "profile")],
        (["fits", "--model", LONG, *ASKED[2:]], "File name too long"),
        (["explain", "states_bytes", f"parameters={LONG}"], "parameters = xxx"),
        (["hand-in", LONG, "--name", "Ada"], "File name too long"),
        (["hand-in", ".", "--name", "Ada", "--labs", "\0"], "null byte"),
        (["grade", "collectives", LONG], "File name too long"),
        (["grade", "collectives", "--user", "no such user"], "no user of this machine"),
        (["collect", "\0"], "is no folder"),
        pytest.param(["doctor", "\0"], "null", marks=pytest.mark.ranks),
    ],
    ids=lambda one: " ".join(one)[:40].replace("\0", "NUL") if isinstance(one, list) else "",
)
def test_one_sentence(asked, said, capsys):
    """Must catch: a traceback; nan, inf or 0 taken for a size of this machine; a list of 10^30
    names; one slice for two seats; a port above 65535."""
    try:
        assert main(asked) == 2
    except SystemExit as left:
        assert left.code == 2
    out, sentence = capsys.readouterr()
    assert said in out + sentence and "Traceback" not in sentence
    assert len((out + sentence).splitlines()) == 1 and len(out + sentence) < 3_100


@pytest.mark.parametrize(
    "script",
    [
        "raise KeyboardInterrupt",
        "raise BaseException",
        "raise GeneratorExit",
        "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})",
    ],
)
def test_a_script_that_ends_by_what_is_no_exception(script, tmp_path, capsys):
    """Must catch: a traceback of `profile` itself."""
    (tmp_path / "train.py").write_text(script)
    assert main(["profile", str(tmp_path / "train.py")]) == 2
    said = capsys.readouterr().err
    assert re.match(".*train.py:1 raised (Odd|[A-Z]\\w+(Interrupt|Exception|Exit)):", said)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path, capsys):
    """Must catch: a command that waits forever for a pipe."""
    os.mkfifo(tmp_path / "01-x.ipynb")
    assert main(["grade", "collectives", str(tmp_path / "01-x.ipynb")]) == 2
    assert "is not a file" in capsys.readouterr().out
    from coursekit.machine.doctor import labs_in

    assert "not a regular file" in next(labs_in(tmp_path)).problem


def test_what_no_terminal_shows_is_printed_by_its_number(tmp_path, capfdbinary):
    """Must catch: a traceback for a file whose name is not UTF-8, which `collect` names."""
    (tmp_path / os.fsdecode(b"\xff.json")).write_text(json.dumps(1))
    assert main(["collect", str(tmp_path)]) == 0
    assert b".json is damaged" in capfdbinary.readouterr().out
