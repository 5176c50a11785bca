"""The search for a layout in the page: every layout, the nearest that fits and every config.json as
in Python; the buttons, the rows and the cells of ranks as a reader uses them."""

import json
import random
import re
from dataclasses import replace

import pytest
from pages import ROOT
from published import PUBLISHED
from told import sample
from visit import opener_of_pages

from coursekit.formulas import InvalidQuantity
from coursekit.formulas.presets import GPUS, KERNELS, MODELS, RECIPES
from coursekit.planner.configurations import InvalidConfiguration, read_configurations
from coursekit.planner.layout import ADAPTED, RankLayout, model_sizes, usual_recipe
from coursekit.planner.model_config import InvalidModelConfig, read_config
from coursekit.planner.nearest import SMALL_MOMENTS, nearest
from coursekit.planner.plan import plan
from coursekit.planner.search import RULES, Search
from coursekit.planner.speeds import SPEEDS, pace, usual_speed
from coursekit.show.explorers import EXPLORERS
from coursekit.topics.which_layout.planner_page import CHANGE_WORDS

NAME = "rank-of-any-layout"
SPEC = EXPLORERS[NAME]


@pytest.fixture(scope="module")
def page(browser, explorer_places):
    """The first page of the book with both cards, without a network."""
    with opener_of_pages(browser) as opened:
        page = opened(explorer_places[NAME].address(), offline=True)
        page.evaluate(
            """name => {
            const { spec, presets } = document.getElementById("explorer-" + name).hands;
            const card = document.querySelector(".planner script[type='application/json']");
            window.known = JSON.parse(card.textContent);
            window.layouts = BOOK.layouts(name, presets, spec.layouts);
            window.drained = steps => { let next; do next = steps.next(); while (!next.done);
              return next.value; }; }""",
            NAME,
        )
        yield page


def ask(page, function, *arguments):
    """The answer of a JavaScript function, as JSON."""
    return json.loads(page.evaluate(f"JSON.stringify(({function})(...{json.dumps(arguments)}))"))


# model, GPU, GPUs, sequences in a step, tokens, kernels: dense, experts, latent attention, nothing
# fits, unequal ends and interleaving, shared sequences, a batch that most degrees do not divide
QUESTIONS = (
    ("Llama 3 8B", "H100 SXM 80GB", 32, 64, 4096, "Megatron-LM, fused loss"),
    ("Llama 3 405B", "B200 SXM", 96, 96, 8192, "Megatron-LM with Transformer Engine"),
    ("Llama 3 405B", "H100 SXM 80GB", 8, 16, 8192, "Megatron-LM with Transformer Engine"),
    ("Qwen3 30B-A3B", "H200 SXM", 16, 48, 8192, "Megatron-LM, fused loss"),
    ("DeepSeek-V3 671B", "B200 SXM", 32, 64, 4096, "Megatron-LM, fused loss"),
    ("Llama 3 8B", "H100 SXM 80GB", 16, 4, 524_288, "Megatron-LM, fused loss"),
    ("GPT-2 124M", "T4", 1, 8, 1024, "Megatron-LM, fused loss"),
    ("Qwen3 8B", "A100 SXM 80GB", 24, 72, 8192, "nanotron"),
)


def asked_of(model, gpu, gpus, batch, sequence, kernels, recipe=""):
    sizes = model_sizes(model)
    speed = SPEEDS[usual_speed(gpu, kernels, experts=bool(sizes["experts"]))]
    recipe = recipe or usual_recipe(gpu, kernels)
    values = {**SPEC.start(), **sizes, **RECIPES[recipe].quantities}
    values |= {**KERNELS[kernels].quantities, **GPUS[gpu].quantities, **pace(gpu, speed)}
    names = dict(model=model, gpu=gpu, recipe=recipe, kernels=kernels)
    return {**names, "gpus": gpus, "batch": batch, "sequence": sequence, "values": values}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda asked: "-".join(map(str, asked[:3])))
