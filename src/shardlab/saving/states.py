"""The saved parts of a run besides its shards, and the checks of a manifest."""

import random
import sys
from pathlib import Path

import torch

from .durable import Damaged
from .folders import MANIFEST, file_of, rest_of, step_of
from .parts import PartOfRun, first_difference

FORMAT = 3  # 1 and 2, whose files had chunks of flat tensors, are no longer read


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


def parts_in_manifest(manifest: dict, place: Path) -> list[PartOfRun]:
    """The parts. Raises Damaged for a manifest that this code did not write. Nothing in a manifest
    is used before this check."""
    name = f"{place.name}/{MANIFEST}"
    if (version := manifest.get("format", 1)) != FORMAT:
        raise Damaged(
            f"{name} has format {version!r}, this shardlab reads format {FORMAT}: resume with the"
            " version that saved."
        )
    if manifest.get("step") != step_of(place):
        raise Damaged(f"{name} is the one of step {manifest.get('step')}.")
    try:
        files = dict(manifest["files"])
        parts = manifest["parts"]
        found = [
            PartOfRun(
                list(part["ranks"]),
                dict(part["contents"]),
                [
                    [(str(name), start, stop) for name, start, stop in each]
                    for each in part["written"]
                ],
            )
            for part in parts
            if len(part["ranks"]) < len(files)
        ]
        ranks = sorted(rank for part in found for rank in part.ranks)
        wanted = {*map(file_of, ranks), *map(rest_of, range(len(parts)))}
        usable = all([type(each) for each in written] == [int, str] for written in files.values())
    except (KeyError, TypeError, ValueError, AttributeError):
        usable = False
    if not usable or not ranks or ranks != list(range(len(ranks))) or set(files) != wanted:
        raise Damaged(f"{name} is not one that save() wrote.")
    return found


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
