"""The planner on a page: the texts of its table, and what its scripts have to know beside the
formulas. bookkit/layouts.py writes the card, bookkit/static/layouts.js searches."""

import re

from coursekit.formulas.presets import GPUS, KERNELS, MODELS, WITHOUT_BF16
from coursekit.formulas.registry import BOOK
from coursekit.planner import layout as layouts
from coursekit.planner import model_config as config
from coursekit.planner import nearest
from coursekit.planner.configurations_table import tools
from coursekit.planner.speeds import EXPERTS, PARTS, SPEEDS, WORK, pace, usual_speed
from coursekit.show.format import format_as

PLAN_COLUMNS = (
    ("t", "tensor-parallel ranks"),
    ("p", "pipeline ranks"),
    ("d", "data-parallel ranks"),
    ("ZeRO", "ZeRO stage, the simplest of those that are as fast within 0.5% first"),
    ("microbatch", "sequences in a microbatch, and microbatches"),
    ("recompute", "what backward recomputes"),
    ("needs", "bytes of the fullest rank, with what is set aside"),
    ("a step", "seconds of a step"),
    ("tokens/s", "tokens per second per GPU"),
)
RECOMPUTED_WORDS = {0: "nothing", 1: "attention core", 2: "all but products", 3: "every layer"}


def cells(one):
    """The texts of a row: planner.js writes the same."""
    layout = one.layout
    t, p, v = layout.tensor_parallel, layout.pipeline_parallel, layout.stages_per_rank
    c, e = layout.context_parallel, layout.expert_parallel
    copies = layout.given["data_parallel"] // c
    return (
        f"{t}, whole tokens" if t > 1 and not layout.cuts_tokens else f"{t}",
        f"{p} × {v} stages" if v > 1 else f"{p}, short ends" if layout.shorter_ends else f"{p}",
        f"{copies}"
        + (f" × {c} that share" if c > 1 else "")
        + (f", experts over {e}" if e > 1 else ""),
        " or ".join(map(str, one.zero_stages_as_fast)),
        f"{layout.microbatch} × {layout.steps}",
        RECOMPUTED_WORDS[layout.recompute_policy],
        format_as(one.needed_bytes, "decimal bytes"),
        format_as(one.seconds, "short duration"),
        format_as(one.tokens_per_second_per_gpu, "number"),
    )


def binds(one):
    """The limit of a layout, in the words of buttons."""
    words = lambda knob: CHANGE_WORDS.get(knob[1], KNOB_WORDS.get(knob[1], "")).format(
        RECOMPUTED_WORDS[int(knob[2])] if knob[1] == "recompute_policy" else knob[2]
    )
    return "Limited by " + re.sub(r"(\w+) = (\d+)", words, one.binds)


def plan_command(**asked):
    """The question of the card from a shell: commandOf of planner.js."""
    options = (f'--{name} "{text}"' for name, text in asked.items() if isinstance(text, str))
    counts = (f"--{name} {count}" for name, count in asked.items() if isinstance(count, int))
    return " ".join(("python -m shardlab plan", *options, *counts))


def words_of_change(change):
    """The change of nearest.difference, in the words of buttons: BOOK.inWords of ranks.js."""
    options = re.findall(r'--([\w-]+) (?:"(.*?)"|(\S+))', change)
    return ", ".join(
        CHANGE_WORDS[name := option.replace("-", "_")].format(
            RECOMPUTED_WORDS[int(number)]
            if name == "recompute_policy"
            else text or format_as(int(number), "exact")
        )
        for option, text, number in options
    )


def published(said):
    """The sentence of an error without the file of its rows."""
    return re.sub(r" \(tests/\S+\)", "", f"{said}")


# Names of changes on a button, in the order in which nearest.difference names changes.
CHANGE_WORDS = dict(
    zero_stage="ZeRO {}",
    offload="states on the host",
    tensor_parallel="t {}",
    pipeline_parallel="p {}",
    context_parallel="context {}",
    expert_parallel="experts over {}",
    microbatch="microbatch {}",
    kernels="{}",
    recipe="{}",
    recompute_policy="recompute {}",
    sequence_tiles="{} tiles of tokens",
    checkpoints_on_host="layers' inputs on the host",
    gpus="{} GPUs",
    sequence="{} tokens",
    gpu="{}",
)


