"""The saved parts of a run besides its shards, and the checks of a manifest."""

import hashlib
import random
import sys
from pathlib import Path

import torch
from torch import Tensor

from shardlab.saving.durable import Damaged
from shardlab.saving.folders import MANIFEST, REST, file_of, step_of

FORMAT = 1


def settings(optimizer) -> list[dict]:
    """Learning rates and other settings of each parameter group."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def refuse_another(manifest: dict, here: dict[str, str]):
    there = manifest["contents"]
    for name in {**there, **here}:
        if there.get(name) != here.get(name):
            raise ValueError(
                f"step-{manifest['step']}: {name} was {there.get(name, 'not there')}, now it is"
                f" {here.get(name, 'not there')}. Resume the model and the optimizer that were"
                " saved."
            )


def check_manifest(manifest: dict, place: Path):
    """Raise Damaged for a manifest that this code did not write. Nothing in a manifest is used
    before this check."""
    name = f"{place.name}/{MANIFEST}"
    if manifest.get("format", FORMAT) != FORMAT:
        raise Damaged(
            f"{name} has format {manifest['format']!r}, this shardlab reads format {FORMAT}: resume"
            " with the version that saved."
        )
    kinds = dict(step=int, ranks=int, files=dict, flats=list, contents=dict)
    for key, kind in kinds.items():
        if not isinstance(manifest.get(key), kind) or isinstance(manifest[key], bool):
            raise Damaged(f"{name} has no usable {key!r}.")
    if manifest["step"] != step_of(place):
        raise Damaged(f"{name} is the one of step {manifest['step']}.")
    files = manifest["files"]
    if len(files) != manifest["ranks"] + 1 or not 1 <= manifest["ranks"] < 2**20:
        raise Damaged(f"{name} speaks of {manifest['ranks']:,} ranks and of {len(files)} files.")
    for file in [REST, *map(file_of, range(manifest["ranks"]))]:
        if file not in files:
            raise Damaged(f"{name} does not speak of {file}.")


def hashes_of(buffers: dict[str, Tensor]) -> dict[str, str]:
    """A digest of each buffer's values."""
    found = {}
    for name, buffer in buffers.items():
        values = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found[name] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
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
