"""The nearest layouts that fit where one does not: what changes, as options of `fits`.

for change, layout in nearest(asked):       # "--zero-stage 3", a RankLayout
    ...
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

from coursekit.formulas.presets import GPUS

from .layout import (
    ADAPTED,
    FUSED_LOSS,
    ON_THE_HOST,
    USUAL_KERNELS,
    WHOLE_LAYERS,
    RankLayout,
    gigabytes,
    in_library,
    option,
)

MOST_GPUS = 65_536
MOST_TENSOR_PARALLEL, MOST_PIPELINE_PARALLEL = 8, 64
TILE_TOKENS = 4096  # of the smallest tile that is proposed, as ALST's runs had them
SMALL_MOMENTS = ("bf16, 8-bit Adam",)  # recipes that one GPU may need


def nearest(layout: RankLayout) -> Iterator[tuple[str, RankLayout]]:
    """The smallest change that fits, for each thing that can change, and on one GPU with
    recomputation; where no such change does, all at once that cost no time: on one GPU for
    sequences halved again and again, then on more GPUs, then for shorter sequences there."""
    single = list(_those_that_fit(_single_changes(layout)))
    found = single or _those_that_fit((_tiled(layout), _frugal_on_one_gpu(layout)))
    yield from ((difference(layout, tried), tried) for tried in found)
    for sequence in () if single else (layout.sequence // step for step in (1, 2, 4, 8, 16)):
        several = [layout.gpus, *_doubles(layout.gpus)] if sequence else ()
        frugal = (_frugal(replace(layout, sequence=sequence, gpus=gpus)) for gpus in several)
        for tried in _those_that_fit(frugal):
            yield difference(layout, tried), tried
            return


def _those_that_fit(changes) -> Iterator[RankLayout]:
    """The first layout of each change that fits."""
    for layouts in changes:
        yield from islice((tried for tried in layouts if tried.fits), 1)


def _each(layout, name, values, **more) -> list[RankLayout]:
    return [replace(layout, **{name: value}, **more) for value in values]


def _repairs(layout):
    """Changes of one GPU by their cost, each with no more recomputation than it needs: states on
    the host, and parameters and gradients, too; smaller moments; adapters."""
    if layout.gpus > 1:
        return
    there = [] if layout.offload else [dict(offload=1)]
    there += [dict(zero_stage=3, offload=1)] if layout.zero_stage < 3 else []
    recipes = (*SMALL_MOMENTS, *ADAPTED)
    smaller = recipes[recipes.index(layout.recipe) + 1 if layout.recipe in recipes else 0 :]
    taken = [
        [dict(recipe=name) for name in smaller if name in of] for of in (SMALL_MOMENTS, ADAPTED)
    ]
    policies = range(layout.recompute_policy, WHOLE_LAYERS + 1)
    for steps in (there, *taken):
        yield [one for step in steps for one in _each(layout, "recompute_policy", policies, **step)]


def _frugal_on_one_gpu(layout):
    for sequence in (layout.sequence, *_halves(layout.sequence)):
        frugal = replace(layout, microbatch=1, kernels=_fused(layout.kernels), sequence=sequence)
        for changes in _repairs(frugal):
            yield from changes


def _tiled(layout):
    """Tiles of tokens, then checkpoints on the host, too, of layers that a library recomputes; with
    one GPU states are there as well."""
    again = replace(layout, recompute_policy=WHOLE_LAYERS, kernels=_fused(layout.kernels))
    if layout.gpus == 1:
        again = replace(again, zero_stage=3, offload=1)
    for on_host in range(layout.checkpoints_on_host, 2) if in_library(layout.kernels) else ():
        yield from _each(again, "sequence_tiles", _more_tiles(layout), checkpoints_on_host=on_host)


def _more_tiles(layout):
    return _doubles(
        layout.sequence_tiles, layout.sequence // layout.context_parallel // TILE_TOKENS
    )


def _frugal(layout):
    """The layout with all that costs no time: the degrees as they are, and then ever more ranks of
    a copy. Pipelines come with stage 1: they reduce gradients once, at the end of a step."""
    frugal = replace(layout, microbatch=1, kernels=_fused(layout.kernels))
    yield replace(frugal, zero_stage=3)
    for ranks in _doubles(1, MOST_TENSOR_PARALLEL * MOST_PIPELINE_PARALLEL):
        t = max(layout.tensor_parallel, min(ranks, MOST_TENSOR_PARALLEL))
        p = max(layout.pipeline_parallel, ranks // t)
        if layout.gpus % (t * p) == 0:
            yield replace(
                frugal, zero_stage=3 if p == 1 else 1, tensor_parallel=t, pipeline_parallel=p
            )


def _single_changes(layout) -> Iterator[list[RankLayout]]:
    """Layouts that differ in one thing each, from the least change to the largest."""
    each, again = partial(_each, layout), layout.recompute_policy
    yield each("zero_stage", range(layout.zero_stage + 1, 4))
    if layout.zero_stage and layout.gpus > 1:
        yield each("offload", [1])
    yield each("microbatch", _halves(layout.microbatch))
    yield each("kernels", [_fused(layout.kernels)])
    yield each("recompute_policy", range(again + 1, WHOLE_LAYERS + 1))
    if again == WHOLE_LAYERS and in_library(layout.kernels):
        yield each("sequence_tiles", _more_tiles(layout))
        yield each("checkpoints_on_host", [1])
    yield from _repairs(layout)
    yield each("tensor_parallel", _doubles(layout.tensor_parallel, MOST_TENSOR_PARALLEL))
    if layout.sizes.get("experts"):
        yield each("expert_parallel", _doubles(layout.expert_parallel))
    mix = layout.context_mix if layout.context_parallel > 1 else None  # without: the usual one
    contexts = _doubles(layout.context_parallel, layout.gpus)
    yield each("context_parallel", contexts, context_mix=mix)
    yield each("pipeline_parallel", _doubles(layout.pipeline_parallel, MOST_PIPELINE_PARALLEL))
    if layout.zero_stage:
        yield each("gpus", _doubles(layout.gpus))
    yield each("sequence", [s for s in _halves(layout.sequence) if s >= 128])
    yield each("gpu", sorted(GPUS, key=lambda name: GPUS[name].quantities["gpu_memory_bytes"]))


def difference(layout: RankLayout, other: RankLayout) -> str:
    """The change from one layout to the other, as options of the command."""
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
    names = ("zero_stage", "offload", *degrees, "microbatch", "kernels", "recipe")
    names += ("recompute_policy", "sequence_tiles", "checkpoints_on_host")
    names += ("gpus", "sequence", "gpu")
    values = {name: getattr(other, name) for name in names}
    return " ".join(
        f"{option(name)} " + (f'"{value}"' if isinstance(value, str) else str(value))
        for name, value in values.items()
        if getattr(layout, name) != value
    )


def lines_of_nearest(found) -> Iterator[str]:
    for one in json_of_nearest(found):
        host = f", and {gigabytes(one['host_bytes'])} on the host" if one["host_bytes"] else ""
        yield f"  {one['change']}: {gigabytes(one['needed_bytes'])}{host}"


def json_of_nearest(found) -> Iterator[dict]:
    for change, layout in found:
        values = layout.solved()
        needed = layout.needed_bytes(values)
        yield dict(change=change, needed_bytes=needed, host_bytes=values[ON_THE_HOST])


def _fused(kernels):
    return FUSED_LOSS if kernels == USUAL_KERNELS else kernels


def _halves(number):
    while number > 1:
        number //= 2
        yield number


def _doubles(number, most=MOST_GPUS):
    while (number := 2 * number) <= most:
        yield number
