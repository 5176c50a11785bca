"""Recordings of `make gpu` and races of `make bench` for pipelines: each schedule beside the same
schedule of torch.distributed.pipelining; the measured time of stages that sleep beside the
simulated one, also over a slow link.

Ranks that share a GPU talk through gloo, over the host: results and bytes count, their times say
nothing about a cluster.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.formulas import evaluate
from coursekit.recordings import races
from coursekit.recordings.attempts import attempt
from coursekit.recordings.races import TINY, TURNS, Bench, Result, Run, TrainingTask, Way
from coursekit.recordings.recordings import Row
from coursekit.topics.pipelines.peers import TorchPipeline
from coursekit.topics.pipelines.sleeping import (
    measured_message_seconds,
    measured_spans,
    seconds_of,
    sleeping_plan,
)
from ranklab.measure.ledger import Ledger
from ranklab.ranks import ranks
from ranklab.ranks.links import LinksUnavailable, two_hosts
from shardlab.gpt import GPT, next_token_loss
from shardlab.pipelines import core
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import PipelinePlan, plan_pipeline
from shardlab.pipelines.schedules import SCHEDULES, schedule
from shardlab.pipelines.simulation import Costs, simulate

RACE_MICROBATCHES = 8
CLOSE_LOSSES = 1e-4  # relative, in fp32
STEP_RATIO = 1.0  # of the time of PyTorch's, at most
WHOLE_PEAK, SPLIT_PEAK = 1.0, 0.65  # of PyTorch's fullest rank, and where backward is split
SIMULATED = 1.08  # measured seconds over simulated ones, at most

DEEP = dict(layers=8, hidden=256, heads=4, vocabulary=1000, tied_head=0)
RACE_TASK = TrainingTask("8 layers of 256", dict(**DEEP, max_sequence=32), 2 * RACE_MICROBATCHES)
# activations outweigh weights, as they do where pipelines are used
WEIGH_TASK = TrainingTask(
    "8 layers of 256, 512 tokens", dict(**DEEP, max_sequence=64), 8 * RACE_MICROBATCHES
)
RECORD_TASK = RACE_TASK._replace(sizes=dict(**DEEP, max_sequence=128))
SMALL_TASK = TINY._replace(
    sizes={**TINY.sizes, "layers": 4, "tied_head": 0}, microbatch=RACE_MICROBATCHES
)


# --- the ways -------------------------------------------------------------------------------------


def cut_evenly(net: GPT, name: str, tokens: Tensor) -> tuple[list, PipelinePlan]:
    """(layers, plan): as many blocks in each stage, the embedding and the head beside the first and
    the last."""
    layers = [net.embedding, *net.blocks, net.head]
    lists = schedule(name, dist.get_world_size(), RACE_MICROBATCHES)
    stages = 1 + max(action.stage for own in lists for action in own)
    return layers, plan_pipeline(layers, lists, tokens, even_counts(len(net.blocks), stages))


def even_counts(blocks: int, stages: int) -> list[int]:
    """Layers of each stage."""
    counts = [blocks // stages] * stages
    counts[0] += 1
    counts[-1] += 1  # a single stage has both
    return counts


def our_pipeline(net, optimizer_cls, name, tokens, **settings):
    pipeline = Pipeline(*cut_evenly(net, name, tokens), next_token_loss)
    return pipeline, optimizer_cls(pipeline.parameters(), **settings)


def core_pipeline(net, optimizer_cls, name, tokens, **settings):
    layers, plan = cut_evenly(net, name, tokens)
    stages = [nn.Sequential(*layers[slice(*cut)]) for cut in plan.cuts]
    pipeline = core.Pipeline(stages, plan.schedule, tokens, next_token_loss)
    return pipeline, optimizer_cls(pipeline.parameters(), **settings)


def torch_pipeline(net, optimizer_cls, name, kind, tokens, **settings):
    pipeline = TorchPipeline(*cut_evenly(net, name, tokens), next_token_loss, kind)
    return pipeline, optimizer_cls(pipeline.parameters(), **settings)


TORCH_SCHEDULES = {  # PyTorch's class for the schedule; its zero bubble with one stage a rank is H1
    "GPipe": "ScheduleGPipe",
    "1F1B": "Schedule1F1B",
    "interleaved 1F1B": "ScheduleInterleaved1F1B",
    "zero-bubble H1": "ScheduleInterleavedZeroBubble",
}
TORCH_NAME, CORE_NAME = "PyTorch, {}", "{}, core"
CORE_SCHEDULES = ("GPipe", "1F1B", "interleaved 1F1B")  # the core runs whole backwards
WAYS = {
    **{
        name: Way(
            our_pipeline,
            dict(name=name),
            (TORCH_NAME.format(name),) if name in TORCH_SCHEDULES else (),
        )
        for name in SCHEDULES
    },
    **{
        CORE_NAME.format(name): Way(core_pipeline, dict(name=name), (TORCH_NAME.format(name),))
        for name in CORE_SCHEDULES
    },
    **{
        TORCH_NAME.format(name): Way(torch_pipeline, dict(name=name, kind=kind))
        for name, kind in TORCH_SCHEDULES.items()
    },
}


def ours(name: str) -> list[str]:
    """This book's ways of a schedule."""
    return [way for way in (name, CORE_NAME.format(name)) if way in WAYS]


