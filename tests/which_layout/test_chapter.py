"""The chapter "Which layout?": its numbers that are typed, its bars, its runs and its tree."""

import re
from dataclasses import replace

import pytest
from night import at_night
from pages import chapter

from bookkit.formulas import read_call
from bookkit.words import MOST, main_line_words
from coursekit.formulas import quantities
from coursekit.planner.layout import FUSED_LOSS
from coursekit.planner.plan import plan
from coursekit.planner.runs_published import PUBLISHED_RUNS
from coursekit.planner.speeds import SPEEDS, pace, step_values
from coursekit.topics.which_layout.lab import WeighedRun, predicted, weigh_layout
from coursekit.topics.which_layout.moves import (
    ASKED_BATCH,
    ASKED_GPU,
    ASKED_GPUS,
    ASKED_MODEL,
    ASKED_SEQUENCE,
    MOVES,
    SPEED,
    RankBar,
)
from coursekit.topics.which_layout.moves import layout_of as layout
from coursekit.topics.which_layout.runs import SIZES, RunLayout, weigh_rank
from coursekit.topics.which_layout.tree import QUESTIONS, next_technique
from ranklab.measure.ledger import Counts

PAGE = chapter("which-layout")


def given_on_the_page():
    """Name -> quantities of each block {given}."""
    named = {}
    for name, text in re.findall(r"```\{given\} (\w+)\n(.*?)```", PAGE, re.DOTALL):
        named[name] = read_call(f"given({' '.join(text.split())})", named)[1]
    return named


def test_what_the_page_is_given():
    """Must catch: a speed that was fitted anew and stays on the page, a layout of the page that is
    not the bar beside it."""
    asked = {
        "l70": (MOVES["64 copies"].layout, SPEED, {}),
        "again": (MOVES["each layer again"].layout, SPEED, {}),
        "t4": (MOVES["t = 4, stage 3"].layout, SPEED, {}),
        "p2": (MOVES["t = 8, p = 2, stage 1"].layout, SPEED, {}),
        **{name: (run.layout, SPEEDS[run.speed], run.more) for name, run in PUBLISHED_RUNS.items()},
    }
    on_page = given_on_the_page()
    for name, (one, speed, more) in asked.items():
        wanted = quantities(**one.given, **pace(one.gpu, speed, one.ranks_per_node), **more)
        found = quantities(**on_page[name])
        usual = dict(score_share=1, stages_per_rank=1, shorter_ends=0, expert_parallel=1)
        for key in wanted:
            if key in found or key in usual:
                assert found.get(key, usual.get(key)) == wanted[key], (name, key)


def test_runs_are_in_print():
    """Must catch: a formula that misses one of them by more than its class says."""
    for run in PUBLISHED_RUNS.values():
        known = SPEEDS[run.speed]
        assert known.lowest <= round(100 * run.error, 1) <= known.highest, run.label
        for number in (100 * run.error, known.lowest, known.highest):
            assert f"{number:+.1f}%".replace("-", "−") in PAGE, (run.label, number)


def test_what_is_typed_on_the_page():
    """Must catch: a number of the page that no formula gives any more; a page that grew too
    long."""
    assert main_line_words(PAGE) <= MOST
    best = MOVES["t = 4, stage 3"].step["layout_tokens_per_second"]
    assert round(best) == 999 and round(10**12 / (ASKED_GPUS * best) / 86_400) == 181
    assert round(100 * (1 - best / MOVES["stage 3"].step["layout_tokens_per_second"])) == 3
    slower = MOVES["t = 8, p = 2, stage 1"].step["layout_tokens_per_second"] / best
    assert round(100 * (1 - slower)) == 4
    one_stage = RankBar(MOVES["t = 4, stage 3"].layout).shares["messages"]
    assert round(100 * one_stage) == 2
    long = PUBLISHED_RUNS["l405"]
    assert round(100 * long.parts["bubble"] / long.predicted_seconds) == 5
    assert f"{long.seconds:.1f} s" in PAGE