def test_the_search_is_pythons(page, question):
    """Must catch: a degree that is never tried; the first rank's bytes for the fullest rank's;
    another layout of those that are as fast; a share of memory that binds where nothing faster is
    beyond it."""
    model, gpu, gpus, batch, sequence, kernels = question
    given = dict(gpu=gpu, gpus=gpus, batch=batch, sequence=sequence, kernels=kernels)
    found, asked = plan(model, **given), asked_of(*question)
    search = Search(found.asked, batch, found.speed, {})
    if not (search.rows and search.fitting) and found.best:
        search = replace(search, contexts=(1, 2, 4, 8))
    needed, seconds, right = search._found
    contexts = list(search.contexts)
    tried = ask(
        page,
        """(asked, contexts) => { const found = drained(layouts.tried(asked, contexts));
        return found.layouts.map((layout, k) => [layout, found.right[k], found.needed[k],
          found.seconds[k]]); }""".replace("[layout,", "[Object.assign(layout, {values: 0}),"),
        asked,
        contexts,
    )
    assert len(tried) == len(search.rows) > (0 if gpus == 1 else 60)
    for place, (layout, legal, bytes_, taken) in enumerate(tried):
        row = search.rows[place]
        assert all(layout[name] == row[name] for name in RULES), (row, layout)
        assert legal == right[place], row
        if legal:
            assert bytes_ == needed[place] and taken == pytest.approx(seconds[place], rel=1e-12)
    said = ask(page, "asked => drained(layouts.plan(asked))", asked)
    assert (said["legal"], said["fitting"]) == (found.legal, found.fitting)
    for one, best in zip(said["best"], found.best, strict=True):
        wanted = {name: getattr(best.layout, name) for name in RULES}
        wanted["sequence_parallel"] = int(best.layout.cuts_tokens)
        assert {name: one["layout"][name] for name in RULES} == wanted
        assert one["bytes"] == best.needed_bytes and one["tokens"] == pytest.approx(
            best.tokens_per_second_per_gpu
        )
        assert one["parts"] == pytest.approx(best.parts)
        binds = one["binds"]
        knobs = binds.get("memory")
        words = ", ".join(f"{name} = {value}" for name, value in knobs.items()) if knobs else ""
        assert best.binds.startswith(f"memory: {words} would take" if knobs else "") and (
            knobs or not binds or f", {binds['share']:.0%} of the step" in best.binds
        )
    assert [one["changes"] for one in said["nearest"]] == changes(found.nearest)


def changes(found):
    """Pairs of nearest() as the page has them."""
    names = [name.replace("_", "-") for name in CHANGE_WORDS]
    said = []
    for change, _ in found:
        parts = dict(part.strip().split(" ", 1) for part in change.split("--") if part.strip())
        assert set(parts) <= set(names)
        said.append(
            {
                name.replace("-", "_"): int(text) if text.isdigit() else text.strip('"')
                for name, text in parts.items()
            }
        )
    return said


@pytest.mark.parametrize("count", [9, pytest.param(60, marks=pytest.mark.nightly)])
def test_the_nearest_that_fits_is_pythons(page, count):
    """Must catch: a change that is not tried, or tried in another order; a layout that does not fit
    called the nearest; sequence parallelism that a degree of 2 does not take along."""
    chance, asked, wanted = random.Random(5), [], []
    while len(asked) < count:
        model = chance.choice(list(MODELS))
        gpu, kernels = chance.choice(list(GPUS)), chance.choice(SPEC.menus[3].names)
        t, p = chance.choice((1, 1, 2, 8)), chance.choice((1, 1, 2, 4))
        gpus, recipe = t * p * chance.choice((1, 2, 8, 64)), usual_recipe(gpu, kernels)
        if len(asked) % 3 == 0:
            t, p, gpus, recipe = 1, 1, 1, chance.choice((recipe, recipe, *SMALL_MOMENTS, *ADAPTED))
        layout = RankLayout(
            model=model,
            sizes=model_sizes(model),
            gpu=gpu,
            gpus=gpus,
            sequence=chance.choice((1024, 8192, 65_536)),
            zero_stage=chance.choice((0, 1) if p > 1 else (0, 1, 2, 3)),
            microbatch=chance.choice((1, 4, 6)),
            accumulation_steps=chance.choice((8, 64)),
            recipe=recipe,
            kernels=kernels,
            offload=chance.choice((0, 0, 1)) if gpus == 1 else 0,
            tensor_parallel=t,
            pipeline_parallel=p,
            stages_per_rank=chance.choice((1, 1, 2)) if p > 1 else 1,
            recompute_policy=chance.choice((0, 1, 3)),
        )
        if layout.recompute_policy == 3:
            layout = replace(layout, sequence_tiles=chance.choice((1, 4)))
        try:
            if layout.fits or not layout.solved():
                continue
        except InvalidQuantity:
            continue
        found = list(nearest(layout))
        wanted.append(
            [
                [one, other.needed_bytes(other.solved())]
                for one, (_, other) in zip(changes(found), found)
            ]
        )
        names = ("model", "gpu", "recipe", "kernels", "gpus", "sequence", "microbatch")
        names += tuple(name for name in RULES if name != "microbatch")
        names += ("sequence_tiles", "checkpoints_on_host")
        question = asked_of(model, gpu, layout.gpus, 1, layout.sequence, kernels, recipe)
        question |= {name: getattr(layout, name) for name in names}
        question |= dict(sequence_parallel=1, accumulation_steps=layout.steps)
        asked.append(question)
    found = ask(
        page,
        """asked => asked.map(one => drained(layouts.nearest(one)).map(near =>
          [near.changes, near.bytes]))""",
        asked,
    )
    assert sum(map(len, wanted)) > count
    for question, ours, theirs in zip(asked, wanted, found, strict=True):
        assert ours == theirs, {name: value for name, value in question.items() if name != "values"}