# --- on a rank ------------------------------------------------------------------------------------


def steps_in_turns(
    names: Iterable[str], task: TrainingTask, turns: int, device: str
) -> dict[str, list[float]]:
    tokens, works = task.shared_tokens(device), {}
    for name in names:
        net = task.model(device)
        pipeline, optimizer = WAYS[name].build(net, torch.optim.AdamW, tokens=tokens, lr=1e-3)
        works[name] = partial(races.step_by, pipeline.step, optimizer, tokens)
    return races.in_turns(works, turns, device)


def weighed_steps(name: str, task: TrainingTask, device: str) -> tuple[int, int, list[float]]:
    """(most bytes at a time in a step, bytes sent, losses of the microbatches on the last stage's
    rank) of the second step."""
    tokens, net = task.shared_tokens(device), task.model(device)
    pipeline, optimizer = WAYS[name].build(net, torch.optim.SGD, tokens=tokens, lr=0.1)
    losses = []

    def step():
        losses.append(races.step_by(pipeline.step, optimizer, tokens).tolist())

    with Ledger(torch.nn.ParameterList(pipeline.parameters()), device=device) as ledger:
        found = races.weigh_last(step, ledger, device, steps=2)
    sent = found.messages.get("send")
    return found.peak_bytes, sent.nbytes if sent else 0, losses[-1]