KNOB_WORDS = dict(
    stages_per_rank="{} stages on a rank",
    shorter_ends="ends shorter by {}",
    sequence_parallel="sequence parallelism {}",
    context_mix="mix {}",
)


def facts():
    """The planner's numbers and names, for static/layouts.js."""
    from coursekit.planner.search import CONTEXTS, ENOUGH_ROWS, MOST_BATCH, RULES, SIMPLEST, WORTH

    larger = sorted(GPUS, key=lambda name: GPUS[name].quantities["gpu_memory_bytes"])
    return dict(
        words=CHANGE_WORDS,
        more_words=KNOB_WORDS,
        again=RECOMPUTED_WORDS,
        gpus=larger,
        without_bf16=sorted(WITHOUT_BF16),
        kernels=[layouts.USUAL_KERNELS, layouts.FUSED_LOSS],
        small_moments=nearest.SMALL_MOMENTS,
        adapted=layouts.ADAPTED,
        no_adapters=layouts.NO_ADAPTERS,
        most_gpus=nearest.MOST_GPUS,
        most_batch=MOST_BATCH,
        most_tensor=nearest.MOST_TENSOR_PARALLEL,
        most_pipeline=nearest.MOST_PIPELINE_PARALLEL,
        tile_tokens=nearest.TILE_TOKENS,
        one_f_one_b=layouts.ONE_F_ONE_B,
        interleaved=layouts.INTERLEAVED,
        contexts=CONTEXTS,
        mixes=list(layouts.MIXES),
        exchanged=layouts.EXCHANGED,
        worth=WORTH,
        simplest=SIMPLEST,
        enough_rows=ENOUGH_ROWS,
        most=5,
        knobs=list(RULES),
        rule=RULES["microbatch"],
        work=WORK,
        parts=PARTS,
    )


def data():
    """The data of the card beside those of the explorer above it."""
    family = list(layouts.MODELS_WITH_USUAL[next(iter(MODELS))])
    speeds = {usual_speed(gpu, layouts.USUAL_KERNELS) for gpu in GPUS} | {EXPERTS}
    of_speed = (
        "utilisation",
        "hidden_message_share",
        "score_share",
        "reduce_early",
        "prefetch_units",
    )
    tables = []
    for architecture in config.ARCHITECTURES.values():
        if architecture.names not in tables:
            tables.append(architecture.names)
    usual = BOOK.assumed(family, ())
    return dict(
        family=family,
        usual=[usual.get(quantity) for quantity in family],
        models={
            name: [sizes[quantity] for quantity in family]
            for name, sizes in layouts.MODELS_WITH_USUAL.items()
        },
        speed_of={gpu: usual_speed(gpu, layouts.USUAL_KERNELS) for gpu in GPUS},
        speeds={name: published(SPEEDS[name]) for name in sorted(speeds)},
        measured={name: SPEEDS[name].measured for name in sorted(speeds)},
        experts=EXPERTS,
        speed_of_experts={
            gpu: {name: pace(gpu, SPEEDS[EXPERTS])[name] for name in of_speed} for gpu in GPUS
        },
        said_again=config.SAID_AGAIN,
        compared={name: published(layouts.PUBLISHED.get(name, NO_ROW)) for name in KERNELS},
        fp16=layouts.LIBRARY_RECIPE_FP16,
        names=tables,
        architectures={
            kind: {**vars(architecture), "names": tables.index(architecture.names)}
            for kind, architecture in config.ARCHITECTURES.items()
        },
        tools=[_table(tools()[name]) for name in ("deepspeed", "torchtitan")],
        causal=config.CAUSAL_MODELS,
        optional=config.OPTIONAL,
    )


def _table(tool):
    """The settings of a tool, for readConfiguration of planner.js."""
    settings = [
        dict(keys=one.keys, quantity=one.quantity, values=one.values)
        | dict(pairs=one.pairs if one.quantity[0] not in "!?-" else [])
        | dict(words=one.words if one.quantity == "!" else "")
        for one in tool.settings
    ]
    known = dict(name=tool.name, json=tool.format == "json", signs=tool.signs)
    return known | dict(silent=tool.silent, settings=settings)


NO_ROW = "no published peak of these kernels is among our rows"