def test_the_planner_agrees():
    """Must catch: a rule of legality or a formula that changes the answer and not the page."""
    asked = dict(gpu=ASKED_GPU, gpus=ASKED_GPUS, batch=ASKED_BATCH, sequence=ASKED_SEQUENCE)
    found = plan(ASKED_MODEL, **asked, kernels=FUSED_LOSS, most=1)
    (best,) = found.best
    assert best.layout.given == MOVES["t = 4, stage 3"].layout.given
    assert f"There are {found.legal:,} for this question, and {found.fitting}" in PAGE


def test_the_order_on_a100s():
    """Must catch: "the order stays", where the planner says another; a number of another speed."""
    speed = SPEEDS["Megatron-LM on A100"]
    names = "t = 4, stage 3", "t = 8, p = 2, stage 1"
    asked = dict(gpu="A100 SXM 80GB", gpus=ASKED_GPUS, batch=ASKED_BATCH, sequence=ASKED_SEQUENCE)
    (best,) = plan(ASKED_MODEL, **asked, kernels=FUSED_LOSS, most=1).best
    degrees = lambda one: (one.tensor_parallel, one.pipeline_parallel, one.zero_stage)
    assert degrees(best.layout) == degrees(MOVES[names[1]].layout)
    reached = [
        step_values(replace(MOVES[name].layout, gpu="A100 SXM 80GB"), habits)[
            "layout_tokens_per_second"
        ]
        for habits in (speed, replace(speed, overlap=True))
        for name in names
    ]
    assert reached[0] < reached[1] and reached[2] > reached[3]
    on_page = given_on_the_page()
    given = {**quantities(**on_page["t4"]), **quantities(**on_page["a100"])}
    wanted = pace("A100 SXM 80GB", speed)
    assert {name: given[name] for name in wanted if name in given} == {
        name: wanted[name] for name in wanted if name in given
    }


TOLD = {  # as the page's table says
    "model states, 1.27 TB": layout(),
    "the whole rank, 232 GB": layout(zero_stage=3),
    "19% recomputed": layout(zero_stage=3, recompute_policy=3),
    "32% exposed": layout(zero_stage=3, tensor_parallel=8),
    "39% exposed": layout(zero_stage=3, tensor_parallel=4, ranks_per_node=4),
    "none": layout(zero_stage=3, tensor_parallel=4),
}


@pytest.mark.parametrize("said", TOLD)
def test_the_tree_as_the_page_tells_it(said):
    """Must catch: a question asked in another order, a condition turned around, a technique that
    the page does not name."""
    (row,) = re.findall(rf"^\|[^|]+\| {said}[^|]*\| [^|]+\|$", PAGE, re.MULTILINE)
    found = next_technique(TOLD[said], SPEED)
    assert row.rstrip(" |").endswith(found.technique.partition(":")[0])
    if found.right > 1:  # bytes
        value = (
            f"{found.left / 10**12:.2f} TB"
            if found.left > 10**12
            else f"{found.left / 10**9:.0f} GB"
        )
        assert value in said
    elif found.question:
        assert said.startswith(f"{found.left:.0%}")


def test_every_technique_of_the_tree_is_reached():
    """Must catch: a branch that no layout takes, for one above it takes all."""
    asked = [
        layout(gpus=1),
        layout(),
        layout(zero_stage=3),
        layout(zero_stage=3, microbatch=2),
        layout(gpus=8, batch=8, zero_stage=3),
        layout(zero_stage=3, recompute_policy=3, sequence=65536),
        layout(zero_stage=3, recompute_policy=3, tensor_parallel=8, sequence=524288, batch=64),
        layout(zero_stage=3, recompute_policy=3),
        layout(zero_stage=3, recompute_policy=3, tensor_parallel=8, microbatch=4),
        layout(zero_stage=3, tensor_parallel=8),
        layout(zero_stage=3, tensor_parallel=4, ranks_per_node=4),
        layout(zero_stage=1, tensor_parallel=8, pipeline_parallel=2),
        layout(zero_stage=1, tensor_parallel=4, pipeline_parallel=16, batch=16),
    ]
    found = {
        (n.question.asks, n.technique)
        for n in (next_technique(a, SPEED) for a in asked)
        if n.question
    }
    wanted = {(one.asks, what) for one in QUESTIONS for *_, what in one.techniques}
    assert found == wanted, wanted - found


