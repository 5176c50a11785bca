"""`python -m shardlab rehearse SCRIPT`: the unchanged script as one rank of many GPUs that are not
there, or as several, one after the other: its bytes, its seconds, and whether it fits.

A script that cannot be rehearsed gets one sentence with its line. Each rank is a process of its
own: what replaces torch.cuda stays there, and a script that takes no signal is ended from outside.
"""

import argparse
import json
import sys
from collections import Counter
from multiprocessing import connection, get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from coursekit.formulas.asking import UnknownPreset
from coursekit.formulas.presets import GPUS, OTHER_CARD
from coursekit.formulas.registry import BOOK
from coursekit.sentences import first_sentence, sentences, with_values
from coursekit.show.format import decimal_bytes

ORDER = "parameters", "gradients", "optimizer", "gathered", "activations"
ORDER += "temporaries", "buffers and messages"
WARNING = (
    "the script itself runs: what it loads it loads, and what it writes outside of its working"
    " folder stays."
)
GPUS_OF_A_NODE, MOST_WAITS, MOST_CHANGES = 8, 5, 3
LEAST_SAVED = 0.02  # of the peak
GRACE = 10  # seconds that a script has more, where it takes no signal


def run_rehearse(asked: argparse.Namespace) -> int:
    del asked.parser  # what is asked goes to another process
    if wrong := refused(asked):
        raise ValueError(wrong)
    print(f"a rehearsal of {asked.script}: {WARNING}", file=sys.stderr)
    own = vars(asked).keys() - {"module", "script", "arguments", "run"}
    for word in asked.arguments:
        if word.startswith("--") and word[2:].partition("=")[0] in own:
            print(f"{word} stands after {asked.script}, which gets it.", file=sys.stderr)
    ranks, found = ranks_in(asked), []
    for rank in ranks:
        answer = rehearsed(asked, rank)
        if isinstance(answer, str):
            raise ValueError(f"rank {rank}: {answer}" if len(ranks) > 1 else answer)
        found.append(answer)
    if asked.json:
        answers = [answer for answer, _ in found]
        print(json.dumps(answers[0] if len(ranks) == 1 else dict(ranks=answers), indent=1))
    else:
        print("\n".join(found[0][1] if len(ranks) == 1 else table(asked, found)))
        if asked.trace:
            print(f"{asked.trace}: open it at https://ui.perfetto.dev")
    return 0 if all(answer["fits"] for answer, _ in found) else 1


