"""The saved parts of a run besides its shards, and the checks of a manifest."""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from .durable import Damaged
from .folders import MANIFEST, file_of, rest_of, step_of
from .parts import PartOfRun, first_difference, plain_names

FORMAT = 2  # 1: one part, and the names as wrappers had them


def settings(optimizer) -> list[dict]:
    """Learning rates and other settings of each parameter group."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def refuse_another(step: int, there: dict[str, str], here: dict[str, str]):
    if differs := first_difference(there, here):
        name, was, now = differs
        raise ValueError(
            f"step-{step}: {name} was {was}, now it is {now}. Resume the model and the optimizer"
            " that were saved." + CUT_ANEW * (", part " in was + now)
        )


CUT_ANEW = (
    " What tensor parallelism has cut is resumed on as many ranks of it; then whole_state_dict"
    " brings it to any number."
)


def parts_in_manifest(manifest: dict, place: Path) -> tuple[list[PartOfRun], Callable[[str], str]]:
    """(the parts, what names are called now). Raises Damaged for a manifest that this code did not
    write. Nothing in a manifest is used before this check."""
    name = f"{place.name}/{MANIFEST}"
    if manifest.get("format", 1) not in (1, FORMAT):
        raise Damaged(
            f"{name} has format {manifest['format']!r}, this shardlab reads format {FORMAT} and"
            " older: resume with the version that saved."
        )
    if manifest.get("step") != step_of(place):
        raise Damaged(f"{name} is the one of step {manifest.get('step')}.")
    files, parts = manifest.get("files"), manifest.get("parts")
    if manifest.get("format", 1) == 1 and isinstance(files, dict):  # all ranks held the same
        ranks = list(range(len(files) - 1))
        parts = [{**manifest, "ranks": ranks if manifest.get("ranks") == len(ranks) else None}]
    for key, value, kind in ("files", files, dict), ("parts", parts, list):
        if not isinstance(value, kind):
            raise Damaged(f"{name} has no usable {key!r}.")
    for part in parts:
        for key, kind in dict(ranks=list, flats=list, contents=dict).items():
            if not isinstance(part, dict) or not isinstance(part.get(key), kind):
                raise Damaged(f"{name} has no usable {key!r}.")
    ranks = [rank for part in parts for rank in part["ranks"]]
    wanted = {*map(file_of, range(len(ranks))), *map(rest_of, range(len(parts)))}
    if sorted(ranks) != list(range(len(ranks))) or set(files) != wanted or not parts:
        raise Damaged(f"{name} speaks of ranks {ranks} and of the files {', '.join(files)}.")
    for file, written in files.items():
        if not isinstance(written, list) or [type(each) for each in written] != [int, str]:
            raise Damaged(f"{name} has no usable size and SHA-256 of {file}.")
    plain = plain_names(name for part in parts for flat in part["flats"] for name, _ in flat)
    return [
        PartOfRun(
            part["ranks"],
            [[(plain(name), shape) for name, shape in flat] for flat in part["flats"]],
            {plain(name): what for name, what in part["contents"].items()},
        )
        for part in parts
    ], plain


def random_states() -> dict:
    """The states of the random generators of training, in types that torch.load reads with
    weights_only."""
    states = {"cpu": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = [kind, keys.tolist(), *rest]
    return states


def set_random_states(states: dict):
    torch.set_rng_state(states["cpu"])
    if "python" in states:
        version, internal, gauss = states["python"]
        random.setstate((version, tuple(internal), gauss))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(states["numpy"]))