CUBE = dict(data_parallel=2, tensor_parallel=2, pipeline_parallel=2, microbatches=4)
OWN_TOKENS = dict(sequence_parallel=True, regather=True)
LAYOUTS = (
    RunLayout(tensor_parallel=2, pipeline_parallel=2, microbatches=3, sizes=dict(vocabulary=257)),
    RunLayout(
        data_parallel=2,
        pipeline_parallel=2,
        zero_stage=1,
        microbatches=4,
        recompute_policy=3,
        schedule="eager 1F1B",
        sizes=dict(biases=0, gated_mlp=1, learned_positions=0, tied_head=0),
    ),
    RunLayout(data_parallel=2, tensor_parallel=2, zero_stage=3, microbatches=2, **OWN_TOKENS),
    RunLayout(
        data_parallel=2,
        zero_stage=2,
        microbatch=1,
        microbatches=3,
        sizes=dict(vocabulary=10_240, max_sequence=8),
    ),
    RunLayout(data_parallel=2, pipeline_parallel=2, microbatches=4, zero_stage=1),
    RunLayout(pipeline_parallel=4, microbatches=8),
    *at_night(
        RunLayout(data_parallel=2, tensor_parallel=2, microbatches=2, zero_stage=1),
        RunLayout(data_parallel=2, tensor_parallel=2, zero_stage=3, **OWN_TOKENS),
        RunLayout(pipeline_parallel=2, tensor_parallel=2, microbatches=4, **OWN_TOKENS),
        RunLayout(**CUBE, zero_stage=1, **OWN_TOKENS),
        RunLayout(**CUBE, zero_stage=2, recompute_policy=3, schedule="GPipe"),
        RunLayout(**CUBE, zero_stage=0, recompute_policy=3, **OWN_TOKENS),
    ),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_rank_to_the_byte(worlds, layout):
    """Must catch: the batch left out of activations on a rank that saves none of it; a layer that
    is recomputed counted as kept; the losses of earlier microbatches forgotten; the optimizer's
    counters of every parameter where they are of buckets; one rank's bytes said of all; stage 2's
    new gradients, which wait whole for their bucket, taken for a part of the shard's."""
    found = worlds(layout.ranks).run(weigh_rank, layout)
    sizes = SIZES | layout.sizes
    message = 4 * layout.microbatch * sizes["max_sequence"] * sizes["hidden"]
    for rank, counts in enumerate(found):
        wanted = predicted(layout, rank)
        late = counts.temporaries - wanted.temporaries
        assert counts._replace(temporaries=wanted.temporaries) == wanted
        assert late == 0 or (late, layout.pipeline_parallel > 1) == (message, True)


@pytest.mark.ranks
def test_a_run_and_its_explorer():
    """Must catch: the bytes of another rank; an explorer that begins with another layout."""
    run = weigh_layout(RunLayout(tensor_parallel=2, pipeline_parallel=2, microbatches=2))
    assert [row[-1] for row in run.table().rows] == ["+0"] * 4
    widget = run.explorer(rank=2)
    assert widget.shown["rank_peak_bytes"] == run.measured[2].total
    assert "Rank 1 of the pipeline, one of 4 ranks" in widget.sentence
    assert sorted(widget.measured.values()) == sorted(run.measured[2])
    assert repr(WeighedRun(run.layout, (Counts(),) * 4).explorer()) != repr(widget)
