"""Configurations of other tools in this book's quantities, read and written by one table,
data/configurations.md: DeepSpeed, accelerate, torchtitan, Megatron-LM, the Trainer, nanotron.

    found = read_configurations(["ds_config.json"])
    fits("config.json", gpu="H100 SXM 80GB", sequence=8192, **found.quantities)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from coursekit.formulas.asking import close_names
from coursekit.formulas.presets import MODELS
from coursekit.formulas.registry import BOOK
from coursekit.show.format import format_bytes

from .configurations_table import (
    SAYS_NOTHING,
    InvalidConfiguration,
    Tool,
    as_written,
    number_in,
    plain_text,
    tools,
)
from .configurations_text import leaves_of, line_of_key, parsed_file
from .layout import INTERLEAVED, LAYOUT_OPTIONS

SIZE_NAMES = ("layers", "hidden", "heads", "key_value_heads", "feed_forward", "vocabulary")
SIZE_NAMES += ("max_sequence", "learned_positions", "biases", "gated_mlp", "tied_head")
MORE_SIZES = ("head_size", "query_key_norms", "experts", "experts_per_token")
ASKED_BY_NAME = ("model", "gpu", "gpus", "sequence", "zero_stage", "reserve_gb", *LAYOUT_OPTIONS)
NEUTRAL = dict(pipeline_parallel=1, context_parallel=1, expert_parallel=1, stages_per_rank=1)
NEUTRAL |= dict(shorter_ends=0, shard_groups=1, offload=0, tensor_parallel=1)
INTERLEAVED_BY_DEFAULT = 2  # stages on a rank, where torchtitan's schedule alone is given
TYPO = 0.9  # likeness of a key that is most likely a known one
BYTES_OF_ELEMENT = 2  # of a buffer in 16 bits
OPEN = ("model", "family", "every")  # quantities that other values of a file leave open
# a setting that the script decides where a file says "auto" -> the option that says it here
LEFT_OPEN = dict(precision="recipe", microbatch="microbatch")
LEFT_OPEN |= dict(accumulation_steps="accumulation_steps", zero_stage="zero_stage")
LEFT_OVER = -1  # as torchtitan writes a number that follows from the others
TEXTS = ("flavor",)  # quantities without choices that are no numbers


@dataclass
class Configuration:
    """Settings of files. `quantities` are options of fits(), `where` says where each is set,
    `notes` say what stands between the files and memory, `ignored` keys change no byte."""

    tools: list = field(default_factory=list)
    raw: dict = field(default_factory=dict)
    where: dict = field(default_factory=dict)  # name -> "key = value (file, line 3)"
    taken: list = field(default_factory=list)
    left: dict = field(default_factory=dict)  # name -> where "auto" leaves it to the script
    notes: list = field(default_factory=list)
    ignored: list = field(default_factory=list)
    quantities: dict = field(default_factory=dict)

    @property
    def main(self) -> Tool:
        """The tool that shards: the Trainer leaves that to others."""
        return next((one for one in self.tools if one.name != "Trainer"), self.tools[0])

    def __str__(self) -> str:
        return "\n".join(self._texts())

    def _texts(self) -> Iterator[str]:
        yield f"Read as {' and '.join(tool.name for tool in self.tools)}:"
        yield from (f"  {said}" for said in self.taken)
        if self.notes:
            yield "Between the file and memory:"
            yield from (f"  {said}" for said in self.notes)
        if self.ignored:
            yield f"Ignored, as no counted byte depends on it: {', '.join(self.ignored)}."

    def as_json(self) -> dict:
        read = [tool.name for tool in self.tools]
        return dict(read_as=read, taken=self.taken, between=self.notes, ignored=self.ignored)


def read_configurations(paths, **given) -> Configuration:
    """The Configuration of files that belong together, such as DeepSpeed's and the Trainer's.
    `given` are options of fits() that count instead of what files say. Raises InvalidConfiguration
    with one sentence."""
    found = Configuration()
    for path in map(Path, paths):
        _read(path, found)
    _say_what_is_absent(found)
    _resolve(found, given)
    return found


def _read(path, found):
    text = path.read_text("utf-8-sig", errors="replace")
    tree = parsed_file(path, text)
    keys = dict(leaves_of(tree))
    tool = _tool_of(path, tree, keys)
    found.tools.append(tool)
    for key, value in keys.items():
        line = line_of_key(text, key, tool.format == "command")
        place = f"{key} = {as_written(value)} ({path.name}, line {line})"
        settings = tool.matching(key)
        if not settings:
            _unknown(tool, key, place)
            found.ignored.append(f"{key} (not known)")
        for setting in sorted(settings, key=lambda one: one.quantity != "!"):  # refusals first
            _take(found, setting, key, value, place)


def _take(found, setting, key, value, place):
    quantity = setting.quantity
    if quantity == "!":
        if setting.meets(value):
            raise InvalidConfiguration(f"{place}: {setting.words}.")
    elif quantity.startswith("?"):
        found.where[key] = value
        if setting.meets(value):
            found.notes.append((setting, f"{place}: {setting.words}."))
    elif quantity == "bucket":
        found.where[key] = value
        if value not in SAYS_NOTHING:
            number = number_in(value)
            if not isinstance(number, (int, float)) or not 0 <= number < math.inf:
                raise InvalidConfiguration(f"{place}: it must be a number of elements.")
            nbytes = format_bytes(BYTES_OF_ELEMENT * float(value))
            found.notes.append((setting, f"{place}: {nbytes} in 16 bits, {setting.words}."))
    elif value == "auto" not in setting.choices and setting.named in LEFT_OPEN:
        found.left.setdefault(setting.named, place)
    elif quantity == "-" or value in SAYS_NOTHING and plain_text(value) not in setting.choices:
        found.ignored.append(f"{key}{' = auto' if value == 'auto' else ''}")
    else:
        ours = _ours(setting, value, place)
        if ours is not None:
            _note_taken(found, setting.named, ours, place)


def _ours(setting, value, place):
    """The value of the quantity; None where the file's leaves it open, as a flag that is off."""
    choices, plain = setting.choices, plain_text(value)
    if plain in choices:
        return choices[plain]
    if setting.named in OPEN or "true" in choices and plain == "false":
        return None
    number = number_in(value)
    whole = isinstance(number, int) and number >= LEFT_OVER
    if choices or not whole and setting.named not in TEXTS:
        wanted = f"there are {', '.join(choices)}" if choices else "it must be a whole number"
        raise InvalidConfiguration(f"{place}: {wanted}.")
    return number


