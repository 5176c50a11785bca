"""The planner: all legal layouts at once, the best five, and what cannot be asked."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from itertools import product

import numpy as np
import pytest
from night import at_night
from pages import chapter
from reader import Hand
from solved import Given
from told import cells, from_told, given

from bookkit import layouts
from coursekit.__main__ import main
from coursekit.formulas import InvalidQuantity
from coursekit.formulas.presets import GPUS
from coursekit.planner.fits import fits
from coursekit.planner.layout import EXCHANGED, FUSED_LOSS, GATHERED, RING, RankLayout, model_sizes
from coursekit.planner.plan import plan
from coursekit.planner.search import RULES, WORTH, Search, divisors, solve_many
from coursekit.planner.speeds import EXPERTS, SPEEDS, pace, step_values, usual_speed
from coursekit.show.explorers import EXPLORERS

ASKED = dict(gpu="H100 SXM 80GB", gpus=16, batch=64, sequence=4096)


@pytest.mark.parametrize(
    "model, contexts, each",
    [
        ("Llama 3 8B", (1, 2, 8), 293),
        ("DeepSeek-V3 671B", (1, 4), 293),
        *at_night(("Llama 3 8B", (1,), 97), ("Qwen3 30B-A3B", (1,), 97)),
    ],
)
def test_many_are_what_each_is(model, contexts, each):
    """Must catch: a function of the subset that is another on arrays; a rule that is not asked; the
    first rank's bytes for the fullest rank's; the whole sequence on each rank that shares it; the
    reserve of whole sequences for shared ones."""
    found = plan(model, **ASKED)
    search = Search(found.asked, found.batch, found.speed, {}, contexts)
    needed, seconds, right = search._found
    degrees = search.columns["expert_parallel"]
    assert {*search.columns["context_parallel"]} == {*contexts}
    assert {*search.columns["context_mix"]} == ({3} if contexts == (1,) else {1, 2, 3})
    assert {*degrees} == ({1, 2, 4, 8, 16} if found.asked.sizes["experts"] else {1})
    for place in range(0, len(needed), each):
        layout = search.layout(place)
        try:
            values = layout.solved()
        except InvalidQuantity:
            assert not right[place]
            continue
        assert right[place] and needed[place] == layout.needed_bytes(values)
        alone = step_values(layout, found.speed)["layout_seconds"]
        assert seconds[place] == pytest.approx(alone, rel=1e-12)


def test_illegal_places_are_refused_one_by_one():
    """Must catch: a place that a rule forbids taken, because another place is legal."""
    given = dict(layers=8, pipeline_parallel=np.array([2, 3, 16]), accumulation_steps=6)
    given |= dict(stages_per_rank=1, pipeline_schedule=2)
    values, right = solve_many(["stage_layers", "pipeline_in_flight"], given)
    assert right.tolist() == [True, True, False] and values["stage_layers"][:2].tolist() == [4, 3]


def test_the_best_is_the_best_that_is_legal_and_fits():
    """Must catch: a degree that is never tried; the fastest of all instead of those that fit; two
    of the five with the same degrees; parts that do not add up to the step."""
    kept = dict(recompute_policy=0, sequence_parallel=(0, 1), zero_stage=(0, 1), stages_per_rank=1)
    asked_for = {**ASKED, "batch": 16}
    found = plan("Llama 3 8B", **asked_for, **kept, shorter_ends=0, microbatch=1)
    times, legal = {}, 0
    for t, p, z in product((1, 2, 4, 8), (1, 2, 4, 8, 16), (0, 1)):
        d = 16 // (t * p)
        if d < 1 or 16 // d < p or (d == 1 and z):
            continue
        legal += 1 if t == 1 else 2
        asked = dict(tensor_parallel=t, pipeline_parallel=p, zero_stage=z, stages_per_rank=1)
        answer = fits(
            "Llama 3 8B",
            **{name: ASKED[name] for name in ("gpu", "gpus", "sequence")},
            **asked,
            accumulation_steps=16 // d,
        )
        if answer.fits:
            seconds = step_values(answer.layout, found.speed)["layout_seconds"]
            times[t, p] = min(seconds, times.get((t, p), seconds))
    assert found.legal == legal
    wanted = sorted(times, key=times.get)[:5]
    best = [(one.layout.tensor_parallel, one.layout.pipeline_parallel) for one in found.best]
    assert sorted(best) == sorted(wanted)
    for one in found.best:
        assert one.needed_bytes <= one.memory_bytes and one.binds
        assert sum(one.parts.values()) == pytest.approx(one.seconds)
        assert (
            one.seconds <= 1.006 * times[one.layout.tensor_parallel, one.layout.pipeline_parallel]
        )


def test_of_layouts_that_are_alike_the_simplest_is_shown():
    """Must catch: the fewest bytes among equals (within 0.5 percent), ZeRO 2 in small microbatches;
    an answer that does not say which stages are alike."""
    asked = dict(gpu="H100 SXM 80GB", gpus=2, batch=16, sequence=1024)
    best = plan("GPT-2 124M", **asked).best[0]
    stages = best.zero_stages_as_fast
    assert best.layout.zero_stage == stages[0] == min(stages) < 2 in stages
    assert best.layout.microbatch == 8 and best.layout.steps == 1
    assert f"within 0.5%: ZeRO {', '.join(map(str, stages))}" in str(best)
    (other,) = plan("GPT-2 124M", **asked, zero_stage=2, tensor_parallel=1, most=1).best
    assert best.seconds < (1 + WORTH) * other.seconds and other.zero_stages_as_fast == (2,)
    assert "within" not in str(other)


def test_habits_of_runs_and_rates_of_gpus():
    """MI300X has 51 percent of its datasheet at best, an H100 80. Must catch: a share of an H100
    for a GPU whose products fall shorter; an answer that does not say what was assumed of
    messages."""
    rate = {gpu: pace(gpu, SPEEDS["Megatron-LM on H100"]) for gpu in GPUS}
    assert rate["H100 SXM 80GB"]["utilisation"] == rate["H200 SXM"]["utilisation"] == 0.53
    assert rate["MI300X"]["utilisation"] == pytest.approx(0.53 * (668.4 / 1307) / (794.5 / 989))
    assert rate["H100 SXM 80GB"]["hidden_message_share"] == 0.8
    assert rate["T4"]["hidden_message_share"] == rate["L40S"]["hidden_message_share"] == 0
    assert pace("B300 SXM", SPEEDS["Megatron-LM on B200"])["utilisation"] == 0.43
    asked = dict(gpus=8, batch=16, sequence=4096, most=1)
    for gpu, said in {
        "H100 SXM 80GB": "80% of the tensor-parallel messages hide behind products,"
        " data-parallel messages travel beside computing: habits of these runs, not fitted",
        "A100 SXM 80GB": "0% of the tensor-parallel messages hide behind products,"
        " data-parallel messages travel not beside computing: habits",
        "MI300X": "products reach 34% of the GPU's FLOP/s",
    }.items():
        assert said in str(plan("Llama 3 8B", gpu=gpu, **asked)), gpu


@from_told("asked, said")
def test_an_answer_says_what_no_row_decides(asked, said):
    """Must catch: a habit that was set, not fitted, without its weight; the layout of 2021 for an
    A100 of today without a word; all scores of long sequences counted in silence."""
    found = plan("Llama 3 70B", **{**ASKED, "gpus": 64, "most": 3, **asked})
    lines = list(found.sensitivity())
    said = said.split("; ")
    assert len(lines) == len(said) and all(map(str.startswith, lines, said)), lines
    assert all(f"  {line}" in str(found) for line in lines)
    seconds = float(lines[-1].split("would take ")[1].split(" s,")[0])
    other = seconds > found.best[0].seconds if "no tensor" in lines[-1] else True
    assert other and found.as_json()["sensitivity"] == lines


def test_an_answer_says_its_error_and_what_binds():
    """Must catch: an answer without the error of its class; memory that is said to bind where
    nothing faster is beyond it."""
    found = plan("Llama 3 70B", **{**ASKED, "gpus": 64})
    said = str(found)
    assert f"{SPEEDS['Megatron-LM on H100']}" in said and "published_peaks.csv" in said
    assert any(one.binds.startswith("memory: ") for one in found.best)
    small = plan("Llama 3 8B", **ASKED, recompute_policy=0, microbatch=1, zero_stage=1)
    assert not any(one.binds.startswith("memory: recompute") for one in small.best)
    assert "none of them" not in said
    for gpu in ("RTX 4090", "T4"):
        other = plan("GPT-2 124M", gpu=gpu, gpus=1, batch=8, sequence=1024)
        assert other.compared["seconds"].endswith(f"none of them on the {gpu}")
    assert [one.layout.microbatch for one in other.best] == [8]
    eager = plan("Llama 3 8B", **ASKED, kernels="PyTorch eager")
    assert eager.speed is SPEEDS["FSDP on H100"] and eager.fits


def test_sequences_are_shared_where_nothing_else_fits():
    """Must catch: context parallelism never tried; tried where whole sequences fit; a batch of
    fewer sequences than GPUs refused; tokens of all ranks that share a sequence counted for
    each."""
    asked = dict(gpu="H100 SXM 80GB", gpus=64, batch=16, tensor_parallel=1)
    long = plan("Llama 3 8B", **asked, sequence=524_288)
    assert long.fits and all(one.layout.context_parallel > 1 for one in long.best)
    short = plan("Llama 3 8B", **{**asked, "batch": 64}, sequence=8192)
    assert {one.layout.context_parallel for one in short.best} == {1}
    for one in long.best:
        tokens = 16 * 524_288 / (64 * one.seconds)
        assert one.tokens_per_second_per_gpu == pytest.approx(tokens)
        shared = f"--context-parallel {one.layout.context_parallel}"
        assert f"{shared} --context-mix {one.layout.mix}" in str(one)


def test_ranks_that_share_sequences_beside_all_heads():
    """Llama 3's layout of 2024. Must catch: a limit of heads for a ring; heads cut by an exchange;
    a mix that `fits` takes and `plan` does not try."""
    asked = dict(gpu="H100 SXM 80GB", gpus=16384, batch=128, sequence=131072)
    degrees = dict(tensor_parallel=8, pipeline_parallel=16, context_parallel=16)
    found = plan("Llama 3 405B", **asked, **degrees, zero_stage=1)
    assert found.fits and found.best[0].layout.mix == RING
    mixes = {}
    for c in (4, 16):
        fixed = dict(context_parallel=(c,), tensor_parallel=(2,))
        small = replace(found.asked, sizes=plan("Llama 3 8B", **ASKED).asked.sizes, gpus=32)
        mixes[c] = {row["context_mix"] for row in Search(small, 32, found.speed, fixed).rows}
    assert mixes == {4: {RING, GATHERED, EXCHANGED}, 16: {RING, GATHERED}}
    layout = replace(found.best[0].layout, context_mix=None)
    assert layout.mix == RING and replace(layout, context_parallel=1).mix == EXCHANGED


def test_experts_are_planned():
    """Must catch: experts' messages for nothing; degrees that do not divide the experts; experts
    that tensor parallelism divides for nothing."""
    found = plan("Mixtral 8x7B", **{**ASKED, "gpus": 64})
    assert found.speed is SPEEDS[EXPERTS] and found.fits
    assert any(one.layout.expert_parallel > 1 and one.parts["experts"] > 0 for one in found.best)
    cut = plan("Mixtral 8x7B", **{**ASKED, "gpus": 64}, tensor_parallel=8, expert_parallel=1)
    assert cut.fits and all(one.parts["experts"] > 0 for one in cut.best)
    assert all(sum(one.parts.values()) == pytest.approx(one.seconds) for one in found.best)


def test_unequal_ends_and_interleaving_are_tried():
    """Must catch: pipelines of equal stages only, or unequal ones with one stage on a rank only."""
    found = plan("Llama 3 405B", gpu="B200 SXM", gpus=256, batch=256, sequence=8192)
    search = Search(found.asked, found.batch, found.speed, {})
    assert {*search.columns["shorter_ends"]} == {0, 1}
    unequal = Search(found.asked, found.batch, found.speed, dict(shorter_ends=(1,))).columns
    assert {*unequal["stages_per_rank"]} >= {1, 2, 4, 8, 16, 32}
    assert max(search.columns["stages_per_rank"]) == 63
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


@pytest.mark.slow
def test_what_is_tried_when_it_is_asked_for():
    """Must catch: one of them tried unasked; updates on the host that take no time; a group that
    has a part of the states; parameters that a pipeline gathers once for all microbatches; messages
    between nodes as fast as inside one."""
    large = {**ASKED, "gpus": 64, "batch": 512}
    found = plan("Llama 3 70B", **large)
    columns = Search(found.asked, found.batch, found.speed, {}).columns
    assert {*columns["offload"]} == {0} and {*columns["shard_groups"]} == {1}
    assert {*columns["zero_stage"][columns["pipeline_parallel"] > 1]} == {0, 1}

    same = dict(tensor_parallel=2, pipeline_parallel=2, stages_per_rank=1, microbatch=1)
    same |= dict(recompute_policy=3, sequence_parallel=1)

    def of(**knobs):
        asked = plan("Llama 3 70B", **large, **{**same, **knobs}).asked
        fixed = {name: (value,) for name, value in {**same, **knobs}.items()}
        needed, seconds, right = Search(asked, 512, found.speed, fixed)._found
        place = int(np.argmax(right))
        return needed[place], seconds[place]

    one, groups = of(zero_stage=1), of(zero_stage=1, shard_groups=4)
    assert one[0] < groups[0]
    gathered = of(zero_stage=3)
    assert gathered[0] < one[0] and gathered[1] > one[1]
    host = of(zero_stage=1, offload=1)
    assert host[0] < one[0] and host[1] > one[1]
    few = plan("Llama 3 70B", **{**ASKED, "gpus": 8}, offload=1)
    assert few.fits and "--offload 1" in str(few)
    assert all(each.parts["update"] > 0.1 * each.seconds for each in few.best)
    wide = plan("GPT-3 175B", **{**large, "sequence": 2048}, tensor_parallel=(8, 16))
    times = {each.layout.tensor_parallel: each.parts["messages"] for each in wide.best}
    assert times[16] > 2 * times[8]


def test_from_a_shell(capsys):
    """Must catch: a warning in the middle of JSON; exit code 0 or an empty answer where nothing
    fits."""
    words = ["plan", "--gpu", "H100 SXM 80GB", "--gpus", "8", "--batch", "16"]
    words += ["--sequence", "2048", "--json", "--recompute-policy", "0", "--model"]
    assert main([*words, "Llama 3 8B"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best"] and found["best"][0]["layout"]["recompute_policy"] == 0
    assert main([*words, "Llama 3 405B"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["nearest"] and found["legal"] and not found["best"]


@from_told("changes, sentence", cells, **RULES)
def test_what_cannot_be(changes, sentence):
    """Must catch: an empty list, or a traceback out of NumPy, for what one sentence can say; a
    batch that no layout has either."""
    asked = {"model": "Llama 3 8B", **ASKED, **given(changes)}
    with pytest.raises(InvalidQuantity) as refused:
        plan(asked.pop("model"), **asked)
    assert str(refused.value).startswith(sentence)


def test_commands_of_the_page_ask_what_the_cards_ask(capsys):
    """Must catch: other kernels, another batch or another layout than the card's."""
    page = chapter("any-layout")
    (block,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    command = shlex.split(block.replace("\\\n", " "))
    main(command[3:] + ["--json"])
    explorer = EXPLORERS["rank-of-any-layout"]
    start = explorer.compute(explorer.start())
    assert json.loads(capsys.readouterr().out)["needed_bytes"] == start["rank_needed_bytes"]
    html = layouts.card(explorer)
    asked = shlex.split(unescape(re.search(r'planner-command">(.*?)</code>', html, re.DOTALL)[1]))
    main(asked[3:] + ["--json"])
    found = json.loads(capsys.readouterr().out)
    assert f"{found['legal']:,} legal layouts, {found['fitting']:,} fit." in html


# with which the explorer starts
PAGES_OWN = dict(kernels=FUSED_LOSS, recipe="bf16 + fp32 gradients", sequence=8192)
PAGES_OWN |= dict(accumulation_steps=16, tensor_parallel=8)


@pytest.mark.parametrize("model, ranks", [("Llama 3 70B", 1), ("Mixtral 8x7B", 8)])
@pytest.mark.parametrize("first", ["model", "gpu"])
def test_the_explorer_has_the_planners_bytes_and_seconds(model, ranks, first):
    """Must catch: a bandwidth of a datasheet in the page, where the planner takes a share of it;
    links or a speed of another GPU, or of dense models for experts, whichever menu came last; a
    rank that fits in the page alone; experts that are not divided."""
    card = EXPLORERS["rank-of-any-layout"]
    for gpu in GPUS:
        hand = Hand(card, card.start(), card.chosen_at_start())
        hand.choose(*(("model", model) if first == "model" else ("gpu", gpu)))
        hand.choose(*(("gpu", gpu) if first == "model" else ("model", model)))
        hand.move("expert_parallel", ranks)
        shown = card.compute(hand.values)
        assert hand.values["expert_parallel"] == ranks and hand.along == ""
        knobs = dict(PAGES_OWN, zero_stage=1, expert_parallel=ranks)
        layout = RankLayout(model=model, sizes=model_sizes(model), gpu=gpu, gpus=64, **knobs)
        speed = SPEEDS[usual_speed(gpu, FUSED_LOSS, experts=ranks > 1)]
        seconds = step_values(layout, speed)["layout_seconds"]
        assert shown["layout_seconds"] == pytest.approx(seconds, rel=1e-12)
        if "bf16" in GPUS[gpu].note:  # the others refuse the recipe
            assert shown["rank_needed_bytes"] == layout.needed_bytes(layout.solved())


@pytest.mark.parametrize("stage", [2, 3])
def test_a_pipeline_reduces_once(stage):
    """Must catch: messages for each microbatch in one of them."""
    card = EXPLORERS["rank-of-any-layout"]
    for p, times in ((1, 16), (2, 1)):
        knobs = dict(pipeline_parallel=p, zero_stage=stage)
        shown = card.compute({**card.start(), **knobs, "pipeline_rank": p - 1})
        asked = dict(model="Llama 3 70B", sizes=model_sizes("Llama 3 70B"), gpu="H100 SXM 80GB")
        layout = RankLayout(**asked, gpus=64 * p, **PAGES_OWN, **knobs)
        values = step_values(layout, SPEEDS["Megatron-LM on H100"])
        assert values["zero_reductions"] == times
        assert shown["layout_seconds"] == pytest.approx(values["layout_seconds"], rel=1e-12)


def test_a_stage_of_layers_without_experts():
    """DeepSeek-V3 with 64 layers on 32 pipeline ranks: the first has two layers without experts.

    Must catch: fewer than no bytes before a checkpoint; the bytes of those layers forgotten."""
    sizes = {**model_sizes("DeepSeek-V3 671B"), "layers": 64}
    asked = dict(kernels=FUSED_LOSS, recipe="bf16 + fp32 gradients", sequence=4096, zero_stage=1)
    asked |= dict(gpu="B200 SXM", gpus=2048, expert_parallel=64, pipeline_parallel=32)
    layout = RankLayout(model="DeepSeek-V3 671B", sizes=sizes, **asked)
    found = Given(**layout.given, pipeline_rank=0)
    assert layout.solved()["rank_peak_bytes"] > found.rank_saved_bytes
    least = found.rank_saved_bytes - 2 * found.rank_stage_bytes
    assert least <= found.rank_before_bytes < found.rank_saved_bytes