def ranks_in(asked: argparse.Namespace) -> list[int]:
    """The ranks that --rank names. Raises ValueError for a word that is no number."""
    places = dict(first=0, middle=asked.gpus // 2, last=asked.gpus - 1)
    words = [word.strip() for word in asked.rank.split(",")]
    return list(dict.fromkeys(places[word] if word in places else int(word) for word in words))


def rehearsed(asked: argparse.Namespace, rank: int) -> tuple[dict, list[str]] | str:
    """The answer of a process of its own, as JSON and in lines, or why there is none."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    with TemporaryDirectory() as folder:  # which goes with a process that is killed, too
        process = spawn.Process(target=rehearse_rank, args=(asked, rank, folder, there))
        process.start()
        there.close()
        try:
            for limit in (None, asked.seconds + GRACE):  # until the script begins, and then
                if not connection.wait([here, process.sentinel], limit):
                    return (
                        f"{asked.script.name} ran when {asked.seconds:g} seconds were over, and"
                        " took no signal."
                    )
                answer = here.recv()
            return answer
        except EOFError:
            process.join()
            return f"{asked.script.name} ended its process with exit code {process.exitcode}."
        finally:
            process.kill()
            process.join()


def rehearse_rank(asked: argparse.Namespace, rank: int, folder: str, told):
    from coursekit.lab.virtual import recorded_gpu  # they load torch
    from ranklab.rehearse import CannotRehearse, rehearse
    from ranklab.rehearse.stand_in import NoStandIn

    per_node = nodes_of(asked)[1]
    told.send(None)
    try:
        found = rehearse(
            asked.script.resolve(),
            asked.arguments,
            recorded_gpu(asked.gpu, per_node),
            GPUS[asked.gpu].quantities["gpu_memory_bytes"],
            Path(folder),
            ranks=asked.gpus,
            rank=rank,
            per_node=per_node,
            seconds=asked.seconds,
            synthetic=asked.synthetic,
            module=asked.module,
            nccl_bytes=nccl_bytes,
        )
        if asked.trace:
            found.step.save_trace(asked.trace)
    except (CannotRehearse, NoStandIn) as cannot:
        found = str(cannot)
    else:
        lines = [heading(asked, f"rank {rank}"), *lines_of_bytes(found)]
        lines += [*changes(found, asked.gpus), *lines_of_seconds(found, asked)]
        found = dict(rank=rank) | found.as_json(), lines
    sys.stdout.flush()
    told.send(found)


def nccl_bytes(groups: int, exchanges: bool) -> int:
    """NCCL's buffers, as `fits` has them."""
    name = "rank_communicator_bytes"
    given = dict(rank_groups=groups, expert_parallel=1 + exchanges, exchanges_heads=0)
    return BOOK.evaluate([name], **given)[name]


def nodes_of(asked: argparse.Namespace) -> tuple[int, int]:
    """How many nodes there are, and how many GPUs in each."""
    per_node = asked.gpus // asked.nodes if asked.nodes else GPUS_OF_A_NODE
    return -(-asked.gpus // per_node), per_node


def refused(asked: argparse.Namespace) -> str:
    """Why the question cannot be answered, or nothing."""
    try:
        ranks = ranks_in(asked)
    except ValueError:
        ranks = None
    known = vars(asked) | dict(GPUS=GPUS, ranks=ranks)
    known |= dict(unknown=UnknownPreset("gpu", asked.gpu, GPUS), OTHER_CARD=OTHER_CARD)
    return first_sentence("machine.md", "what rehearse cannot be asked", known)


def heading(asked: argparse.Namespace, ranks: str) -> str:
    nodes, _ = nodes_of(asked)
    many = f"{asked.gpus} x {asked.gpu}" + (f" on {nodes} nodes" if nodes > 1 else "")
    return f"{asked.script.name}, {ranks} of {many}: a step after two of warm-up"


def table(asked: argparse.Namespace, found: list[tuple[dict, list[str]]]) -> list[str]:
    """A line for each rank."""
    rows = [("rank", "peak", "in all", "seconds", "")]
    for answer, _ in found:
        free = answer["free_bytes"]
        fits = f"fits, {decimal_bytes(free)} free" if free >= 0 else f"{decimal_bytes(-free)} short"
        sizes = answer["peak_bytes"], answer["card_bytes"] - free
        seconds = f"{answer['seconds']:.4g}"
        rows.append((f"{answer['rank']}", *map(decimal_bytes, sizes), seconds, fits))
    lines = [f"{a:>6}{b:>11}{c:>11}{d:>11}   {e}".rstrip() for a, b, c, d, e in rows]
    return [heading(asked, f"{len(found)} ranks"), *lines]


def lines_of_bytes(found) -> list[str]:
    """The bytes at the peak, by purpose, each with the line that made the most of them, and what no
    tensor holds."""
    sizes, lines = found.by_purpose(), found.largest_lines()
    rows = [(purpose, sizes.get(purpose), lines.get(purpose, "")[:60]) for purpose in ORDER]
    segments = f"the allocator holds {decimal_bytes(found.reserved_bytes)} for it"
    rows += [("the peak", found.peak_bytes, segments), ("NCCL", found.nccl_bytes, "its buffers")]
    rows += [("the context", found.card_bytes - found.memory_bytes, "CUDA and cuBLAS")]
    told = f"fits, {decimal_bytes(found.free_bytes)} are free"
    if not found.fits:
        told = f"{decimal_bytes(-found.free_bytes)} too many"
    told += f" of the {decimal_bytes(found.card_bytes)} of a card"
    rows += [("in all", found.card_bytes - found.free_bytes, told)]
    return [f"{name:32}{decimal_bytes(size):>10}   {more}" for name, size, more in rows if size]


def changes(found, ranks: int) -> list[str]:
    """The cheapest changes that leave fewer bytes at the peak, by formula."""
    has, least = Counter(found.by_purpose()), LEAST_SAVED * found.peak_bytes
    known = dict(found=found, has=has, several=ranks > 1, spared=1 - 1 / ranks)
    notes = sentences("machine.md", "what a rehearsal leaves out", known)
    lines = with_values("machine.md", "less at the peak of a rehearsed script", known)
    told = [f"  {decimal_bytes(saved)} less: {how}" for saved, _, how in lines if saved > least]
    return [*(f"  {words}" for _, words in notes), *told[:MOST_CHANGES]]


def lines_of_seconds(found, asked: argparse.Namespace) -> list[str]:
    waits = [f"  {count} x {words}" for words, count in found.lines_of_waits()]
    if more := len(waits) - MOST_WAITS:
        waits[MOST_WAITS:] = [f"  and at {more} more lines"] if more > 0 else []
    return [str(found.step), *waits, *lines_of_errors(nodes_of(asked)[0], asked.gpus)]


def lines_of_errors(nodes: int, gpus: int) -> list[str]:
    """How far this clock was from steps that no number of it was fitted to."""
    from coursekit.lab.virtual import CLOCK
    from coursekit.recordings.virtual_errors import errors_of_class

    lines = [f"  by this clock held-out steps of one recorded H100 took {errors_of_class()} times"]
    lines[0] += " their seconds"
    if gpus > 1:
        where = "node" if nodes == 1 else "nodes"
        low, high = (CLOCK[f"{where}_{end}"] for end in ("lowest", "highest"))
        many = "in one node" if nodes == 1 else "on several nodes"
        lines.append(
            f"  {CLOCK[f'{where}_steps']:g} published ones {many}, without nanotron's, {low:g} to"
            f" {high:g} times, by their software's rates"
        )
    return lines
