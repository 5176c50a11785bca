"""A layout as the file or the command line of another tool, by the table that reads these.

text, outside = written_configuration(tools()["deepspeed"], layout)
"""

import json
from collections.abc import Iterator

from coursekit.formulas.subset import ceil_div

from .configurations import MORE_SIZES, NEUTRAL, SIZE_NAMES
from .configurations_table import InvalidConfiguration, Tool
from .layout import MODELS_WITH_USUAL, RankLayout
from .plan import LayoutPlan
from .search import RULES, knobs

# knobs that plan() tries by itself: a tool that has all of these limits nothing
TRIED = dict(zero_stage={0, 1, 2, 3}, recompute_policy={0, 1, 2, 3}, offload={0})
TRIED |= dict(shorter_ends={0, 1}, sequence_parallel={0, 1}, context_mix={1, 2, 3})
# Knobs that a tool may say in another way.
AS = dict(microbatch="local", shard_groups="replicas", stages_per_rank="layers_of_stage")
BY_OPERATORS = "op"  # how torchtitan names a choice by operators


def knobs_of(tool: Tool) -> dict:
    """Knob -> the values that the tool can be told, for knobs that it limits."""
    found = {}
    for knob in RULES:
        rows = [one for one in tool.settings if one.written and one.named in (knob, AS.get(knob))]
        allowed = {ours for row in rows for ours in row.choices.values()}
        # where a rank has whole sequences their mix is another value
        free = knob in {*tool.outside, "context_mix"} or any(not row.choices for row in rows)
        named = {one.named for one in tool.settings}
        if knob == "zero_stage" and {"shards", "distributed"} & named:
            allowed.add(0)
        if (usual := tool.silent.get(knob, NEUTRAL.get(knob))) is not None:
            allowed.add(usual)
        tried = TRIED.get(knob, {None})
        if not free and allowed and not tried <= allowed:
            found[knob] = tuple(sorted(allowed & tried if None not in tried else allowed))
    return found


def kernels_of(tool: Tool) -> str:
    """The kernels that a written file asks for."""
    rows = [row for row in tool.settings if row.named == "kernels" and row.written]
    return next(iter(rows[0].choices.values())) if rows else tool.kernels


def written_configuration(tool: Tool, layout: RankLayout) -> tuple[str, dict]:
    """The text, and the quantities that the tool leaves to the script or the launcher. Raises
    InvalidConfiguration for a layout that the tool cannot be told."""
    values = _values(tool, layout)
    told, tree = set(tool.outside), {}
    for setting in tool.settings:
        name = setting.named
        if not setting.written or name not in values or not _needed(setting.keys[0], values):
            continue
        value, choices = values[name], dict(reversed(setting.pairs))  # the first spelling counts
        if choices and value not in choices:
            continue
        told.add(name)
        if tool.silent.get(name) != value or name == "zero_stage":
            tree[setting.keys[0]] = _typed(choices[value]) if choices else value
    if layout.zero_stage == 0 and {"shards", "distributed"} & told and layout.context_parallel == 1:
        told.add("zero_stage")  # by a single shard, or as DDP
    for knob, value in knobs(layout).items():
        known = {knob, AS.get(knob)} & told or knob not in values or knob == "accumulation_steps"
        if not known and value != tool.silent.get(knob, NEUTRAL.get(knob, value)):
            raise InvalidConfiguration(f"{tool.name} has no setting for {knob} = {value}.")
    if layout.tensor_parallel > 1 and not layout.cuts_tokens and "sequence_parallel" not in told:
        if tool.silent.get("sequence_parallel") != 0:
            raise InvalidConfiguration(f"{tool.name} cuts tokens wherever it cuts layers by width.")
    outside = {name: values[name] for name in tool.outside}
    return "\n".join(WRITERS[tool.format](tree)) + "\n", outside


def fastest_written(tool: Tool, found: LayoutPlan) -> tuple:
    """The fastest of a plan's layouts that the tool can be told, with its text and what is
    outside. Raises InvalidConfiguration if there is none, for the fastest."""
    refused = []
    for candidate in found.best:
        try:
            return candidate, *written_configuration(tool, candidate.layout)
        except InvalidConfiguration as why:
            refused.append(why)
    raise refused[0]


