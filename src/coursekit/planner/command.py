"""The planner from a shell: `python -m shardlab fits` says whether a model fits, `plan` which
layout is the fastest that does, `oom` what an out-of-memory message says. A wrong question gets one
sentence, and exit code 2.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from coursekit.formulas.command import say_refused
from coursekit.formulas.presets import GPUS, KERNELS, RECIPES, WITHOUT_BF16
from shardlab.common.cross_node_warning import CrossesNodes

from .configurations import read_configurations, tools
from .configurations_written import fastest_written, kernels_of, knobs_of
from .fits import USUAL_KERNELS, fits, gigabytes, json_of_nearest, lines_of_nearest, nearest
from .oom import explain_oom
from .plan import RULES, plan, words_of_knobs
from .speeds import SPEEDS


def add_fits(commands):
    parser = commands.add_parser(
        "fits",
        help="say whether a model fits on these GPUs, byte by byte",
        description="Print what the fullest rank holds, a line for each category with its formula"
        " and source, and what was assumed. Exit code 0 if it fits, 1 if not: then the nearest"
        " layout that fits is printed.",
        epilog="for example: python -m shardlab fits --model config.json"
        " --gpu 'H100 SXM 80GB' --gpus 64 --sequence 8192",
    )
    _add_question(
        parser, "how many; what the two degrees below leave are data-parallel ranks", required=False
    )
    names = ", ".join(tool.name for tool in tools().values())
    parser.add_argument(
        "--from",
        dest="files",
        action="append",
        metavar="FILE",
        help=f"read settings from a file of {names}; once more for one that belongs to it. Options"
        " count before the file",
    )
    _add_layout(parser)
    _add_software(parser)
    parser.set_defaults(run=partial(run_fits, parser))


def _add_question(parser, gpus, required=True):
    parser.add_argument(
        "--model", required=required, metavar="FILE", help="a config.json, or a model of the book"
    )
    parser.add_argument("--gpu", required=required, help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--gpus", required=required, type=int, help=gpus)
    parser.add_argument("--sequence", required=required, type=int, help="tokens in a sequence")


def _add_layout(parser):
    for name, words in words_of_knobs("help of fits").items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=words)
    parser.add_argument(
        "--sequence-parallel",
        action=argparse.BooleanOptionalAction,
        help="divide tokens between the layers among tensor-parallel ranks, too, as by default",
    )


def _add_software(parser):
    parser.add_argument(
        "--recipe", help=f"by default what the kernels run; there are {', '.join(RECIPES)}"
    )
    parser.add_argument(
        "--kernels", help=f"by default {USUAL_KERNELS}; there are {', '.join(KERNELS)}"
    )
    parser.add_argument(
        "--reserve-gb",
        type=float,
        help="GB set aside for what the allocator holds beyond tensors, by default what published"
        " runs reserved",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_plan(commands):
    parser = commands.add_parser(
        "plan",
        help="find the fastest layout that fits on these GPUs",
        description="Print the fastest layouts that fit, one for each pair of tensor and pipeline"
        " degrees: seconds of a step, bytes of the fullest rank, what limits each, and how far such"
        " answers were from published runs. Exit code 0 if one fits, 1 if none does: then the"
        " nearest layout that fits is printed.",
        epilog="for example: python -m shardlab plan --model config.json"
        " --gpu 'H100 SXM 80GB' --gpus 64 --batch 512 --sequence 8192",
    )
    _add_question(parser, "how many, all of which the layout uses")
    parser.add_argument(
        "--batch", required=True, type=int, help="sequences in a step, on all GPUs together"
    )
    for name, rule in RULES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"fix it: {rule}")
    parser.add_argument(
        "--ranks-per-node", type=int, help="GPUs of a node, by default 8; 72 on GB200 and GB300"
    )
    parser.add_argument(
        "--speed", help=f"the published runs whose speed is taken: {', '.join(SPEEDS)}"
    )
    parser.add_argument(
        "--write",
        choices=[name for name in tools() if name != "trainer"],
        help="print the fastest layout as this tool's configuration, among layouts that the tool"
        " can be told",
    )
    _add_software(parser)
    parser.set_defaults(run=run_plan)


def _given(asked: argparse.Namespace) -> dict:
    given = {name: value for name, value in vars(asked).items() if value is not None}
    del given["run"]
    return given


def run_fits(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
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
        parser.error(f"the following arguments are required: {', '.join(lacking)}")
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
    for knob in set(limits) & set(given):
        if given[knob] not in limits[knob]:
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
    print(f"{fastest}\n   for {tool.facts['version']}", file=sys.stderr)
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
        raise ValueError(refused) from None


def add_oom(commands):
    parser = commands.add_parser(
        "oom",
        help="say what an out-of-memory message means, and what helps",
        description="Print what each number of PyTorch's message is, whether gaps or bytes are"
        " missing, at which point of the step (from the traceback), and the nearest fixes with"
        " their bytes. With --model, --gpus and --sequence formulas say what the layout needs, and"
        " which single changes fit.",
        epilog="for example: python -m shardlab oom train.log, or paste the text and end it with"
        " Ctrl-D",
    )
    parser.add_argument("file", nargs="?", type=Path, help="a log; by default standard input")
    _add_question(parser, "how many train the model", required=False)
    _add_layout(parser)
    _add_software(parser)
    parser.set_defaults(run=run_oom)


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
            return say_refused(f"--{min(lacking)} is missing: formulas need it for the layout.")
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
