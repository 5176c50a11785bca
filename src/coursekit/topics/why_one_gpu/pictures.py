"""Still pictures of the way in: model states and the memory of a GPU, by year; and the map of
techniques, with what each leaves on a GPU and what it costs. The bars that close the chapters are
in where_we_stand.py."""

from dataclasses import replace
from datetime import date
from math import ceil, log10
from typing import NamedTuple

from coursekit.formulas import BOOK, MODELS, quantities, states_bytes
from coursekit.planner.layout import RankLayout
from coursekit.show.drawing import Drawing
from coursekit.show.format import decimal_bytes as said
from coursekit.topics.why_one_gpu import where_we_stand

GROWTH_RECIPE = "bf16 + fp32 master"  # 16 bytes a parameter


class PublishedModel(NamedTuple):
    """A model, the month of its paper, its parameters; `key` is in references.bib."""

    name: str
    published: date
    parameters: int
    key: str


PUBLISHED_MODELS = (
    PublishedModel("GPT-2", date(2019, 2, 1), 1_557_611_200, "radford2019"),
    PublishedModel("Megatron-LM", date(2019, 9, 1), 8_300_000_000, "shoeybi2019"),
    PublishedModel("GPT-3", date(2020, 5, 1), 175_000_000_000, "brown2020"),
    PublishedModel("PaLM", date(2022, 4, 1), 540_000_000_000, "chowdhery2022"),
    PublishedModel("LLaMA", date(2023, 2, 1), 65_000_000_000, "touvron2023a"),
    PublishedModel("Llama 3", date(2024, 7, 1), 405_000_000_000, "grattafiori2024"),
    PublishedModel("DeepSeek-V3", date(2024, 12, 1), 671_000_000_000, "deepseek2024"),
)
# each had more memory than all before it in hardware.csv, which gives the memory; days by epoch2025
GPU_RELEASES = {
    "V100 SXM2 32GB": date(2018, 3, 27),
    "A100 SXM 40GB": date(2020, 5, 14),
    "A100 SXM 80GB": date(2020, 11, 16),
    "MI300X": date(2023, 12, 6),
    "MI355X": date(2025, 6, 12),
}
FIRST_YEAR, YEARS = 2018, 8
BESIDE = {"LLaMA": "start", "Llama 3": "end"}  # labels that have no room above


def states_by_day():
    """Each model with its states, the largest memory of a GPU on that day, and how many such GPUs
    the states fill."""
    memory = {gpu: quantities(gpu=gpu)["gpu_memory_bytes"] for gpu in GPU_RELEASES}
    found = []
    for model in PUBLISHED_MODELS:
        states = states_bytes(parameters=model.parameters, **quantities(recipe=GROWTH_RECIPE))
        card = max(memory[gpu] for gpu, day in GPU_RELEASES.items() if day <= model.published)
        found.append((model, states, card, ceil(states / card)))
    return memory, found


def draw_growth():
    memory, found = states_by_day()
    drawing = Drawing("growth", "Model states and the memory of a GPU, by year")
    left, right, floor, decade, least = 50, 396, 232, 66, 10**10
    x = lambda day: left + (right - left) * (_years(day) - FIRST_YEAR) / YEARS
    y = lambda nbytes: floor - decade * log10(nbytes / least)
    for power in range(4):
        nbytes = least * 10**power
        drawing.path(f"M{left} {y(nbytes):.1f}H{right}", "grid")
        drawing.text(left - 6, y(nbytes) + 5, said(nbytes), "small end")
    for year in range(FIRST_YEAR, FIRST_YEAR + YEARS, 2):
        drawing.text(x(date(year, 7, 1)), floor + 18, year, "middle small")
        drawing.text(x(date(year + 1, 7, 1)), floor + 18, year + 1, "middle small")
    steps = "".join(
        f"{'L' if number else 'M'}{x(day):.1f} {y(before):.1f}L{x(day):.1f} {y(memory[gpu]):.1f}"
        for number, ((gpu, day), before) in enumerate(
            zip(GPU_RELEASES.items(), [least, *memory.values()])
        )
    )
    drawing.path(f"{steps}H{right}V{floor}z", "activations pale")
    for gpu, anchor, near in (
        ("V100 SXM2 32GB", "", 29),
        ("A100 SXM 80GB", "", 15),
        ("MI300X", "", 15),
        ("MI355X", "end", 56),
    ):
        at = right - 4 if anchor else x(GPU_RELEASES[gpu]) + 4
        then = "then " if anchor else ""  # its step is too narrow for words
        label = f"{then}{gpu.split()[0]}, {said(memory[gpu])}"
        drawing.text(at, y(memory[gpu]) + near, label, f"small {anchor}".rstrip())
    for model, states, card, count in found:
        at, line = x(model.published), y(states)
        beside = BESIDE.get(model.name, "")
        if count > 1:
            drawing.path(f"M{at:.1f} {y(card):.1f}V{line:.1f}", "line dashed")
            if beside == "end":
                drawing.text(at - 5, y(card) - 5, f"× {count}", "small end")
            else:  # above the roof from here to the end of the words
                roof = max(memory[gpu] for gpu, day in GPU_RELEASES.items() if x(day) < at + 32)
                drawing.text(at + 5, min(y(card) - 20, y(roof) - 6), f"× {count}", "small")
        drawing.box(at - 5, line - 5, 10, 10, "parameters", 5)
        if count == 1:
            drawing.text(at + 9, line + 5, f"{model.name}, {said(states)}", "small bold")
        elif beside:
            at, looks = (at + 9, "small bold") if beside == "start" else (at - 9, "small end bold")
            drawing.text(at, line + 3, model.name, looks)
            drawing.text(at, line + 19, said(states), looks)
        else:
            end = right if at > right - 60 else at + 6
            drawing.text(end, line - 9, f"{model.name}, {said(states)}", "small end bold")
    each = "; ".join(
        f"{model.name}, {model.published.year}, {said(states)}, which fill {count} of the largest"
        f" GPUs of that day ({said(card)})"
        for model, states, card, count in found
    )
    words = (
        f"Years from {FIRST_YEAR} to {FIRST_YEAR + YEARS - 1} to the right, bytes upwards, each"
        " line ten times the one below. A low staircase is the largest memory of one of this book's"
        " GPUs: "
        + ", ".join(f"{gpu} {said(nbytes)}" for gpu, nbytes in memory.items())
        + f". Points far above it are model states at 16 bytes a parameter: {each}."
    )
    return drawing.svg(floor + 26, words)


