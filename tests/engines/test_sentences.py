"""Sentences with conditions: data/*.md as sentences.py reads it."""

import re

import pytest

from coursekit import sentences

FILES = ("knobs.md", "machine.md", "oom.md", "slips.md")


@pytest.mark.parametrize("file", FILES)
def test_each_line_is_python_and_is_read(file):
    """Must catch: a condition or braces that are no Python, found when somebody asks; a line that
    is written in another way, and passed over."""
    for part in sentences.data_text(file).split("\n## ")[1:]:
        heading = part.partition("\n")[0]
        lines = re.findall(r"(?m)^- `", part)
        assert len(sentences._compiled(file, heading)) == len(lines), heading


def test_conditions_that_hold_in_the_order_of_the_file():
    """Must catch: the last advice before the first; a value of a false condition; a name of the
    line before."""
    known = dict(can=False, free=0.5, GB_OF_DISK=1.0)
    told = list(sentences.sentences("machine.md", "disk: what to do", known))
    assert [name for name, _ in told] == ["", ""]
    assert told[0][1].startswith("predictions cannot be kept") and told[1][1] == "labs want 1 GB"
    first = sentences.first_sentence("machine.md", "disk: what to do", known | dict(can=True))
    assert first == "labs want 1 GB"
    values = sentences.with_values("slips.md", "a percentage", dict(right=-50))
    assert [value for value, _, _ in values] == [-0.5, 150, 50, 0.5]