def _note_taken(found, name, value, place):
    before = found.raw.setdefault(name, value)
    if before != value:
        raise InvalidConfiguration(f"{place} contradicts {found.where[name]}.")
    found.where.setdefault(name, place)
    option = f"--{name.replace('_', '-')}" if name in ASKED_BY_NAME else name.replace("_", " ")
    found.taken.append(f"{place}: {option} {as_written(value)}")


def _say_what_is_absent(found):
    """Notes about keys that a file does not have, and the defaults of buffers."""
    for tool in found.tools:
        for setting in tool.settings:
            if any(key in found.where for key in setting.keys):
                continue
            if setting.quantity.startswith("?") and setting.meets(None, absent=True):
                said = f"{setting.keys[0]} is not there: {setting.words}."
                found.notes.append((setting, said))
            if setting.quantity == "bucket":
                default = float(setting.values.split()[0])
                nbytes = format_bytes(BYTES_OF_ELEMENT * default)
                said = f"{setting.keys[0]} is not there, so {default:,.0f} elements, {nbytes}"
                found.notes.append((setting, f"{said}: {setting.words}."))


def _resolve(found, given):
    """Quantities of fits() out of what files say, and what is given instead."""
    said = dict(found.raw) | given
    for tool in (found.main, *found.tools):
        said = tool.silent | said
    if said.get("shards") == said.get("context_parallel", 1) == 1:
        said["zero_stage"] = given.get("zero_stage", 0)
    match said.get("distributed"):
        case "ddp" | "one":
            said["zero_stage"] = given.get("zero_stage", 0)
        case "fsdp":
            said.setdefault("zero_stage", 3)
    if said.get("replicas", 1) > 1 and said.get("zero_stage"):
        said.setdefault("shard_groups", said["replicas"])
    t, p, c = (said.get(f"{name}_parallel", 1) for name in ("tensor", "pipeline", "context"))
    if gpus := _gpus(found, said, t * p * c):
        said["gpus"] = gpus
        _microbatches(found, said, given, gpus / (t * p * c))
        if per_node := said.get("per_node") or said.get("nodes") and gpus // said["nodes"]:
            said.setdefault("ranks_per_node", per_node)
    elif "local" in said and p == 1:
        said.setdefault("microbatch", said["local"])
    _stages(found, said, p)
    every_second = found.main.name == "torchtitan" and said.get("every") != "op"
    if every_second and said.get("recompute_policy") == 2 and "recompute_policy" not in given:
        raise InvalidConfiguration(
            f"{found.where['recompute_policy']}: without selective_ac_option = 'op' every second"
            " layer is recomputed, which no formula knows: give --recompute-policy."
        )
    left = {name: place for name, place in found.left.items() if name not in found.raw}
    _recipe(found, said)
    _model(found, said)
    for name, degree in dict(sequence_parallel=t, context_mix=c, shorter_ends=p).items():
        if degree == 1:
            said.pop(name, None)
    if "sequence_parallel" in said:
        said["sequence_parallel"] = bool(said["sequence_parallel"])
    found.quantities = {name: value for name, value in said.items() if name in ASKED_BY_NAME}
    found.notes = [words for setting, words in found.notes if setting.holds(said)]
    for name, place in left.items():
        if (option := LEFT_OPEN[name]) not in given:
            counts = said.get(name, 1)
            option = option.replace("_", "-")
            found.notes.append(f"{place}: the script decides. {counts} is counted: say --{option}.")


