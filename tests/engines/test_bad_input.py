"""Input and command lines that nobody should give, and somebody does: one sentence with the value
and the rule."""

import json
import os
import re
from shlex import split  # noqa: F401 (told.md names it)

import pytest
from told import from_told, told

from coursekit.__main__ import main
from coursekit.exercises.predictions import NoNumber, Predictions
from coursekit.formulas import InvalidQuantity, evaluate, quantities
from coursekit.machine.doctor import rows_of_labs
from coursekit.recordings import record
from coursekit.recordings.recordings import InvalidRecording, nearby, read_recording

STEP = dict(
    microbatch=2,
    sequence=128,
    accumulation_steps=1,
    first_step=0,
    optimizer_mode=0,
    dropout=0,
    fused_attention=1,
)


@from_told("wanted, changes, said")
def test_values_that_cannot_be(wanted, changes, said):
    """Must catch: negative bytes out of values that contradict each other; True counted as 1;
    an OverflowError out of the middle of a formula."""
    given = quantities(model="GPT-2 124M", recipe="fp32 Adam", gpu="A100 SXM 80GB")
    given |= dict(STEP, tokens=10**9, gpus=1, utilisation=0.5)
    with pytest.raises(InvalidQuantity) as refused:
        evaluate([wanted], allow_unused=True, **(given | changes))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema": 1, "rows": [',
        b'{"schema": 1, "rows": [{"name": "a.b", "value": 1e400, "unit": "bytes"}]}',
        json.dumps(
            {"schema": 1, "rows": [{"name": "a.b", "value": 10**400, "unit": "bytes"}]}
        ).encode(),
    ],
    ids=["no UTF-8", "deep", "truncated", "infinite", "ten to the 400"],
)
def test_a_file_that_is_no_recording_is_named(content, tmp_path, capsys):
    """Must catch: an error without the name of the file; one damaged file that stops every lab."""
    folder = tmp_path / "measured"
    folder.mkdir()
    (folder / "bad.json").write_bytes(content)
    with pytest.raises(InvalidRecording, match="^bad.json: "):
        read_recording(folder / "bad.json")
    nearby(tmp_path)
    assert "A recording is not used: bad.json: " in capsys.readouterr().out


def test_predictions_of_two_kernels(tmp_path, capsys):
    """Must catch: the file written from what this kernel read at its start, so that the other
    kernel's prediction is gone; a number that no float holds."""
    one, two = (Predictions("lab", tmp_path) for _ in range(2))
    one.lock("x", 1)
    two.lock("y", 2)
    two.lock("x", 3)
    kept = [one.summary().rows for one in (two, Predictions("lab", tmp_path))]
    assert [[row[:2] for row in rows] for rows in kept] == [[["x", "1"], ["y", "2"]]] * 2
    with pytest.raises(NoNumber, match="a number of more than 300 digits: a prediction is one"):
        one.lock("z", 10**400)


def test_a_recording_into_a_folder_that_cannot_be_made(tmp_path, capsys):
    """Must catch: a traceback after minutes of measuring."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        record.main(["--cpu", str(tmp_path / "file" / "folder")])
    assert "cannot be made (Not a directory): name another folder" in capsys.readouterr().err


LONG = "x" * 5_000
T4 = "fits --model 'GPT-2 124M' --gpu T4 --gpus 2 --sequence 512 "
ASKED = ["--model", "GPT-2 124M", "--gpu", "H100 SXM 80GB", "--gpus", "8", "--sequence", "1024"]


@pytest.mark.parametrize(
    "asked, said",
    [
        *told("test_bad_input::test_one_sentence", globals()),
        pytest.param(["doctor", "\0"], "null", marks=pytest.mark.ranks),
    ],
    ids=lambda one: " ".join(one)[:40].replace("\0", "NUL") if isinstance(one, list) else "",
)
def test_one_sentence(asked, said, capsys):
    """Must catch: a traceback; nan, inf or 0 taken for a size of this machine; a list of 10^30
    names; one slice for two seats; a port above 65535; a page of usage instead of what is wrong;
    the last of two values taken without a word; a pipeline in accelerate's file; a knob that a
    tool's file drops; an answer for a layout that cannot be."""
    try:
        assert main(asked) == 2
    except SystemExit as left:
        assert left.code == 2
    out, sentence = capsys.readouterr()
    assert said in out + sentence and "Traceback" not in sentence
    assert not out or asked[0] == "collect"
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
    assert "is not a file" in capsys.readouterr().err
    assert "not a regular file" in next(rows_of_labs(tmp_path, []))[2]


def test_what_no_terminal_shows_is_printed_by_its_number(tmp_path, capfdbinary):
    """Must catch: a traceback for a file whose name is not UTF-8, which `collect` names."""
    (tmp_path / os.fsdecode(b"\xff.json")).write_text(json.dumps(1))
    assert main(["collect", str(tmp_path)]) == 0
    assert b".json is damaged" in capfdbinary.readouterr().out
