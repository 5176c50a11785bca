"""Out-of-memory messages of public issues: cause, point of the step, and the nearest fix."""

import io
import json
import re

import pytest
from told import from_told, sample

from coursekit.__main__ import main
from coursekit.planner.oom import explain_oom, points
from coursekit.show.format import format_bytes

CASES = [part.split("\n", 2) for part in sample("oom.md").split("\n## ")[1:]]


@pytest.mark.parametrize("source, wanted, text", CASES, ids=[case[0] for case in CASES])
def test_messages_of_public_issues(source, wanted, text):
    """Must catch: a wording of PyTorch 1 or 2 that is not read; what is `cached` taken for what is
    reserved; the process itself, named in a container, taken for another; expandable_segments where
    no gap helps, or silence where one does."""
    found = explain_oom(text)
    cause, point, fix = wanted.split(" | ")
    assert (found.cause.name.lower(), str(found.point and found.point.name)) == (cause, point)
    assert fix in found.fixes[0]
    said = str(found)
    helps = [line for line in said.splitlines() if "PYTORCH_CUDA_ALLOC_CONF" in line]
    assert bool(helps) == (found.cause.name == "GAPS")
    if found.reserved <= found.total:  # all of the card is in a row
        assert sum(nbytes for nbytes, _ in found.rows) == pytest.approx(found.total, rel=2e-3)
    assert found.asked > found.free or found.cause.name == "REFUSED"
    assert f"Asked for: {format_bytes(found.asked)}." in said and not re.search(r"[{}]", said)


def test_points_are_all_met():
    """Must catch: a point of the step that no public message tries."""
    met = {wanted.split(" | ")[1] for _, wanted, _ in CASES} - {"None"}
    assert met == {point.name for point in points()} and len(CASES) >= 15
    assert len({wanted.split(" | ")[0] for _, wanted, _ in CASES}) == 6  # causes


MESSAGE = "Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 14.00 GiB already"
MESSAGE += " allocated; 1.00 GiB free; 14.20 GiB reserved in total by PyTorch)"
STEP = 'File "/usr/lib/python3.11/site-packages/torch/optim/adamw.py", line 84, in step\n'


@from_told("frames, point")
def test_the_outer_call_decides(frames, point):
    """Must catch: a closure taken for the update that calls it; recomputation in backward for
    forward; loading a state_dict for saving it; a log's configuration for its traceback."""
    found = explain_oom(f"{frames}\nRuntimeError: CUDA out of memory. {MESSAGE}")
    assert found.point.name == point


def test_the_first_of_several_messages_and_its_line():
    """Must catch: the last rank's message, or a library's line, shown; a message that
    is wrapped not read."""
    one = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n  {STEP}'
    first = one + MESSAGE.replace(" ", "\n")
    found = explain_oom(
        first + "\n" + one.replace("a.py", "b.py") + MESSAGE.replace("2.00", "3.00")
    )
    assert (found.line, found.asked, found.more) == ("a.py:3", 2 * 2**30, 1)
    assert "1 more of these messages" in str(found) and "at a.py:3" in str(found)


def test_a_context_is_no_other_process():
    """Must catch: the context of the process itself, which older messages do not name, taken for
    another process that one could end."""
    small = "Tried to allocate 20.00 MiB (GPU 0; 7.80 GiB total capacity; 6.34 GiB already"
    small += " allocated; 16.31 MiB free; 6.38 GiB reserved in total by PyTorch)"
    assert explain_oom(small).cause.name == "NEED"
    assert explain_oom(small.replace("7.80", "8.80")).cause.name == "OTHERS"


@from_told("text, said")
def test_without_numbers_of_pytorch(text, said, monkeypatch, capsys):
    """Must catch: a number made up; a traceback of this program for a text without a message."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["oom"]) == 2
    out, err = capsys.readouterr()
    assert said in err and err.count("\n") == 1 and not out


def test_oom_from_a_shell(tmp_path, capsys):
    """Must catch: a layout that formulas know about without bytes of changes; a card taken for
    another; an option that is dropped."""
    log = tmp_path / "train.log"
    card = MESSAGE.replace("15.78", "79.11").replace("14.00", "75.00").replace("14.20", "77.40")
    log.write_text(card, "utf-8")
    assert main(["oom", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["message"]
    assert found["asked_bytes"] == 2 * 2**30 and found["cause"] == "need" and not found["point"]
    layout = ["--model", "Llama 3 8B", "--gpus", "2", "--sequence", "2048"]
    assert main(["oom", str(log), *layout]) == 0
    said = capsys.readouterr().out
    assert "as H100 SXM 80GB and A100 SXM 80GB have" in said
    assert "By formula the layout needs 93.7" in said and "--recompute-policy 3: 84." in said
    assert main(["oom", str(log), "--gpus", "2"]) == 2
    assert "--model is missing" in capsys.readouterr().err
