"""Configurations of other tools in this book's quantities, read and written by one table,
data/configurations.md: DeepSpeed, accelerate, torchtitan, Megatron-LM, the Trainer, nanotron.

    found = read_configurations(["ds_config.json"])
    fits("config.json", gpu="H100 SXM 80GB", sequence=8192, **found.quantities)
"""

import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from coursekit.formulas.asking import close_names
from coursekit.formulas.presets import MODELS
from coursekit.formulas.registry import BOOK
from coursekit.sentences import data_text
from coursekit.show.format import format_bytes

from .layout import INTERLEAVED, LAYOUT_OPTIONS

SIZE_NAMES = ("layers", "hidden", "heads", "key_value_heads", "feed_forward", "vocabulary")
SIZE_NAMES += ("max_sequence", "learned_positions", "biases", "gated_mlp", "tied_head")
MORE_SIZES = ("head_size", "query_key_norms", "experts", "experts_per_token")
ASKED_BY_NAME = (
    "model",
    "gpu",
    "gpus",
    "sequence",
    "zero_stage",
    "reserve_gb",
    *LAYOUT_OPTIONS,
)
NEUTRAL = dict(pipeline_parallel=1, context_parallel=1, expert_parallel=1, stages_per_rank=1)
NEUTRAL |= dict(shorter_ends=0, shard_groups=1, offload=0, tensor_parallel=1)
INTERLEAVED_BY_DEFAULT = 2  # stages on a rank, where torchtitan's schedule alone is given
TYPO = 0.9  # likeness of a key that is most likely a known one
BYTES_OF_ELEMENT = 2  # of a buffer in 16 bits
SAYS_NOTHING = (None, "", "auto", [], {})
OPEN = ("model", "family", "every")  # quantities that other values of a file leave open
# a setting that the script decides where a file says "auto" -> the option that says it here
LEFT_OPEN = dict(precision="recipe", microbatch="microbatch")
LEFT_OPEN |= dict(accumulation_steps="accumulation_steps", zero_stage="zero_stage")
LEFT_OVER = -1  # as torchtitan writes a number that follows from the others
TEXTS = ("flavor",)  # quantities without choices that are no numbers
AGREE = {
    "no": "false",
    "yes": "true",
}  # what YAML reads as a truth value, and files write in quotes


class InvalidConfiguration(ValueError):
    """Why a file is no configuration that can be read, or a layout none that can be written: one
    sentence, with the key and its line."""


@dataclass(frozen=True)
class Setting:
    """A line of the table."""

    keys: tuple
    quantity: str
    values: str = ""
    words: str = ""

    @property
    def named(self) -> str:
        return self.quantity.lstrip("<")

    @property
    def written(self) -> bool:
        return not re.match(r"[<!?-]|bucket", self.quantity)

    @property
    def pairs(self) -> list[tuple]:
        """(value of the quantity, the file's), in the order of the table."""
        return [
            (_number(ours), there) for ours, there in re.findall(r"(?:^| )(.+?)=(\S+)", self.values)
        ]

    @property
    def choices(self) -> dict:
        """Value in the file -> value of the quantity."""
        return {_plain(there): ours for ours, there in self.pairs}

    def holds(self, said) -> bool:
        """Whether a note is about these quantities: `?zero_stage=3,offload=1`; a buffer's values
        end with its stages."""
        if self.quantity == "bucket":
            return said.get("zero_stage") in map(int, self.values.split()[1:])
        wanted = [pair.split("=") for pair in self.quantity[1:].split(",") if pair]
        return all(said.get(name) == _number(value) for name, value in wanted)

    def meets(self, value, *, absent=False) -> bool:
        """Whether one of the values is the file's."""
        if absent:
            return "absent" in self.values.split()
        if value in SAYS_NOTHING or value is False and "false" not in self.values:
            return False
        several = value if isinstance(value, list) else str(value).split() or [value]
        return any(_meets(wanted, one) for wanted in self.values.split() for one in several)


