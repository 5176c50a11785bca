"""A model's sizes out of its Hugging Face `config.json`, under the names that formulas take.

    parameters(**read_config("config.json"))

What an architecture has beside its sizes (biases, norms, gates) is in data/architectures.json; what
the table cannot say is refused, never guessed.
"""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from coursekit.formulas.asking import close_names
from coursekit.formulas.registry import BOOK, InvalidQuantity
from coursekit.sentences import data_text, first_sentence

SAID_AGAIN = {"experts_per_token": "num_experts_per_tok"}  # in gpt-oss: a field, and its double


class InvalidModelConfig(ValueError):
    """Why a file is not the config.json of a model that the formulas know: one sentence."""


@dataclass(frozen=True)
class Architecture:
    """The facts of a `model_type`. `names` are the fields of its sizes, several where the size is
    their product. `fixed` are quantities that the architecture alone decides, `flags` the fields
    that decide others by true and false. `tied` says whether the head is tied where the file is
    silent. `only` are the values of fields without which the formulas would be wrong, `older` the
    names that some files have instead."""

    fixed: dict
    names: dict
    tied: bool = False
    head_size: int = 0
    only: dict = field(default_factory=dict)
    older: dict = field(default_factory=dict)
    flags: dict = field(default_factory=dict)
    more_positions: int = 0  # rows of the position table beyond the longest sequence


_TABLE = json.loads(data_text("architectures.json"))
ARCHITECTURES = {
    kind: Architecture(
        **{name: fact for name, fact in facts.items() if name not in ("names", "note")},
        names=_TABLE["names"][facts["names"]],
    )
    for kind, facts in _TABLE["architectures"].items()
}
CAUSAL_MODELS = ("ForCausalLM", "LMHeadModel")
OPTIONAL = ("key_value_heads", "head_size", "feed_forward", "query_latent")  # have a default


def read_config(source) -> dict[str, int]:
    """The quantities of a model. `source` is the path of a config.json, or what is in one. Raises
    InvalidModelConfig with one sentence for a file that is missing, is no JSON, is no model's
    configuration, or is of an architecture that the formulas do not know."""
    config, name = (source, "the config") if isinstance(source, dict) else _loaded(Path(source))
    kind, made_for = config.get("model_type"), config.get("architectures") or []
    made_for = made_for if isinstance(made_for, list) else [made_for]
    known = dict(config=config, name=name, kind=kind, close_names=close_names, dumps=json.dumps)
    # what is no model with a head over the vocabulary
    unlike = [one for one in made_for if not (isinstance(one, str) and one.endswith(CAUSAL_MODELS))]
    known |= dict(architectures=ARCHITECTURES, unlike=unlike)
    if why := first_sentence("knobs.md", "files that are no model's config.json", known):
        raise InvalidModelConfig(why)
    return _quantities(config, ARCHITECTURES[kind], name)


def _loaded(path):
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidModelConfig(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        place = ""
        if isinstance(error, json.JSONDecodeError):
            place = f" (line {error.lineno}, column {error.colno}: {error.msg})"
        raise InvalidModelConfig(
            f"{path} is not JSON{place}: it is not the config.json of a model on Hugging Face."
        ) from None
    if not isinstance(config, dict):
        raise InvalidModelConfig(
            f"{path} holds a {type(config).__name__}, not an object with names: it is not the"
            " config.json of a model on Hugging Face."
        )
    return config, str(path)


def _refuse_unknown_experts(config, architecture, name):
    """Raise InvalidModelConfig for a field of experts that is in no formula."""
    read = {field_name for fields in architecture.names.values() for field_name in several(fields)}
    for field_name, value in config.items():
        again = config.get(SAID_AGAIN.get(field_name)) == value
        if "expert" in field_name and value and field_name not in read and not again:
            said = f"{field_name} = {json.dumps(value)}: the formulas know"
            raise InvalidModelConfig(f"{name}: {said} {config['model_type']} without it.")


def several(fields):
    return (fields,) if isinstance(fields, str) else fields


def _number(config, field_name, name, optional):
    value = config.get(field_name)
    if value is None and not optional:
        raise InvalidModelConfig(
            f"{name} has no {field_name}, which {config['model_type']} needs: it is not a"
            " complete config.json."
        )
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1:
        said = f"{field_name} = {json.dumps(value)} is not a whole number."
        raise InvalidModelConfig(f"{name}: {said}")
    return int(value)


def _quantities(config, architecture, name):
    _refuse_unknown_experts(config, architecture, name)
    for field_name, wanted in architecture.only.items():
        found = config.get(field_name, wanted)
        alike = isinstance(found, bool) == isinstance(wanted, bool)  # 0 is not false
        if found is not None and not (alike and found == wanted):
            raise InvalidModelConfig(
                f"{name}: {field_name} = {json.dumps(found)}: the formulas know"
                f" {config['model_type']} with {json.dumps(wanted)} alone."
            )
    config = {**{new: config.get(old) for old, new in architecture.older.items()}, **config}
    sizes = {}
    for quantity, fields in architecture.names.items():
        optional = quantity in OPTIONAL
        values = [_number(config, one, name, optional) for one in several(fields)]
        if None not in values:
            sizes[quantity] = math.prod(values)
    flags = architecture.flags.items()
    sizes |= {quantity: int(bool(config.get(field_name))) for quantity, field_name in flags}
    sizes.setdefault("key_value_heads", sizes["heads"])
    sizes.setdefault("head_size", architecture.head_size)
    if "feed_forward" not in sizes:
        if "n_inner" not in architecture.names.values():
            raise InvalidModelConfig(f"{name} has no {architecture.names['feed_forward']}.")
        sizes["feed_forward"] = 4 * sizes["hidden"] if isinstance(sizes["hidden"], int) else 0
    if architecture.more_positions and isinstance(sizes["max_sequence"], int):
        sizes["max_sequence"] += architecture.more_positions
    tied = config.get("tie_word_embeddings")
    if not (tied is None or isinstance(tied, bool)):
        said = f"tie_word_embeddings = {json.dumps(tied)}: it is true, false or absent."
        raise InvalidModelConfig(f"{name}: {said}")
    tied = architecture.tied if tied is None else tied
    try:
        return BOOK.validate(**sizes, **architecture.fixed, tied_head=int(tied))
    except InvalidQuantity as refused:
        raise InvalidModelConfig(f"{name}: {refused}") from None
