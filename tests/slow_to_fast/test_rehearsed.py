"""The rehearsals of lab 21, and their answers where PyTorch cannot rehearse."""

import json
import runpy

import pytest
from night import at_night
from pages import ROOT

from coursekit.topics.slow_to_fast.rehearsed import (
    RECORDED,
    answer_elsewhere,
    exposed_percent,
    rehearsed_all,
)

ASKED = runpy.run_path(str(ROOT / "tools" / "store_rehearsals.py"))["ASKED"]
KNOWN = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.ranks
@pytest.mark.parametrize("name", at_night("each backward sends", "one node", "eight nodes"))
def test_the_stored_answer_is_todays(name):
    """Must catch: a clock or bytes that changed after the answers were stored; a script of the lab
    that is not the stored one's."""
    found, known = rehearsed_all({name: ASKED[name]})[name], KNOWN[name]
    assert {key: found[key] for key in known} == known, "python tools/store_rehearsals.py"


def test_each_backward_that_sends_waits_for_its_own_last_bucket():
    """Must catch: a text of the lab beside answers that say otherwise; a line of the script that
    the lab no longer finds."""
    once, each = (KNOWN[name] for name in ("eight nodes", "each backward sends"))
    waits = [one["parts"]["waiting for a message"] for one in (once, each)]
    assert waits[1] == pytest.approx(5 * waits[0], rel=1e-3)
    assert once["peak_bytes"] == each["peak_bytes"]
    assert exposed_percent(KNOWN["one node"]) < 0.3
    assert ASKED["each backward sends"][0] != ASKED["eight nodes"][0]
    notebook = (ROOT / "labs" / "21-slow-to-fast.md").read_text(encoding="utf-8")
    assert all(f'"{name}"' in notebook for name in ASKED)


def test_a_pytorch_that_cannot_rehearse(capsys):
    """Must catch: a lab that ends where PyTorch is old; the fault of a reader's own script answered
    by a recording."""
    said = "a rehearsal of x\nPyTorch 2.8.0 on linux takes no stand-in for CUDA: use 2.11 or later."
    assert answer_elsewhere("one node", said) == KNOWN["one node"]
    assert "recorded elsewhere" in capsys.readouterr().out
    for name, sentence in (("mine", said), ("one node", "train_gpt2.py:9: NameError: x")):
        with pytest.raises(RuntimeError, match=sentence.splitlines()[-1][:20]):
            answer_elsewhere(name, sentence)