def _meets(wanted, value) -> bool:
    if wanted.startswith(">"):
        return _number(value) > int(wanted[1:])
    return wanted == "*" or _plain(wanted) == _plain(value)


@dataclass(frozen=True)
class Tool:
    name: str
    settings: tuple
    version: str
    format: str
    kernels: str
    signs: list
    outside: list
    silent: dict
    recipes: dict

    def matching(self, key) -> list[Setting]:
        """The settings of a key; those with a `*` only where no other names it."""
        named = [one for one in self.settings if key in one.keys]
        return named or [
            one for one in self.settings if any(fnmatchcase(key, known) for known in one.keys)
        ]

    @property
    def lenient(self) -> bool:
        """Whether its files hold keys of others: scripts and data."""
        return self.format == "command" or "base_model" in self.signs


@cache
def tools() -> dict[str, Tool]:
    """Name in small letters -> Tool."""
    text = data_text("configurations.md")
    found = {}
    for part in text.split("\n## ")[1:]:
        name, facts, lines = part.strip().split("\n\n", 2)
        rows = (re.split(r" \| ?", line) for line in lines.splitlines())
        settings = tuple(Setting(tuple(keys.split()), *more) for keys, *more in rows)
        facts = dict(re.findall(r"(?m)^- (\w+): ?(.*)", facts))
        facts |= {fact: facts[fact].split() for fact in ("signs", "outside")}
        silent = (pair.split("=") for pair in facts["silent"].split())
        facts["silent"] = {quantity: _number(value) for quantity, value in silent}
        facts["recipes"] = dict(re.findall(r"([\w.]+)=([^;]+)", facts["recipes"]))
        found[name.split("-")[0].lower()] = Tool(name, settings, **facts)
    return found


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
        return next((one for one in self.tools if not _trains(one)), self.tools[0])

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


def _trains(tool):
    return tool.name == "Trainer"


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
    tree = _parsed(path, text)
    keys = dict(_flat(tree))
    tool = _tool_of(path, tree, keys)
    found.tools.append(tool)
    for key, value in keys.items():
        line = _line(text, key, tool.format == "command")
        place = f"{key} = {_shown(value)} ({path.name}, line {line})"
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
            if not _counted(value):
                raise InvalidConfiguration(f"{place}: it must be a number of elements.")
            nbytes = format_bytes(BYTES_OF_ELEMENT * float(value))
            found.notes.append((setting, f"{place}: {nbytes} in 16 bits, {setting.words}."))
    elif value == "auto" not in setting.choices and setting.named in LEFT_OPEN:
        found.left.setdefault(setting.named, place)
    elif quantity == "-" or value in SAYS_NOTHING and _plain(value) not in setting.choices:
        found.ignored.append(f"{key}{' = auto' if value == 'auto' else ''}")
    else:
        ours = _ours(setting, value, place)
        if ours is not None:
            _note_taken(found, setting.named, ours, place)


def _ours(setting, value, place):
    """The value of the quantity; None where the file's leaves it open, as a flag that is off."""
    choices, plain = setting.choices, _plain(value)
    if plain in choices:
        return choices[plain]
    if setting.named in OPEN or "true" in choices and plain == "false":
        return None
    number = _number(value)
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
    found.taken.append(f"{place}: {option} {_shown(value)}")


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


def _parsed(path, text) -> dict:
    """The tree of a file; a command line's options as one level."""
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            tree = json.loads(text, object_pairs_hook=_once)
        elif path.suffix in (".yaml", ".yml"):
            tree = _yaml(text)
        else:
            tree = dict(_options(text))
    except InvalidConfiguration:  # of an option that is given twice
        raise
    except RecursionError:
        raise InvalidConfiguration(f"{path.name} cannot be parsed: too deeply nested.") from None
    except ValueError as error:
        raise InvalidConfiguration(f"{path.name} cannot be parsed: {error}.") from None
    if not isinstance(tree, dict):
        raise InvalidConfiguration(f"{path.name} holds no settings with names.")
    return tree


