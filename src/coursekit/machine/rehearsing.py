"""`python -m shardlab rehearse SCRIPT`: the unchanged script as one rank of many GPUs that are not
there: its bytes, its seconds, and whether it fits.

A script that cannot be rehearsed gets one sentence with its line.
"""

import argparse
import json
import sys
from pathlib import Path

from coursekit.formulas.command import say_refused
from coursekit.formulas.presets import GPUS
from coursekit.show.format import decimal_bytes

ORDER = "parameters", "gradients", "optimizer", "gathered", "activations"
ORDER += "temporaries", "buffers and messages"
WARNING = (
    "the script itself runs: what it loads it loads, and what it writes outside of its working"
    " folder stays."
)
GPUS_OF_A_NODE, MOST_WAITS, MOST_CHANGES = 8, 5, 3
LEAST_SAVED = 0.02  # of the peak


def add_rehearse(commands):
    parser = commands.add_parser(
        "rehearse",
        help="run a training script as one rank of GPUs that are not there",
        description="Run an unchanged PyTorch script for CUDA and NCCL as one rank of so many GPUs,"
        " on tensors without contents, for three of its steps. Print the bytes at the peak with the"
        " lines that made the most, whether they fit, and the seconds of a step in virtual time."
        " Exit code 0 if they fit, 1 if not.",
        usage="%(prog)s --gpus N [OPTION ...] SCRIPT [ARGUMENT ...]",
        epilog="for example: python -m shardlab rehearse --gpus 64 --gpu 'H100 SXM 80GB' train.py"
        f" --lr 0.1. Mind that {WARNING}",
    )
    parser.add_argument("--gpus", required=True, type=int, help="how many, one for each rank")
    parser.add_argument("--gpu", default="H100 SXM 80GB", help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--nodes", type=int, help="by default 8 GPUs are in each")
    parser.add_argument("--rank", type=int, default=0, help="which of the ranks, by default 0")
    parser.add_argument("--trace", type=Path, help="a file for the trace, which Perfetto opens")
    parser.add_argument(
        "--synthetic", action="store_true", help="let loaders yield their first batch again"
    )
    parser.add_argument(
        "--seconds", type=float, default=300, help="after which the script is ended, by default 300"
    )
    parser.add_argument("--json", action="store_true", help="print JSON as the last thing")
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the script is a module's name"
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="those of the script")
    parser.set_defaults(run=run_rehearse)


def run_rehearse(asked: argparse.Namespace) -> int:
    if wrong := refused(asked):
        return say_refused(wrong)
    from coursekit.lab.virtual import recorded_gpu  # they load torch
    from ranklab.rehearse import CannotRehearse, rehearse
    from shardlab.common.torch_internals import NoStandIn

    print(f"a rehearsal of {asked.script}: {WARNING}", file=sys.stderr)
    per_node = asked.gpus // asked.nodes if asked.nodes else GPUS_OF_A_NODE
    try:
        found = rehearse(
            asked.script.resolve(),
            asked.arguments,
            recorded_gpu(asked.gpu, per_node),
            GPUS[asked.gpu].quantities["gpu_memory_bytes"],
            ranks=asked.gpus,
            rank=asked.rank,
            per_node=per_node,
            seconds=asked.seconds,
            synthetic=asked.synthetic,
            module=asked.module,
        )
    except (CannotRehearse, NoStandIn) as cannot:
        return say_refused(cannot)
    if asked.trace:
        found.step.save_trace(asked.trace)
    if asked.json:
        print(json.dumps(found.as_json(), indent=1))
        return 0 if found.fits else 1
    lines = [heading(asked, per_node), *lines_of_bytes(found), *changes(found, asked.gpus)]
    print("\n".join([*lines, *lines_of_seconds(found)]))
    if asked.trace:
        print(f"{asked.trace}: open it at https://ui.perfetto.dev")
    return 0 if found.fits else 1