def published(kind):
    """The first published config.json of that architecture."""
    return next(m["config"] for m in PUBLISHED.values() if m["config"]["model_type"] == kind)


LLAMA, GLM = PUBLISHED["Llama 3 8B"]["config"], published("glm4_moe")
WRONG = (
    "hello",
    "[1, 2]",
    '{"do_lower_case": true}',
    '{"model_type": "gemma3", "text_config": {}}',
    '{"model_type": "llama"}',
    json.dumps({**LLAMA, "hidden_size": "4096"}),
    json.dumps({**LLAMA, "attention_bias": True}),
    json.dumps({**LLAMA, "tie_word_embeddings": 2}),
    json.dumps({**LLAMA, "architectures": ["LlamaModel"]}),
    json.dumps({**LLAMA, "quantization_config": {"bits": 4}}),
    json.dumps({**LLAMA, "num_local_experts": 8}),
    json.dumps({**LLAMA, "num_experts": 0, "head_dim": None}),
    "\ufeff" + json.dumps(LLAMA),
    json.dumps({**LLAMA, "num_key_value_heads": [8]}),
    json.dumps({**LLAMA, "__proto__": {"num_hidden_layers": 32}, "num_hidden_layers": None}),
    *(
        json.dumps({**LLAMA, field: value})
        for field in ("quantization_config", "architectures", "num_experts")
        for value in ({}, [], 0, False, "")
    ),
    json.dumps({**LLAMA, "architectures": [["LlamaForCausalLM"]]}),
    *(json.dumps({**GLM, "attention_bias": flag}) for flag in ([], {}, "", 0, [0], True)),
    json.dumps({**LLAMA, "attention_bias": 0}),
    *(
        json.dumps({**LLAMA, "num_hidden_layers": layers})
        for layers in (None, 32.0, [32], [[32]], {}, True, 0.5)
    ),
)


def test_a_config_is_read_as_in_python(page, tmp_path):
    """Must catch: a field of one architecture read for another's; an absent field guessed; the
    product of two fields, a position table's extra rows or a tied head forgotten; a size in a list,
    or true, taken for a number; a field that is empty taken for one that says something."""
    path = tmp_path / "config.json"
    texts = [json.dumps(model["config"]) for model in PUBLISHED.values()] + list(WRONG)
    found = ask(
        page,
        """texts => texts.map(text => { try { return BOOK.readConfig(text, known, "the config"); }
        catch (refused) { return refused.message; } })""",
        texts,
    )
    for text, said in zip(texts, found, strict=True):
        path.write_text(text)
        try:
            wanted = read_config(path)
        except InvalidModelConfig as refused:
            ours = str(refused).replace(str(path), "the config").replace("a list, not an", "no")
            place = ours.find(" (line ")  # the browser says no place
            ours = ours if place < 0 else ours[:place] + ours[ours.index("):") + 1 :]
            assert isinstance(said, str) and said[:110] == ours[:110], (said, ours)
            continue
        assert said == wanted, text


TOOLS = [part.split("\n", 3) for part in sample("configurations.md").split("\n## ")[1:]]
TOOLS = {
    head.split()[0]: text
    for head, _, _, text in TOOLS
    if ".toml" in head.split()[0] or ".json" in head.split()[0]
}
SPOILT = {
    "a.json": '{"zero_optimization": {"stage": 7, "stagee": 1}}',
    "b.json": '{"zero_optimization": {}, "bf16": {"enabled": true}, "fp16": {"enabled": true}}',
    "c.json": '{"zero_optimization": {"stage": [1]}}',
    "d.json": '{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}',
    "e.toml": "[training]\nseq_len = 8_192 # tokens\n[activation_checkpoint]\nmode = 'some'",
    "f.toml": "[training]\n[parallelism]\ntensor_paralel_degree = 2",
}


