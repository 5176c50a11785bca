"""Pictures of the way in: models and GPUs by year, the map of techniques, and the bar that closes
each chapter."""

import re
from datetime import date

import pytest
from pages import ROOT, chapter, words
from solved import Given

from bookkit.words import chapters
from coursekit.formulas import GPUS, MODELS, quantities
from coursekit.show.format import format_as
from coursekit.topics.why_one_gpu import pictures, where_we_stand
from coursekit.topics.why_one_gpu.where_we_stand import CHAPTER_MOVES, bytes_of_bar


def test_models_are_those_of_the_references():
    """Must catch: a model that no work in references.bib cites, a year that is not the work's, a
    parameter count that is not the preset's."""
    library = (ROOT / "references.bib").read_text("utf-8")
    page = chapter("why-one-gpu")
    for model in pictures.PUBLISHED_MODELS:
        entry = re.search(rf"@\w+\{{{model.key},.*?\n\}}", library, re.DOTALL)[0]
        assert f"year = {{{model.published.year}}}" in entry and model.key in page
        month = re.search(r"abs/(\d\d)(\d\d)\.", entry)
        if month:
            assert model.published == date(2000 + int(month[1]), int(month[2]), 1)
    gpt_2 = Given(**quantities(model="GPT-2 1.5B"))
    assert pictures.PUBLISHED_MODELS[0].parameters == gpt_2.parameters


def test_a_model_is_compared_with_the_gpu_of_its_day():
    """Must catch: today's GPU for a model of 2020; a count that is rounded down."""
    memory, found = pictures.states_by_day()
    assert list(memory.values()) == sorted(memory.values())
    by_name = {model.name: (states, card, count) for model, states, card, count in found}
    card = {gpu: GPUS[gpu].quantities["gpu_memory_bytes"] for gpu in memory}
    assert by_name["GPT-3"] == (16 * 175e9, card["V100 SXM2 32GB"], 83)
    assert by_name["GPT-2"][2] == 1
    assert by_name["Llama 3"] == (16 * 405e9, card["MI300X"], 32)
    shown = words(pictures.draw_growth())
    assert all(f"× {count}" in shown for _, _, _, count in found if count > 1)


def test_the_map_says_what_the_formulas_say():
    """Must catch: a technique drawn with another's layout; parts that are not the sum."""
    kept = {name: pictures.kept_on_a_rank(layout) for name, layout, _ in pictures.techniques()}
    psi = Given(**MODELS["Llama 7B"].quantities).parameters
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


def test_each_chapter_adds_one_row_to_the_bar():
    """Must catch: a chapter without its bar, a row out of the contents' order, a bar that is not
    the fullest rank's peak, states that stage 3 does not divide by eight."""
    assert [move.page for move in CHAPTER_MOVES] == [page.stem for page in chapters(ROOT)]
    bytes_of = {move.page: bytes_of_bar(move) for move in CHAPTER_MOVES}
    for move in CHAPTER_MOVES:
        page = chapter(move.page)
        assert f"## Where we stand\n\n```{{picture}} stand-{move.page}\n" in page
        if move.layout is not None:
            peak = move.layout.solved()["rank_peak_bytes"]
            assert sum(bytes_of[move.page].values()) == peak, move.page
    states = lambda page: sum(list(bytes_of[page].values())[:3])
    assert states("data-parallelism") == pytest.approx(16 * 8_030_261_248, rel=1e-6)
    for page in ("zero", "tensor-parallelism", "mixed-precision"):
        assert states(page) == pytest.approx(2 * 8_030_261_248, rel=0.01)


def test_the_bar_says_where_the_card_ends():
    """The sentences of the captions. Must catch: a layout that changes and a caption that does
    not."""
    card = GPUS["H100 SXM 80GB"].quantities["gpu_memory_bytes"]
    total = {move.page: sum(bytes_of_bar(move).values()) for move in CHAPTER_MOVES}
    over = [page for page, nbytes in total.items() if nbytes > card]
    assert over == [
        move.page for move in CHAPTER_MOVES[:6]
    ]  # the seventh is the first left of the line
    assert total["tensor-parallelism"] < total["pipelines"]  # "longer than the one before"
    assert (
        bytes_of_bar(CHAPTER_MOVES[5])["activations"] > card
    )  # "they alone are more than the card"
    assert total["activation-checkpointing"] < 0.5 * card
    rows = words(where_we_stand.draw("zero")).split(" | ")
    assert sum(row.endswith(" GB") and not row.startswith("a card") for row in rows) == 6