def _years(day):
    return day.year + (day - date(day.year, 1, 1)).days / 365.25


# --- the map of techniques ------------------------------------------------------------------------

MAPPED_GPUS = 8
MAPPED = RankLayout(
    "Llama 7B",
    dict(MODELS["Llama 7B"].quantities),
    "A100 SXM 80GB",
    1,
    2048,
    0,
    microbatch=4,
    recipe="bf16 + fp32 master",
)
MAPPED_KINDS = {  # quantity -> its look, its words
    "rank_parameter_bytes": ("parameters", "parameters"),
    "rank_gradient_bytes": ("gradients", "gradients"),
    "rank_optimizer_bytes": ("optimizer", "optimizer states"),
    "rank_saved_bytes": ("activations", "activations"),
}


def techniques():
    """(name, its layout, what it pays), in the order of the map."""
    many = replace(MAPPED, gpus=MAPPED_GPUS)
    return (
        ("one GPU, fp32", replace(MAPPED, recipe="fp32 Adam"), ""),
        ("mixed precision", MAPPED, "range (fp16) or digits (bf16)"),
        ("recompute", replace(MAPPED, recompute_policy=3), "one more forward"),
        ("data parallelism", many, "a sum of all gradients"),
        ("ZeRO, stage 1", replace(many, zero_stage=1), "nothing more"),
        ("ZeRO, stage 2", replace(many, zero_stage=2), "a sum in each microbatch"),
        ("ZeRO, stage 3", replace(many, zero_stage=3), "1.5 times as many bytes"),
        (
            "tensor parallelism",
            replace(many, tensor_parallel=MAPPED_GPUS),
            "messages in each layer",
        ),
        ("pipeline", replace(many, pipeline_parallel=MAPPED_GPUS), "idle time, the bubble"),
    )


def kept_on_a_rank(layout):
    """Bytes of MAPPED_KINDS on the rank of a layout that keeps most."""
    last = layout.pipeline_parallel - 1
    ranks = (
        BOOK.solve(tuple(MAPPED_KINDS), {**layout.given, "pipeline_rank": rank}, allow_unused=True)
        for rank in sorted({0, min(1, last), last})
    )
    kept = ({name: found[name] for name in MAPPED_KINDS} for found in ranks)
    return max(kept, key=lambda found: sum(found.values()))


def draw_map():
    drawing = Drawing("map", "What each technique leaves on a GPU, and what it pays")
    rows = [(name, kept_on_a_rank(layout), pays) for name, layout, pays in techniques()]
    card = quantities(gpu=MAPPED.gpu)["gpu_memory_bytes"]
    left, top, pitch = 6, 44, 50
    unit = 336 / max(sum(kept.values()) for _, kept, _ in rows)  # beyond it there is room for a sum
    drawing.legend(left, 3, MAPPED_KINDS.values(), letter=6.1)
    edge, bottom = left + card * unit, top + pitch * len(rows)
    drawing.path(f"M{edge:.1f} 24V{bottom - 6}", "line dashed")
    drawing.text(edge + 5, 32, f"a card of {said(card)}", "small soft")
    for number, (name, kept, pays) in enumerate(rows):
        y = top + pitch * number
        drawing.text(left, y + 11, name, "bold")
        if pays:
            drawing.text(394, y + 11, f"pays: {pays}", "small soft end")
        parts = [(look, kept[quantity] * unit) for quantity, (look, _) in MAPPED_KINDS.items()]
        at = drawing.bar(left, y + 17, 20, parts)
        beyond = edge if at < edge < at + 60 else at
        drawing.text(beyond + 6, y + 32, said(sum(kept.values())), "small bold")
    each = "; ".join(
        f"{name}, {said(sum(kept.values()))} ("
        + ", ".join(
            f"{MAPPED_KINDS[quantity][1]} {said(kept[quantity])}" for quantity in MAPPED_KINDS
        )
        + (f"), pays {pays}" if pays else ")")
        for name, kept, pays in rows
    )
    words = (
        f"A bar for each technique: what a GPU keeps of {MAPPED.model} with {MAPPED.microbatch}"
        f" sequences of {MAPPED.sequence:,} tokens; from data parallelism on with {MAPPED_GPUS}"
        f" GPUs. A dashed line is a card of {said(card)}. {each}."
    )
    return drawing.svg(bottom, words)


PICTURES = {"growth": draw_growth, "map": draw_map, **where_we_stand.STANDS}
