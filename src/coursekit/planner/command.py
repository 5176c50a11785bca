"""The planner from a shell: `python -m shardlab fits` says whether a model fits, `plan` which
layout is the fastest that does, `oom` what an out-of-memory message says.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable

from coursekit.formulas.presets import GPUS, OTHER_CARD, WITHOUT_BF16
from shardlab.common.cross_node_warning import CrossesNodes

from .configurations import read_configurations
from .configurations_table import tools
from .configurations_written import fastest_written, kernels_of, knobs_of
from .fits import fits
from .layout import gigabytes
from .nearest import json_of_nearest, lines_of_nearest, nearest
from .oom import explain_oom
from .plan import plan


def _given(asked: argparse.Namespace) -> dict:
    given = {name: value for name, value in vars(asked).items() if value is not None}
    del given["run"], given["parser"]
    return given


def run_fits(asked: argparse.Namespace) -> int:
    """Ask fits() with what files and options say."""
    given = _given(asked)
    as_json = given.pop("json")
    files = given.pop("files", ())
    read = read_configurations(files, **given) if files else None
    given = read.quantities | given if read else given
    needed = ("model", "gpu", "gpus", "sequence")
    if lacking := [f"--{name}" for name in needed if name not in given]:
        if read:
            print(f"{read}\n", file=sys.stderr)
        asked.parser.error(f"the following arguments are required: {', '.join(lacking)}")
    found = _answer(fits, given)
    if as_json:
        of_files = read.as_json() if read else {}
        print(json.dumps(found.as_json() | of_files, indent=1))
    else:
        print(*([read, ""] if read else []), found, sep="\n")
    return 0 if found.fits else 1


def run_plan(asked: argparse.Namespace) -> int:
    """Ask plan() with all that was given."""
    given = _given(asked)
    as_json = given.pop("json")
    if name := given.pop("write", None):
        return _write(tools()[name], given)
    found = _answer(plan, given)
    print(json.dumps(found.as_json(), indent=1) if as_json else found)
    return 0 if found.fits else 1


def _write(tool, given) -> int:
    """The file on standard output, and what is said of it on standard error."""
    limits = knobs_of(tool)
    for knob in limits:
        if knob in given and given[knob] not in limits[knob]:
            there = ", ".join(map(str, limits[knob]))
            raise ValueError(f"{tool.name} is told {knob} = {there}, and not {given[knob]}.")
    precision = "fp16" if given["gpu"] in WITHOUT_BF16 else "bf16"
    usual = dict(kernels=kernels_of(tool), recipe=tool.recipes.get(precision))
    found = _answer(plan, limits | usual | given)
    if not found.fits:
        print(found, file=sys.stderr)
        return 1
    fastest, text, outside = fastest_written(tool, found)
    print(text, end="")
    print(f"{fastest}\n   for {tool.version}", file=sys.stderr)
    if outside:
        said = ", ".join(f"{name} = {value}" for name, value in outside.items())
        print(f"   left to the script or the launcher: {said}", file=sys.stderr)
    return 0


def _answer(tool: Callable, given):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CrossesNodes)  # the answer says it
            return tool(given.pop("model"), **given)
    except TypeError as refused:
        raise ValueError(f"{refused}{OTHER_CARD * (given['gpu'] not in GPUS)}") from None


def run_oom(asked: argparse.Namespace) -> int:
    given = _given(asked)
    as_json = given.pop("json")
    if file := given.pop("file", None):
        text = file.read_text("utf-8", errors="replace")
    else:
        text = sys.stdin.read()
    found = explain_oom(text)
    answer = {"message": found.as_json()}
    if not as_json:
        print(found)
    if given:
        if "gpu" not in given and found.presets:
            given["gpu"] = found.presets[0]
        if lacking := {"model", "gpu", "gpus", "sequence"} - set(given):
            raise ValueError(f"--{min(lacking)} is missing: formulas need it for the layout.")
        layout = _answer(fits, given)
        changes = layout.nearest or tuple(nearest(layout.layout))
        answer["layout"] = layout.as_json() | dict(nearest=list(json_of_nearest(changes)))
        if not as_json:
            print(
                f"\nBy formula the layout needs {gigabytes(layout.needed_bytes)} of"
                f" {gigabytes(layout.memory_bytes)}. Single changes that fit:"
            )
            print(*lines_of_nearest(changes), sep="\n")
    if as_json:
        print(json.dumps(answer, indent=1))
    return 0