def _values(tool, layout) -> dict:
    """Quantities and words of the table, for a layout."""
    t, p, c = layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel
    b, steps, copies = layout.microbatch, layout.steps, layout.gpus // (t * p * c)
    sharded = layout.zero_stage > 0
    replicas = layout.shard_groups if sharded else copies
    per_node = min(layout.gpus, layout.ranks_per_node)
    values = knobs(layout) | dict(gpus=layout.gpus, sequence=layout.sequence, ranks=copies)
    values |= dict(kernels=layout.kernels, batch=b * steps * copies)
    values |= dict(per_node=per_node, nodes=ceil_div(layout.gpus, per_node))
    values |= dict(replicas=replicas, shards=copies // replicas, local=b * (steps if p > 1 else 1))
    values |= dict(distributed="fsdp" if sharded else "ddp" if layout.gpus > 1 else "one")
    values |= dict(fsdp_version=2, wrap="layers", precision=_precision(tool, layout))
    if layout.recompute_policy == 2:
        values |= dict(every=BY_OPERATORS)
    if layout.recompute_policy == 3:
        values |= dict(uniform=1, of_unit=1)
    if layout.zero_stage == 3:
        values |= dict(unfused=1)
    if p > 1:
        v, ends = layout.stages_per_rank, 2 * layout.shorter_ends
        values |= dict(pipeline_microbatch=b, schedule=4 if v > 1 else 2)
        values |= dict(layers_of_stage=(layout.sizes["layers"] + ends) // (p * v)) if v > 1 else {}
    for name, degree in dict(sequence_parallel=t, context_mix=c, shorter_ends=p).items():
        if degree == 1:
            del values[name]
    family, _, flavor = layout.model.rpartition(" ")
    if any(row.named == "flavor" for row in tool.settings):
        if family != "Llama 3":
            raise InvalidConfiguration(f"{tool.name} is written for Llama 3 alone: {layout.model}.")
        return values | dict(family="llama3", flavor=flavor)
    return values | _sizes(tool, layout)


def _sizes(tool, layout) -> dict:
    """The model's sizes where the tool is told them. Raises InvalidConfiguration for one that it
    has no setting for."""
    named = {row.named for row in tool.settings}
    if "layers" not in named:
        return {}
    usual = MODELS_WITH_USUAL["Llama 3 8B"]
    usual = usual | dict(head_size=layout.sizes["hidden"] // layout.sizes["heads"])
    for name, value in layout.sizes.items():
        if name not in named and value != usual.get(name, 0) and value:
            raise InvalidConfiguration(f"{tool.name} is not told {name} = {value} here.")
    known = (*SIZE_NAMES, *(name for name in MORE_SIZES if layout.sizes.get(name)))
    if "unfused" in named and layout.zero_stage == 3 and layout.sizes["tied_head"]:
        raise InvalidConfiguration(f"{tool.name} shards no parameters of a model with a tied head.")
    grouped = int(layout.sizes["key_value_heads"] < layout.sizes["heads"])
    return {name: layout.sizes[name] for name in known} | dict(grouped=grouped)


def _precision(tool, layout) -> str:
    stage = layout.zero_stage
    for name, recipe in tool.recipes.items():
        precision, _, only = name.partition(".")
        if recipe == layout.recipe and only in ("", str(stage)):
            return precision
    recipes = ", ".join(dict.fromkeys(tool.recipes.values()))
    raise InvalidConfiguration(f"{tool.name} runs {recipes}, and not {layout.recipe}.")


def _needed(key, values) -> bool:
    """Whether accelerate has a use for a section: FSDP's, and the degrees beside it."""
    if key.startswith("fsdp_config."):
        return values["distributed"] == "fsdp"
    if key.startswith("parallelism_config."):
        degrees = ("tensor_parallel", "context_parallel", "shard_groups")
        return max(values[name] for name in degrees) > 1
    return True


def _typed(text):
    return {"true": True, "false": False}.get(text, int(text) if text.isdigit() else text)


def _nested(tree) -> dict:
    found = {}
    for key, value in tree.items():
        *sections, name = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return found


# JSON is YAML and TOML for numbers, truth values and quoted text.


def _json(tree) -> Iterator[str]:
    yield json.dumps(_nested(tree), indent=2)


def _yaml(tree) -> Iterator[str]:
    for name, value in _nested(tree).items():
        if isinstance(value, dict):
            yield f"{name}:"
            yield from (f"  {line}" for line in _yaml(value))
        else:
            yield f"{name}: {json.dumps(value)}"


def _toml(tree) -> Iterator[str]:
    for section, settings in _nested(tree).items():
        yield f"[{section}]"
        yield from (f"{name} = {json.dumps(value)}" for name, value in settings.items())


def _command(tree) -> Iterator[str]:
    words = [f"--{key}" + ("" if value is True else f" {value}") for key, value in tree.items()]
    launcher = [word for word in words if word.startswith(("--nproc", "--nnodes"))]
    yield f"torchrun {' '.join(launcher)} pretrain_gpt.py \\"
    rest = [word for word in words if word not in launcher]
    yield from (f"    {word} \\" for word in rest[:-1])
    yield f"    {rest[-1]}"


WRITERS = dict(json=_json, yaml=_yaml, toml=_toml, command=_command)