def test_a_tools_file_is_read_as_in_python(page, tmp_path):
    """Must catch: a setting that the page takes for another quantity or value than Python does; a
    file that one of the two refuses."""
    texts = TOOLS | SPOILT
    found = ask(
        page,
        """texts => texts.map(text => {
        try { return BOOK.readConfiguration(text, known.tools).raw; }
        catch (refused) { return refused.message; } })""",
        list(texts.values()),
    )
    for (name, text), said in zip(texts.items(), found, strict=True):
        path = tmp_path / name
        path.write_text(text)
        try:
            wanted = read_configurations([path], recompute_policy=0).raw
        except InvalidConfiguration as refused:
            ours = re.sub(r" \(\S+, line \d+\)", "", str(refused)).split("; did you mean")[0]
            assert isinstance(said, str) and said.startswith(ours.rstrip(".")), (said, ours)
            continue
        assert said == wanted, name
    assert sum(isinstance(said, str) for said in found) == 7


def test_somebody_with_a_tools_file(page):
    """Must catch: degrees or batches of the file that the explorer above does not show; a refusal
    that changes it."""
    card, above = page.locator(".planner"), page.locator(f"#explorer-{NAME}")
    above.locator(".explorer-reset").click()
    card.locator("[data-asked=gpus]").fill("8")
    card.locator("[data-asked=sequence]").fill("4,096")
    chosen = card.locator(".planner-tool input")
    own_run = ROOT / "examples" / "own_run" / "ds_config.json"
    chosen.set_input_files(own_run)
    read = card.locator(".planner-read")
    read.filter(has_text="Read as DeepSpeed: microbatch 2, accumulation steps 8").wait_for()
    shown = page.evaluate(f"document.getElementById('explorer-{NAME}').hands.values()")
    wanted = dict(zero_stage=2, microbatch=2, accumulation_steps=8, data_parallel=8)
    wanted |= dict(tensor_parallel=1, pipeline_parallel=1, sequence=4096)
    assert {name: shown[name] for name in wanted} == wanted
    text = "[training]\nlocal_batch_size = 2\nglobal_batch_size = 9\n[parallelism]\n"
    text += "[activation_checkpoint]\nmode = 'full'"
    chosen.set_input_files(dict(name="a.toml", mimeType="text/plain", buffer=text.encode()))
    read.filter(has_text="9 sequences in a step are not microbatches of 2 on 8 ranks.").wait_for()
    again = page.evaluate(f"document.getElementById('explorer-{NAME}').hands.values()")
    assert again == shown
    above.locator(".explorer-reset").click()
    card.locator("[data-asked=gpus]").fill("64")
    card.locator("[data-asked=sequence]").fill("8,192")


def test_the_search_writes_what_python_wrote(page):
    """Must catch: a column in another unit, or a knob that one of the two leaves unsaid."""
    texts = """() => [...document.querySelector(".planner").querySelectorAll(
      "td, .explorer-sentence, .explorer-detail")].map(node => node.textContent.trim())"""
    before = page.evaluate(texts)
    assert len(before) == 3 + 5 * 10
    page.locator(".planner [data-asked=batch]").fill("128")
    page.locator(".planner[data-took] .explorer-sentence").filter(has_text=before[0]).wait_for()
    assert page.evaluate(texts) == before


