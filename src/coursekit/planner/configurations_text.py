"""Configurations of other tools as text: JSON, YAML, TOML and command lines as keys and values, and
the line of a key."""

import json
import re
import tomllib
from collections.abc import Iterator

from .configurations_table import InvalidConfiguration, as_written, tools


def parsed_file(path, text) -> dict:
    """The tree of a file; a command line's options as one level."""
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            tree = json.loads(text)
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
                f"--{key} is given twice: {as_written(seen[key])} and {as_written(value)} (line"
                f" {line_of_key(text, key, True)})."
            )
    yield from seen.items()


def _expanded(text, variables) -> str:
    def value(found):
        name, default = found[1] or found[3], found[2]
        return str(variables.get(name, default if default is not None else found[0]))

    text = re.sub(r"\$\{(\w+)(?::-\"?([^}\"]*)\"?)?\}|\$(\w+)", value, text)
    product = lambda found: str(int(found[1]) * int(found[2]))
    return re.sub(r"\$\(\(\s*(\d+)\s*\*\s*(\d+)\s*\)\)", product, text)


def leaves_of(tree, before="") -> Iterator[tuple]:
    """(dotted key, value) of every leaf."""
    for name, value in tree.items():
        key = f"{before}{name}"
        if isinstance(value, dict):
            yield from leaves_of(value, f"{key}.")
        else:
            yield key, value


def line_of_key(text, key, option) -> int:
    """The line of a dotted key, part after part."""
    at = 0
    for part in [key] if option else key.split("."):
        name = re.escape(part).replace(r"\-", "[-_]")
        pattern = rf"--{name}\b" if option else rf"(?<![\w.-])[\"']?{name}[\"']?\s*[:=\].]"
        found = re.compile(pattern).search(text, at)
        at = found.end() if found else at
    return text.count("\n", 0, at) + 1
