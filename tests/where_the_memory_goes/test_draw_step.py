"""The chapter's picture of a step is what the ledger counts now."""

import re

import draw_step as tool
import pytest
from test_step import NOTED

from coursekit.show.format import format_bytes
from coursekit.topics.where_the_memory_goes.formulas.step import step_timeline

pytestmark = pytest.mark.slow  # each needs the measured step of GPT-2


@pytest.fixture(scope="module")
def timeline():
    return tool.measure_step()


def test_the_committed_figure_is_what_the_tool_draws(timeline):
    """Mutations: the model, the ledger or the drawing changed without drawing the figure anew; a
    figure edited by hand."""
    assert tool.FIGURE.read_text(encoding="utf-8") == tool.draw(timeline), "run tools/draw_step.py"


def test_the_figure_says_what_the_formulas_say(timeline):
    """The step of record: the peak, its parts, and that it holds no gradients.

    Mutations: a line beside the peak taken for it; the bytes of another category printed."""
    assert (NOTED.config, NOTED.microbatch, NOTED.sequence) == (
        tool.CONFIG,
        tool.MICROBATCH,
        tool.CONFIG.max_sequence,
    )
    loss = {point.name: parts for point, parts in step_timeline(**NOTED.quantities())}["loss"]
    words = " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", tool.draw(timeline)))
    assert (
        f"peak {format_bytes(sum(loss.values()))} | activations {format_bytes(loss['activations'])}"
        in words
    )
    assert f"temporaries {format_bytes(loss['temporaries'])} | no gradients" in words
    assert loss["gradients"] == 0
