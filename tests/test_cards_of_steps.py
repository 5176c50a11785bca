"""The cards of steps: whole, and speaking before any script; a wrong directive is a warning."""

import re

import pytest
from small_books import builder
from told import told

from bookkit import frames, pairs, shards, stepper
from coursekit.topics.collectives.steps import COLLECTIVES, stepper_steps
from coursekit.topics.kernels.steps import tile_steps
from coursekit.topics.long_sequences.steps import block_steps
from coursekit.topics.mixture_of_experts.steps import dispatch_steps
from coursekit.topics.tensor_parallelism.steps import FIRST_SHOWN, pair_steps
from coursekit.topics.zero.steps import shard_steps

# (makes the card and its steps, of what, the step that is shown at first)
CARDS = {
    "shards": (shards.card, shard_steps, (1, 4), (1, 4, 1), 10),
    "pairs": (pairs.card, pair_steps, ("tensor", 4), ("tensor", 4), FIRST_SHOWN),
    "tiles": (frames.card, tile_steps, ("online softmax",), (2,), 1),
    "dispatch": (frames.card, dispatch_steps, ("to the experts and back",), (1,), 1),
    "blocks": (frames.card, block_steps, ("blocks of attention",), (2,), 1),
    **{name: (stepper.card, stepper_steps, (name, 5), (name, 5), 1) for name in COLLECTIVES},
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_whole_and_speaks_before_any_script(name):
    """Must catch: a closing tag forgotten; two elements of one id; a label that points at nothing;
    sentence and table left to the script; a step left out of the table; a sentence of another step
    than the slider's."""
    from test_bookkit_explorer import Nesting

    class Card(Nesting):
        EMPTY = Nesting.EMPTY | {"path"}

    card, steps_of, given, given_to_steps, first = CARDS[name]
    text, steps = card(*given, "steps.js"), steps_of(*given_to_steps)
    found = Card(text)
    assert len(found.ids) == len(set(found.ids)) and set(found.references) <= set(found.ids)
    text = text.replace("\N{NO-BREAK SPACE}", " ").replace("&#x27;", "'")
    assert f'value="{first}"' in text and f"{first} of {len(steps) - 1}" in text
    assert f'<p class="explorer-sentence">{steps[first].sentence}</p>' in text
    assert all(f"<tr><td>{step.sentence}</td><td>{step.detail}</td></tr>" in text for step in steps)


@pytest.mark.parametrize(
    "kind, text, sentence",
    told("test_cards_of_steps::test_a_wrong_directive_is_a_warning", globals()),
)
def test_a_wrong_directive_is_a_warning(kind, text, sentence, tmp_path):
    """Must catch: an exception instead of a warning with page and line, or two cards with one
    id."""
    _, said = builder(tmp_path, kind)(index=f"# Page\n\n{text}\n")
    assert sentence in said and re.search(r"index\.md:\d+", said)
