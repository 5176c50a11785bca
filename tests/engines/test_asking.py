"""The sentences of a formula for whoever asks: refusals, close names, explanations, the
shell."""

import re
import subprocess
import sys

import pytest

from coursekit.__main__ import main
from coursekit.formulas import (
    BOOK,
    MissingQuantity,
    evaluate,
    explain,
    peak_bytes,
    quantities,
)

GPT2 = dict(model="GPT-2 124M", recipe="fp32 Adam")
STEP = dict(microbatch=2, sequence=128)


def test_what_is_missing_comes_with_meaning_and_range():
    """Must catch: the list of names alone; a quantity with a usual value called missing."""
    with pytest.raises(MissingQuantity) as refused:
        peak_bytes(model="GPT-2 124M")
    first, *lines = str(refused.value).splitlines()
    assert first.startswith("peak_bytes: needed but not given: ") and "microbatch" in first
    assert "first_step" not in first and "optimizer_mode" not in first
    assert "  microbatch (b): sequences in one microbatch; a whole number of at least 1." in lines
    assert "  A preset gives all of a recipe, such as recipe='fp32 Adam'." in lines
    assert isinstance(refused.value, TypeError)


def test_an_explanation_is_the_tree_with_its_numbers(capsys):
    """Must catch: a tree that stops, a number of another quantity, an assumption that is not
    named."""
    returned = explain("spare_bytes", **GPT2, gpu="T4")
    text = capsys.readouterr().out
    wanted, _ = BOOK.resolve(["spare_bytes"], quantities(**GPT2, gpu="T4"))
    values = evaluate(wanted, **GPT2, gpu="T4")
    assert returned == {"spare_bytes": values["spare_bytes"]}
    for name in wanted:
        assert f"{name} = {values[name]:,}" in text and BOOK.formulas[name].source in text
    assert "    = maximum(gpu_memory_bytes - states_bytes_per_gpu, 0)" in text
    assert "layers = 12 (model GPT-2 124M): transformer layers" in text
    assert "recipe fp32 Adam: torch.optim.AdamW" in text
    assumed = text[text.index("Assumed, because nobody gave it:") :]
    assert "tensor_parallel = 1" in assumed and "first_step" not in assumed


def test_places_are_explained(capsys):
    """Must catch: a sum or a maximum that places.py made and that no source file has."""
    explain("peak_bytes", **GPT2, **STEP)
    text = capsys.readouterr().out
    expression = dict(re.findall(r"(?m)^ *(\w+) = .*: .*\n +(= .*)", text))
    assert expression["peak_bytes"].startswith("= maximum(forward_peak_bytes, loss_peak_bytes")
    assert expression["loss_peak_bytes"].startswith("= parameter_bytes + ")
    assert expression["temporaries_at_loss_bytes"] == "= 2 * logit_bytes + 8"
    assert re.search(r"(?m)^ *microbatch = .* \(given\)", text)
    assert re.search(r"(?m)^ *first_step = .* \(assumed\)", text)


def test_explain_from_a_shell(capsys):
    """Must catch: a value taken for text. (What cannot be asked: test_one_sentence.)"""
    asked = ["states_bytes", "parameters=1000", "recipe=fp32 Adam"]
    assert main(["explain", *asked]) == 0
    assert "states_bytes = 16,000 bytes" in capsys.readouterr().out


@pytest.mark.slow
def test_the_shell_needs_no_torch():
    """Must catch: an import of torch on the way to a number."""
    code = (
        "import sys; sys.modules['torch'] = None; from coursekit.__main__ import main;"
        "sys.exit(main(['explain', 'states_bytes', 'parameters=1000', 'recipe=fp32 Adam']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 and "states_bytes = 16,000 bytes" in ran.stdout, ran.stderr