def _gpus(found, said, copy) -> int | None:
    """GPUs, by the first way that the files allow; `copy` are those of one data-parallel rank."""
    shards = max(0, said.get("shards", 0)) * said.get("replicas", 1) * copy
    ranks = said.get("ranks", 0) * copy
    each = said.get("per_node", 0) * said.get("nodes", 1)
    one = said.get("distributed") == "one"
    step = [said.get(name, 0) for name in ("batch", "microbatch", "accumulation_steps")]
    of_batch = step[0] // (step[1] * step[2]) * copy if all(step) else 0
    gpus = said.get("gpus") or one or each or ranks or shards or of_batch
    if shards and shards != gpus:
        raise InvalidConfiguration(
            f"{found.where['shards']}: with replicas and the other degrees these are {shards} GPUs,"
            f" and not {gpus}."
        )
    return int(gpus) or None


def _microbatches(found, said, given, ranks):
    """The microbatch and the number of those that are accumulated."""
    if (local := said.get("local")) and "microbatch" not in given:
        several = said["pipeline_parallel"] > 1
        said["microbatch"] = said.get("pipeline_microbatch", 1) if several else local
        if said.get("batch", -1) < 0:
            said["batch"] = local * ranks
    b, batch = said.get("microbatch"), said.get("batch")
    if not b or not batch or "accumulation_steps" in given:
        return
    steps = batch / (ranks * b)
    before = said.setdefault("accumulation_steps", int(steps))
    if before != steps and ranks >= 1:
        place = found.where.get("batch") or found.where.get("local")
        raise InvalidConfiguration(
            f"{place}: {batch:,.0f} sequences in a step are {steps:g} microbatches of {b} on each"
            f" of {ranks:g} data-parallel ranks"
            + (f", and not {before}." if steps % 1 == 0 else ": it must be a whole number.")
        )


def _stages(found, said, p):
    """Interleaved stages, by the layers of each or by the schedule."""
    layers = said.get("layers")
    if not layers and (name := _flavor(said)) in MODELS:
        layers = MODELS[name].quantities["layers"]
    if p > 1 and layers and (each := said.get("layers_of_stage")):
        ends = 2 * said.get("shorter_ends", 0)
        said["stages_per_rank"] = max(1, round((layers + ends) / (p * each)))
    elif p > 1 and said.get("schedule") == INTERLEAVED:
        said.setdefault("stages_per_rank", INTERLEAVED_BY_DEFAULT)


def _recipe(found, said):
    tool = found.main
    said.setdefault("kernels", tool.kernels)
    if (adapters := said.get("adapters", "full")) != "full":
        recipes = tools()["trainer"].recipes
        said.setdefault("recipe", recipes["qlora" if said.get("four_bits") else adapters])
    precision, stage = said.get("precision", "fp32"), said.get("zero_stage")
    precision = "pure" if said.get("pure") else precision
    said.setdefault("recipe", tool.recipes.get(f"{precision}.{stage}") or tool.recipes[precision])


def _flavor(said) -> str:
    return f"Llama 3 {said.get('flavor')}" if said.get("family") == "llama3" else ""


def _model(found, said):
    """The model by name, or its sizes, where the file has them."""
    if "model" in said:
        return
    if (name := _flavor(said)) in MODELS:
        said["model"] = name
    elif all(said.get(name) for name in ("layers", "hidden", "heads", "vocabulary")):
        sizes = {name: said[name] for name in (*SIZE_NAMES, *MORE_SIZES) if name in said}
        of_expert = said.get("experts") and said.get("of_expert")
        whole = sizes.get("feed_forward") or 4 * sizes["hidden"]
        sizes["feed_forward"] = of_expert or whole
        sizes.setdefault("key_value_heads", sizes["heads"])
        sizes.setdefault("max_sequence", said.get("sequence"))
        said["model"] = BOOK.validate(**sizes)


def _tool_of(path, tree, keys) -> Tool:
    if "model_type" in tree and "hidden_size" in tree:
        raise InvalidConfiguration(
            f"{path.name} is a model's config.json: give it with --model; --from takes a file of a"
            " tool."
        )
    suffixes = {"json": ("json", "yaml"), "toml": ("toml",), "yaml": ("yaml",)}
    formats = suffixes.get(path.suffix[1:].replace("yml", "yaml"), ("command", "json"))
    known = [tool for tool in tools().values() if tool.format in formats]
    for several in (True, False):  # of a tool's signs, or one
        for tool in known:
            signs = sum(sign in tree for sign in tool.signs)
            if signs >= (min(2, len(tool.signs) - 1) if several else 1):
                return tool
    names, has = ", ".join(tool.name for tool in tools().values()), ", ".join([*tree][:4])
    raise InvalidConfiguration(
        f"{path.name} is of none of these tools: {names}; it has {has or 'nothing'}."
    )


def _unknown(tool, key, place):
    known = [key for one in tool.settings if one.quantity != "-" for key in one.keys]
    if get_close_matches(key, known, 1, TYPO) or not tool.lenient:
        near = close_names(key, [k for one in tool.settings for k in one.keys if "*" not in k])
        raise InvalidConfiguration(f"{place}: {tool.name} has no such setting{near or '.'}")