def refused(asked: argparse.Namespace) -> str:
    """Why the question cannot be answered, or nothing."""
    if not (asked.module or asked.script.is_file()):
        return f"{asked.script} is not there: name the script that trains."
    if asked.gpu not in GPUS:
        return f"--gpu {asked.gpu}: there are {', '.join(GPUS)}."
    if asked.gpus < 1:
        return f"--gpus {asked.gpus}: it must be at least 1."
    if not 0 <= asked.rank < asked.gpus:
        return f"--rank {asked.rank}: {asked.gpus} GPUs have ranks 0 to {asked.gpus - 1}."
    if asked.nodes is not None and (asked.nodes < 1 or asked.gpus % asked.nodes):
        return f"--nodes {asked.nodes}: it must divide --gpus {asked.gpus}."
    if not asked.seconds > 0:
        return f"--seconds {asked.seconds}: it must be above 0."
    if asked.trace and (asked.trace.is_dir() or not asked.trace.absolute().parent.is_dir()):
        return f"--trace {asked.trace}: name a file in a folder that is there."
    return ""


def heading(asked: argparse.Namespace, per_node: int) -> str:
    nodes = -(-asked.gpus // per_node)
    many = f"{asked.gpus} x {asked.gpu}" + (f" on {nodes} nodes" if nodes > 1 else "")
    return f"{asked.script.name}, rank {asked.rank} of {many}: a step after two of warm-up"


def lines_of_bytes(found) -> list[str]:
    """The bytes at the peak, by purpose, each with the line that made the most of them."""
    sizes, lines = found.by_purpose(), found.largest_lines()
    rows = [
        f"{purpose:32}{decimal_bytes(sizes[purpose]):>10}   {lines[purpose][:60]}"
        for purpose in ORDER
        if sizes.get(purpose)
    ]
    rest = found.memory_bytes - found.peak_bytes
    told = decimal_bytes(abs(rest))
    fits = f"fits, {told} are free" if found.fits else f"{told} too many"
    whole = f"{'the peak':32}{decimal_bytes(found.peak_bytes):>10}   {fits}"
    beside = f"of the {decimal_bytes(found.memory_bytes)} that a card has beside its context"
    return [*rows, f"{whole} {beside}"]


def changes(found, ranks: int) -> list[str]:
    """The cheapest changes that leave fewer bytes at the peak, by formula."""
    has, spared = found.by_purpose(), 1 - 1 / ranks
    states = sum(has.get(purpose, 0) for purpose in ("parameters", "gradients", "optimizer"))
    whole = ranks > 1 and not found.sharded
    rows = [
        (whole * spared * has.get("optimizer", 0), "shard the optimizer: as many bytes are sent"),
        (whole * spared * states, "fully_shard: 1.5 times the bytes, and a unit is gathered"),
        (found.of_batch / 2, "at most, by half the microbatch, twice as many: messages hide less"),
        (has.get("activations", 0), "at most, by recomputing: a third more computing"),
    ]
    told = [(saved, how) for saved, how in rows if saved > LEAST_SAVED * found.peak_bytes]
    alone = "  the script starts no process group: each GPU trains a model of its own"
    return [alone] * (ranks > 1 and not found.grouped) + [
        f"  {decimal_bytes(saved)} less: {how}" for saved, how in told[:MOST_CHANGES]
    ]


def lines_of_seconds(found) -> list[str]:
    waits = [
        f"  {count} x {wait.place}: {wait.source}"
        for wait, count in sorted(found.waits.items(), key=lambda one: -one[1])
    ]
    if more := len(waits) - MOST_WAITS:
        waits[MOST_WAITS:] = [f"  and at {more} more lines"] if more > 0 else []
    from coursekit.lab.virtual import CLOCK

    lowest, highest = CLOCK["held_out_lowest"], CLOCK["held_out_highest"]
    error = (
        f"  held-out steps of one recorded H100 took {lowest:g} to {highest:g} of its seconds here;"
        " of messages it says nothing"
    )
    return [str(found.step), *waits, error]