def test_somebody_with_a_config_and_gpus(page):
    """Must catch: knobs that the explorer does not take; another rank than the fullest; experts at
    the speed of dense models; a refusal that leaves the table as if it answered, or has Python's
    names; GPT-2's own config.json refused for the tokens that were asked before."""
    card, above = page.locator(".planner"), page.locator(f"#explorer-{NAME}")
    config = PUBLISHED["Qwen3 30B-A3B"]["config"]
    card.locator("[data-asked=model]").select_option("a config.json ...")
    error = card.locator(".explorer-error")
    error.filter(has_text="Paste a config.json").wait_for()
    card.locator("textarea").fill(json.dumps({**config, "num_hidden_layers": None}))
    error.filter(has_text="has no num_hidden_layers").wait_for()
    assert card.locator(".planner-best").is_hidden()
    assert card.locator(".planner-command").is_hidden()
    card.locator("textarea").fill(json.dumps(published("gpt2")))
    card.locator(".explorer-sentence").filter(has_text="a table of 1,024 positions").wait_for()
    assert card.locator("[data-asked=sequence]").input_value() == "1,024"
    card.locator("[data-asked=gpus]").fill("1,000,000")
    error.filter(has_text="“sequences in a step” = 128 on “GPUs” = 1,000,000").wait_for()
    with pytest.raises(InvalidQuantity) as refused:
        plan("GPT-2 124M", gpu="H100 SXM 80GB", gpus=1_000_000, batch=128, sequence=1024)
    hint = str(refused.value)[str(refused.value).index("A batch of ") :]
    assert error.text_content().endswith(hint)
    card.locator("[data-asked=sequence]").fill("8,192")
    card.locator("[data-asked=gpus]").fill("16")
    card.locator("[data-asked=batch]").fill("48")
    card.locator("textarea").fill(json.dumps(config))
    asked = dict(gpu="H100 SXM 80GB", gpus=16, batch=48, sequence=8192)
    found = plan("Qwen3 30B-A3B", **asked, kernels="Megatron-LM, fused loss")
    legal = f"{found.legal:,} legal layouts, {found.fitting:,} fit."
    card.locator(".explorer-sentence").filter(has_text=legal).wait_for()
    assert error.is_hidden() and card.locator(".planner-command").is_visible()
    assert "0.11%" in card.locator(".planner-bytes").text_content()
    assert "whole models with experts" in card.locator(".planner-seconds").text_content()
    best = found.best[0]
    card.locator(".planner-best button").first.click()
    shown = page.evaluate(f"document.getElementById('explorer-{NAME}').hands.values()")
    computed = SPEC.compute(shown)
    assert computed["rank_needed_bytes"] == best.needed_bytes
    assert computed["layout_seconds"] == pytest.approx(best.seconds)
    assert above.locator("[data-kind=model]").input_value() == ""  # own values
    above.locator("[data-kind=model]").select_option("Llama 3 8B")
    shown = page.evaluate(f"document.getElementById('explorer-{NAME}').hands.values()")
    assert shown["expert_parallel"] == 1 and shown["utilisation"] == SPEC.start()["utilisation"]
    above.locator(".explorer-reset").click()


def test_a_button_makes_it_fit(page):
    """Must catch: a button whose knobs give other bytes than it says."""
    above = page.locator(f"#explorer-{NAME}")
    above.locator(".explorer-reset").click()
    button = above.locator(".explorer-nearest button").first
    button.filter(has_text="ZeRO 2").wait_for()
    bytes_ = button.locator("small").text_content()
    button.click()
    sentence = above.locator(".explorer-sentence").text_content().replace("\N{NO-BREAK SPACE}", " ")
    assert f"needs {bytes_}:" in sentence and "It fits" in sentence
    assert above.locator("[data-quantity=zero_stage] :checked").input_value() == "2"
    assert above.locator(".explorer-nearest button").count() == 0
    above.locator(".explorer-reset").click()
    button.filter(has_text="ZeRO 2").wait_for()


def test_ranks_light_up_who_shares_what(page):
    """Must catch: data-parallel ranks taken for neighbours; a group of another stage; colours
    without letters; a click that leaves the bar of another stage."""
    above = page.locator(f"#explorer-{NAME}")
    values = f"document.getElementById('explorer-{NAME}').hands"
    degrees = "data_parallel: 2, tensor_parallel: 2, pipeline_parallel: 2"
    page.evaluate(f"{values}.set({{ {degrees} }})")
    marks = """() => [...document.querySelectorAll(".explorer-ranks .rank")]
      .filter(cell => cell.getAttribute("visibility") === "visible")
      .map(cell => cell.dataset.rank + cell.nextSibling.textContent).sort()"""
    assert page.evaluate(marks) == "0● 1t 2d 3 4p 5 6 7".split()
    above.locator(".explorer-ranks .rank[data-rank='7']").click()
    assert page.evaluate(marks) == "0 1 2 3p 4 5d 6t 7●".split()
    assert page.evaluate(f"{values}.values().pipeline_rank") == 1
    picture = above.locator(".explorer-ranks svg")
    picture.press("ArrowUp")
    assert page.evaluate(f"{values}.values().pipeline_rank") == 0
    picture.press("ArrowLeft")
    words = picture.get_attribute("aria-valuetext")
    assert words.startswith(
        "Rank 2 on node 0, stage 0, copy 1, part 0. t: divides each layer among ranks 2, 3,"
        " inside a node."
    )
    assert "optimizer states among, ranks 0, 2, inside a node. p: " in words
    above.locator(".explorer-reset").click()
