"""Pictures of the way in: models and GPUs by year, and the map of techniques."""

import re
from datetime import date
from pathlib import Path

import pytest

from coursekit.formulas import MODELS, evaluate, quantities
from coursekit.show.format import format_as
from coursekit.topics.why_one_gpu import pictures

ROOT = Path(__file__).resolve().parents[2]


def words(svg):
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


def test_models_are_those_of_the_references():
    """Must catch: a model that no work in references.bib cites, a year that is not the work's, a
    parameter count that is not the preset's."""
    library = (ROOT / "references.bib").read_text("utf-8")
    page = (ROOT / "chapters" / "why-one-gpu.md").read_text("utf-8")
    for model in pictures.PUBLISHED_MODELS:
        entry = re.search(rf"@\w+\{{{model.key},.*?\n\}}", library, re.DOTALL)[0]
        assert f"year = {{{model.published.year}}}" in entry and model.key in page
        month = re.search(r"abs/(\d\d)(\d\d)\.", entry)
        if month:
            assert model.published == date(2000 + int(month[1]), int(month[2]), 1)
    gpt_2 = evaluate(["parameters"], allow_unused=True, **quantities(model="GPT-2 1.5B"))
    assert pictures.PUBLISHED_MODELS[0].parameters == gpt_2["parameters"]


def test_a_model_is_compared_with_the_gpu_of_its_day():
    """Must catch: today's GPU for a model of 2020; a count that is rounded down."""
    memory, found = pictures.states_by_day()
    assert list(memory.values()) == sorted(memory.values())
    by_name = {model.name: (states, card, count) for model, states, card, count in found}
    assert by_name["GPT-3"] == (16 * 175e9, 32e9, 88)
    assert by_name["GPT-2"][2] == 1 and by_name["Llama 3"] == (16 * 405e9, 192e9, 34)
    shown = words(pictures.draw_growth())
    assert all(f"× {count}" in shown for _, _, _, count in found if count > 1)


def test_the_map_says_what_the_formulas_say():
    """Must catch: a technique drawn with another's layout; parts that are not the sum."""
    kept = {name: pictures.kept_on_a_rank(layout) for name, layout, _ in pictures.techniques()}
    psi = evaluate(["parameters"], allow_unused=True, **MODELS["Llama 7B"].quantities)["parameters"]
    states = lambda name: sum(list(kept[name].values())[:3])
    d = pictures.MAPPED_GPUS
    for name in ("one GPU, fp32", "mixed precision"):
        assert states(name) == pytest.approx(16 * psi, rel=1e-6)  # fp32 Adam counts its steps, too
    assert states("ZeRO, stage 1") == pytest.approx(4 * psi + 12 * psi / d, rel=1e-3)
    assert states("ZeRO, stage 2") == pytest.approx(2 * psi + 14 * psi / d, rel=1e-3)
    assert states("ZeRO, stage 3") == pytest.approx(16 * psi / d, rel=1e-3)
    saved = {name: found["rank_saved_bytes"] for name, found in kept.items()}
    assert saved["recompute"] < saved["mixed precision"] / 10
    assert saved["mixed precision"] == pytest.approx(saved["one GPU, fp32"] / 2, rel=0.01)
    shown = words(pictures.draw_map())
    for found in kept.values():
        assert format_as(sum(found.values()), "decimal bytes") in shown