def plain_losses(task: TrainingTask, device: str) -> list[float]:
    """The losses of the undivided model, in the second step."""
    tokens, net = task.shared_tokens(device), task.model(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        losses = []
        for part in tokens.chunk(RACE_MICROBATCHES):
            loss = next_token_loss(net(part), part)
            (loss / RACE_MICROBATCHES).backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


# --- make gpu -------------------------------------------------------------------------------------


def pipelines(
    device: torch.device,
    task: TrainingTask | None = None,
    turns: int = 7,
    names: Iterable[str] = tuple(SCHEDULES),
) -> Iterator[Row]:
    """Right losses, bytes sent, peaks and times of these schedules, beside PyTorch's."""
    for case, trained in races.layouts(device, task, RECORD_TASK):
        part, trained = f"pipelines, {case['ranks']} ranks", deep_enough(trained, case["ranks"])
        case["task"] = trained.name
        yield from attempt(part, on_ranks(part, case, trained, turns, names))


def deep_enough(task: TrainingTask, count: int) -> TrainingTask:
    """The task with two blocks for each rank, which every schedule can cut evenly."""
    sizes = {**task.sizes, "layers": 2 * count, "tied_head": 0}
    return task._replace(name=f"{2 * count} layers of {sizes['hidden']}", sizes=sizes)


def on_ranks(
    part: str, case: dict, task: TrainingTask, turns: int, names: Iterable[str]
) -> Iterator[Row]:
    start = partial(ranks, case["ranks"], device=case["device"], announce=False)
    with start() as world:
        want = world.run(plain_losses, task, case["device"])[0]
    for name in names:
        works = list(WAYS[name].peers)
        for way in ours(name):
            with start() as world:  # a peak of its own
                rows = rows_of(world, way, task, want, case)
                if (yield from attempt(f"{part}, {way}", rows)):
                    works.append(way)
        with start() as world:
            times = times_of(world, works, task, turns, case)
            yield from attempt(f"{part}, {name}, times", times)


def rows_of(world, name: str, task: TrainingTask, want: list[float], case: dict) -> Iterator[Row]:
    this, schedule_of = dict(**case, implementation=name), WAYS[name].options["name"]
    found = world.run(weighed_steps, name, task, case["device"])
    close = [abs(a - b) <= CLOSE_LOSSES * b for a, b in zip(found[-1][2], want)]
    count = ("microbatches", RACE_MICROBATCHES)
    yield Row("pipelines.right_losses", sum(close), "count", this, *count)
    for rank, (peak, sent, _) in enumerate(found):
        of_rank = dict(**this, rank=rank)
        predicted = "pipeline_sent_bytes", pipeline_sent(schedule_of, task, rank, case["ranks"])
        yield Row("pipelines.sent", sent, "bytes", of_rank, *predicted)
        yield Row("pipelines.peak", peak, "bytes", of_rank)


def times_of(world, works: list[str], task: TrainingTask, turns: int, case: dict) -> Iterator[Row]:
    times = world.run(steps_in_turns, works, task, turns, case["device"])[0]
    yield from races.step_rows("pipelines", {work: WAYS[work] for work in works}, times, case)


def pipeline_sent(name: str, task: TrainingTask, rank: int, count: int) -> int:
    """The bytes that the rank sends in a step, by the formula."""
    found = evaluate(
        ["pipeline_sent_bytes"],
        pipeline_schedule=list(SCHEDULES).index(name) + 1,
        stages_per_rank=2,
        pipeline_parallel=count,
        pipeline_rank=rank,
        microbatches=RACE_MICROBATCHES,
        microbatch=task.microbatch // RACE_MICROBATCHES,
        sequence=task.sizes["max_sequence"],
        hidden=task.sizes["hidden"],
        vocabulary=task.sizes["vocabulary"],
        tied_head=task.sizes["tied_head"],
        residual_element_bytes=4,
        gradient_element_bytes=4,
        allow_unused=True,
    )
    return found["pipeline_sent_bytes"]


# --- make bench -----------------------------------------------------------------------------------


def race(
    task: TrainingTask = RACE_TASK, counts: Sequence[int] = (4, 2), turns: int = TURNS
) -> list[Result]:
    """Step times in turns of each schedule, beside PyTorch's. The figure is for 4 ranks; on 2 of
    them the ratios are only reported."""
    results = []
    for count in counts:
        most = STEP_RATIO if count == 4 else None
        with ranks(count, device="cpu", announce=False) as world:
            for name in TORCH_SCHEDULES:
                peer, on = TORCH_NAME.format(name), f"{count} ranks, {task.name}"
                times = world.run(steps_in_turns, [*ours(name), peer], task, turns, "cpu")[0]
                for way in ours(name):
                    limit, shown = most if way == name else None, f"{way}, {on}"
                    results.append(
                        races.step_result("pipelines", on, times, way, peer, limit, shown)
                    )
    return results


def peaks_of_ranks(
    task: TrainingTask = RACE_TASK,
    weigh_task: TrainingTask = WEIGH_TASK,
    counts: Sequence[int] = (4, 2),
) -> list[Result]:
    """Peak bytes of the fullest rank, which decides what fits, beside PyTorch's, and the bytes that
    all ranks send, beside the formula's. They do not depend on the machine's load; `task` names
    what they are shown beside.

    PyTorch's split keeps the graph of each microbatch between I and W, and the last rank has most
    of those: there zero bubble differs most, and there it needs most."""
    results = []
    for count in counts:
        with ranks(count, device="cpu", announce=False) as world:
            for name in TORCH_SCHEDULES:
                peer = TORCH_NAME.format(name)
                theirs = world.run(weighed_steps, peer, weigh_task, "cpu")
                for way in ours(name):
                    found = world.run(weighed_steps, way, weigh_task, "cpu")
                    what = f"{way}, {count} ranks, {task.name}"
                    split = count == 4 and name == "zero-bubble H1"
                    most = SPLIT_PEAK if split else WHOLE_PEAK if way == name else None
                    peaks = [[peak for peak, *_ in weights] for weights in (found, theirs)]
                    peak = races.share_result(
                        "pipelines", what, "peak", peer, *map(max, peaks), most
                    )
                    by_rank = " ".join(f"{mine / other:.2f}" for mine, other in zip(*peaks))
                    note = f"{peak.note}, {weigh_task.name}; by rank {by_rank}"
                    sent = sum(nbytes for _, nbytes, _ in found)
                    formula = sum(
                        pipeline_sent(name, weigh_task, rank, count) for rank in range(count)
                    )
                    results += [
                        peak._replace(note=note),
                        races.share_result(
                            "pipelines", what, "sent", "the formula", sent, formula, 1
                        ),
                    ]
    return results


def beside_simulation(
    seconds: float = 0.05, message_bytes: int = 1_000_000, megabits_per_second: int = 100
) -> list[Result]:
    """Measured over simulated seconds of stages that sleep: every schedule on 4 ranks, then those
    that a slow link tells apart, on two hosts, where this system can rehearse them."""
    costs, results = Costs(seconds, seconds, seconds), []
    with ranks(4, device="cpu", announce=False) as world:
        for name in SCHEDULES:
            plan = sleeping_plan(schedule(name, 4, RACE_MICROBATCHES), costs)
            results.append(simulated_result(world, name, plan, costs, "4 ranks"))
    try:
        with (
            two_hosts(megabits_per_second) as hosts,
            ranks(2, device="cpu", hosts=hosts, announce=False) as world,
        ):
            costs = Costs(2 * seconds, 2 * seconds, 2 * seconds)
            costs = costs._replace(transfer=world.run(measured_message_seconds, message_bytes)[0])
            for name in ("GPipe", "1F1B", "eager 1F1B"):
                plan = sleeping_plan(schedule(name, 2, RACE_MICROBATCHES), costs, message_bytes)
                on = f"2 ranks, {megabits_per_second} Mbit/s between them"
                results.append(simulated_result(world, name, plan, costs, on))
    except LinksUnavailable as error:
        print(f"bench:  {error}")
    return results


def simulated_result(world, name: str, plan: PipelinePlan, costs: Costs, on: str) -> Result:
    steps = [seconds_of(world.run(measured_spans, plan, costs)) for _ in range(3)]
    measured, simulated = median(steps), simulate(plan.schedule, costs).seconds
    return Result(
        "pipelines",
        f"{name}, {on}: stages that sleep, measured / simulated",
        round(measured / simulated, 3),
        "x",
        SIMULATED,
        f"{1000 * measured:.0f} and {1000 * simulated:.0f} ms; a message takes"
        f" {1000 * costs.transfer:.0f} ms",
        "pipelines_race.simulated",
        dict(what=f"{name}, {on}"),
    )


RUNS = (Run(45, pipelines, dict(task=SMALL_TASK, turns=1, names=("1F1B", "zero-bubble H1"))),)
BENCHES = (
    Bench("pipelines", race, dict(task=SMALL_TASK, counts=(2,), turns=2)),
    Bench(
        "pipelines-peaks", peaks_of_ranks, dict(task=SMALL_TASK, weigh_task=SMALL_TASK, counts=(2,))
    ),
    Bench("pipelines-simulated", beside_simulation, dict(seconds=0.002)),
)