def _once(pairs) -> dict:
    """An object of JSON. Raises ValueError for a key that is there twice."""
    names = [name for name, _ in pairs]
    if len(names) > len(set(names)):
        raise ValueError(f"{max(names, key=names.count)} is there twice")
    return dict(pairs)


def _yaml(text):
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs the package pyyaml, which is not installed") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(?!\()(.*?)\s*$", re.M)
OPTION = re.compile(r"(?<![\w-])--([a-zA-Z][\w-]*)(?:(?:=|[ \t]+)([^\s\"'()\\-][^\s\"'()\\]*))?")


def _options(text) -> Iterator[tuple]:
    """The options of a command line or a shell script, with the variables that it sets. What a
    condition chooses is read as if it held. Raises InvalidConfiguration for an option that is given
    twice with different values."""
    lines = re.sub(r"(?m)(^|\s)#.*$", "", text)
    variables = {}
    for name, value in ASSIGNED.findall(lines):
        variables.setdefault(name, _expanded(value, variables).strip("\"'"))
    seen = {}
    for name, value in OPTION.findall(_expanded(lines, variables)):
        key = name.replace("_", "-")
        known = tools()["megatron"].matching(key)
        flag = any("true" in one.choices for one in known)
        value = value if value and not (flag and value.startswith("$")) else True  # --bf16 $MORE
        if seen.setdefault(key, value) != value and known:
            raise InvalidConfiguration(
                f"--{key} is given twice: {_shown(seen[key])} and {_shown(value)} (line"
                f" {_line(text, key, True)})."
            )
    yield from seen.items()


def _expanded(text, variables) -> str:
    def value(found):
        name, default = found[1] or found[3], found[2]
        return str(variables.get(name, default if default is not None else found[0]))

    text = re.sub(r"\$\{(\w+)(?::-\"?([^}\"]*)\"?)?\}|\$(\w+)", value, text)
    product = lambda found: str(int(found[1]) * int(found[2]))
    return re.sub(r"\$\(\(\s*(\d+)\s*\*\s*(\d+)\s*\)\)", product, text)


def _flat(tree, before="") -> Iterator[tuple]:
    """(dotted key, value) of every leaf."""
    for name, value in tree.items():
        key = f"{before}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _tool_of(path, tree, keys) -> Tool:
    if "model_type" in tree and "hidden_size" in tree:
        raise InvalidConfiguration(
            f"{path.name} is a model's config.json: give it with --model; --from takes a file of a"
            " tool."
        )
    suffixes = {"json": ("json", "yaml"), "toml": ("toml",), "yaml": ("yaml",)}
    formats = suffixes.get(path.suffix[1:].replace("yml", "yaml"), ("command", "json"))
    for tool in tools().values():
        signs = sum(sign in tree for sign in tool.signs)
        if tool.format in formats and signs >= min(2, len(tool.signs) - 1):
            return tool
    for tool in tools().values():
        if tool.format in formats and any(sign in tree for sign in tool.signs):
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


def _line(text, key, option) -> int:
    """The line of a dotted key, part after part."""
    at = 0
    for part in [key] if option else key.split("."):
        name = re.escape(part).replace(r"\-", "[-_]")
        pattern = rf"--{name}\b" if option else rf"(?<![\w.-])[\"']?{name}[\"']?\s*[:=\].]"
        found = re.compile(pattern).search(text, at)
        at = found.end() if found else at
    return text.count("\n", 0, at) + 1


def _plain(value) -> str:
    text = str(value).lower()
    return AGREE.get(text, text)


def _number(value):
    """A whole number where the text is one, also as 1e9; else the text."""
    if isinstance(value, bool):
        return int(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return value
    return int(number) if number % 1 == 0 else number


def _counted(value) -> bool:
    """Whether the value is a number that is finite and not negative."""
    number = _number(value)
    return isinstance(number, (int, float)) and 0 <= number < math.inf


def _shown(value) -> str:
    return json.dumps(value) if isinstance(value, (bool, list, dict)) else str(value)
