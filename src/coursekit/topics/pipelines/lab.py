"""Functions of the lab on pipelines: the reader's list is checked, simulated, drawn and run, by
stages that sleep, by the reader's parts of a stage, and by a small GPT.

`on_rank` ends the names of functions that a rank runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.exercises.going_on import gives_numbers, must_be_right
from coursekit.show.figures import (
    FOOT_PIXELS,
    HEAD_PIXELS,
    axis,
    legend_below,
    new_figure,
    round_up,
)
from coursekit.show.palette import TIMELINE
from coursekit.show.tables import Table, in_words
from coursekit.topics.pipelines.exercises import actions_of_a_stage, one_f_one_b_of_a_rank
from coursekit.topics.pipelines.sleeping import TimedPipeline, measured_spans, sleeping_plan
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.clock import MedianSeconds, cores, say_if_busy
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import Action, Kind, Schedule, one_f_one_b
from shardlab.pipelines.simulation import EQUAL, Costs, Span, in_flight, simulate
from shardlab.ranks import RankError, ranks
from shardlab.text import vocabulary_of_text, windows_of_text

SIZES = dict(layers=6, hidden=48, heads=4, max_sequence=32)
AWAKE_SIZES = dict(layers=10, hidden=192, heads=4, max_sequence=64)
LAB_MICROBATCHES = 8
SLEEP = Costs(forward=0.02, input=0.02, weight=0.02)  # seconds
PATIENCE_SECONDS = 20.0
TRAINED_STEPS = 20
RANK_ROW_PIXELS = 40


# --- the reader's list ----------------------------------------------------------------------------


def lists_of(own: Callable, ranks: int, microbatches: int) -> Schedule:
    """The schedule that the reader's function makes. Raises NotYet unless its check passes."""
    own = gives_numbers(one_f_one_b_of_a_rank, own)
    return [[Action(*action) for action in own(rank, ranks, microbatches)] for rank in range(ranks)]


def idle_percent(lists: Schedule) -> int:
    """The share of a step that each rank is idle, by the simulation; F, I and W take as long."""
    timeline = simulate(lists)
    return round(100 * max(timeline.idle_of_step) / timeline.seconds)


def table_of_schedules(schedules: Mapping[str, Schedule], costs: Costs = EQUAL) -> Table:
    """A table by the simulation: the step, idle time, and what each rank holds."""
    rows = []
    for name, lists in schedules.items():
        timeline = simulate(lists, costs)
        idle = max(timeline.idle_of_step)
        held = " ".join(map(str, in_flight(lists)))
        rows.append([name, f"{timeline.seconds:g}", f"{100 * idle / timeline.seconds:.0f} %", held])
    return Table(["", "step", "idle", "microbatches held, by rank"], rows)


# --- figures --------------------------------------------------------------------------------------

COLOURS = {
    Kind.FORWARD: ("F", "forward"),
    Kind.BACKWARD: ("B", "backward"),
    Kind.INPUT: ("I, gradients of inputs", "backward"),
    Kind.WEIGHT: ("W, gradients of weights", "weight_gradient"),
}


def pipeline_figure(
    title: str, lists: Schedule, costs: Costs = EQUAL, measured: Sequence[Sequence[Span]] = ()
) -> go.Figure:
    """The simulated timeline, a row for each rank, with the numbers of the microbatches. Measured
    spans fill it, and leave the simulated ones as outlines."""
    simulated = simulate(lists, costs).spans
    scale, unit = (1000, "milliseconds") if measured else (1, "time of a forward")
    if measured:
        title += "<br><span style='font-size:13px'>outline: simulated, fill: measured</span>"
    layers = [(simulated, 0.78, not measured)]
    layers += [(from_zero(measured), 0.5, True)] if measured else []
    end = max(span.end for spans, *_ in layers for own in spans for span in own)
    head = HEAD_PIXELS + (12 if measured else 0)
    height = head + FOOT_PIXELS + 50 + RANK_ROW_PIXELS * len(lists)
    figure = new_figure(title, height, barmode="overlay", bargap=0)
    figure.update_layout(margin=dict(t=head, b=FOOT_PIXELS + 50), **legend_below(-0.28))
    for spans, width, filled in layers:
        for kind in Kind:
            chosen = [(rank, span) for rank, own in enumerate(spans) for span in own]
            chosen = [(rank, span) for rank, span in chosen if span.action.kind is kind]
            if chosen:
                figure.add_trace(bars_of(kind, chosen, width, filled, scale))
    figure.update_xaxes(
        axis(
            range=[0, round_up(scale * end)],
            showgrid=True,
            nticks=8,
            title=dict(text=unit, font=dict(size=12), standoff=4),
        )
    )
    figure.update_yaxes(
        axis(
            range=[len(lists) - 0.5, -0.5],
            tickmode="array",
            tickvals=list(range(len(lists))),
            ticktext=[f"rank {rank}" for rank in range(len(lists))],
            ticks="outside",
            tickwidth=0,
            ticklen=8,
        )
    )
    return figure


def bars_of(
    kind: Kind, spans: Sequence[tuple[int, Span]], width: float, filled: bool, scale: float
) -> go.Bar:
    words, colour = COLOURS[kind]
    swatch = TIMELINE[colour]
    numbers = [str(span.action.microbatch) for _, span in spans]
    return go.Bar(
        orientation="h",
        name=words,
        showlegend=filled,
        y=[rank for rank, _ in spans],
        base=[float(f"{scale * span.begin:.4g}") for _, span in spans],
        x=[float(f"{scale * (span.end - span.begin):.4g}") for _, span in spans],
        width=[width] * len(spans),
        marker=dict(
            color=swatch.light if filled else "rgba(0,0,0,0)",
            line=dict(color=swatch.line, width=1 if filled else 2),
        ),
        text=numbers if filled else None,
        textposition="inside",
        textangle=0,
        insidetextanchor="middle",
        insidetextfont=dict(color="white" if kind is Kind.FORWARD else "black", size=11),
        hovertemplate=f"{words}: microbatch %{{text}}<extra></extra>" if filled else None,
        hoverinfo=None if filled else "skip",
    )


def from_zero(spans: Sequence[Sequence[Span]]) -> list[list[Span]]:
    """Spans of one clock, from the first begin on."""
    first = min(span.begin for own in spans for span in own)
    return [[Span(a, begin - first, end - first) for a, begin, end in own] for own in spans]


# --- stages that sleep ----------------------------------------------------------------------------


def run_asleep(world, lists: Schedule) -> list[list[Span]]:
    """The times of each rank's actions, while its stage slept 20 ms in F and 40 in B, or 20 in each
    of F, I and W. Of three steps the one that took the median time."""
    plan = sleeping_plan(lists, SLEEP)
    steps = [from_zero(world.run(measured_spans, plan, SLEEP)) for _ in range(3)]
    say_if_busy(MedianSeconds(milliseconds(spans) / 1000 for spans in steps))
    return sorted(steps, key=milliseconds)[1]


def given_to_explorer() -> dict[str, float]:
    """The pipeline that has been asleep."""
    return dict(
        pipeline_parallel=4,
        microbatches=LAB_MICROBATCHES,
        microbatch_forward_seconds=SLEEP.forward,
        input_gradient_seconds=SLEEP.input,
        weight_gradient_seconds=SLEEP.weight,
    )


def milliseconds(spans: Sequence[Sequence[Span]]) -> int:
    """Milliseconds from the first begin to the last end."""
    return round(1000 * max(span.end for own in from_zero(spans) for span in own))


# --- stages of a GPT ------------------------------------------------------------------------------


def build_model(dtype: torch.dtype = torch.float64, sizes: Mapping[str, int] = SIZES) -> GPT:
    """One GPT on every rank, for the characters of the book's text."""
    torch.manual_seed(0)
    return GPT(GPTConfig(**sizes, vocabulary=vocabulary_of_text(), tied_head=0)).to(dtype)


def layers_of(model: GPT) -> list:
    return [model.embedding, *model.blocks, model.head]


def batches_of_text(sequence: int = SIZES["max_sequence"], each: int = 1):
    """Endless (inputs, targets) of eight microbatches, the same on every rank."""
    return windows_of_text(LAB_MICROBATCHES * each, sequence)


class StepOfPlain(NamedTuple):
    losses: list[float]  # of the microbatches
    gradients: dict[str, Tensor]


def step_of_plain() -> StepOfPlain:
    """A step of the undivided model, in this process."""
    layers = torch.nn.Sequential(*layers_of(build_model()))
    inputs, targets = next(batches_of_text())
    losses = []
    for x, target in zip(inputs.chunk(LAB_MICROBATCHES), targets.chunk(LAB_MICROBATCHES)):
        loss = next_token_loss(layers(x), target)
        (loss / LAB_MICROBATCHES).backward()
        losses.append(loss.item())
    return StepOfPlain(losses, {name: p.grad for name, p in layers.named_parameters()})


def pipeline_step_on_rank(lists: Schedule) -> tuple[list[float], dict[str, Tensor]]:
    """(losses, on the last stage's rank; gradients of this rank's layers)"""
    layers = layers_of(build_model())
    inputs, targets = next(batches_of_text())
    pipeline = Pipeline(layers, plan_pipeline(layers, lists, inputs), next_token_loss)
    losses = pipeline.step(inputs, targets).tolist()
    return losses, {n.removeprefix("layers."): p.grad for n, p in pipeline.named_parameters()}


def table_beside_plain(world, schedules: Mapping[str, Schedule]) -> Table:
    """Each schedule on the ranks, in float64, beside the undivided model. Stops if a loss differs
    by one bit, or a gradient by more than the order of sums explains."""
    plain, rows = step_of_plain(), []
    for name, lists in schedules.items():
        found = world.run(pipeline_step_on_rank, lists)
        gradients = {key: g for _, own in found for key, g in own.items()}
        losses = next(losses for losses, _ in found if losses)
        worst = max(
            ((gradients[key] - wanted).norm() / wanted.norm()).item()
            for key, wanted in plain.gradients.items()
        )
        assert losses == plain.losses and worst < 1e-12, name
        alike = f"{len(losses)} of {LAB_MICROBATCHES}"
        rows.append([name, alike, *in_words([len(gradients), worst])])
    heads = ["losses equal to the last bit", "gradients", "worst difference"]
    return Table(["", *heads], rows)


# --- what the reader wrote of a stage -------------------------------------------------------------


class StageOnRank(NamedTuple):
    gradients: int
    worst_difference: float
    held_at_most: int
    left_in_the_end: int


def run_stage(world, perform: Callable, lists: Schedule) -> list[StageOnRank]:
    """The reader's function performs a rank's list, with the small GPT's layers."""
    must_be_right(actions_of_a_stage, perform)
    plain = step_of_plain()
    return world.run(stage_on_rank, perform, lists, plain.gradients)


def stage_on_rank(
    perform: Callable, lists: Schedule, plain_gradients: dict[str, Tensor]
) -> StageOnRank:
    layers, (batch, targets) = layers_of(build_model()), next(batches_of_text())
    plan = plan_pipeline(layers, lists, batch)
    first, end = plan.cuts[dist.get_rank()]
    messages = StageMessages(batch.chunk(LAB_MICROBATCHES), plan.outputs[0].shape)
    own = torch.nn.ModuleDict({str(n): layers[n] for n in range(first, end)})

    def stage(x):
        # what the reader's function got as tokens are floats: it may ask for their gradient
        y = x if dist.get_rank() else x.long()
        for layer in own.values():
            y = layer(y)
        if end < len(layers):
            return y
        target = targets.chunk(LAB_MICROBATCHES)[messages.now.microbatch]
        return next_token_loss(y, target) / LAB_MICROBATCHES

    held: dict = {}
    most = 0
    for action in lists[dist.get_rank()]:
        messages.now = action
        perform(action, stage, held, messages.receive, messages.send)
        most = max(most, len(held))
    messages.settle()
    found = {name: p.grad for name, p in own.named_parameters()}
    worst = max(
        ((grad - plain_gradients[name]).norm() / plain_gradients[name].norm()).item()
        for name, grad in found.items()
    )
    return StageOnRank(len(found), worst, most, len(held))


class StageMessages:
    """The messages that a rank of a pipeline is given and hands on, for the action `now`. At the
    ends of the model: a microbatch as it is, nothing to hand on, a loss that needs no gradient."""

    def __init__(self, inputs: Sequence[Tensor], shape: Sequence[int]):
        self.inputs, self.shape = inputs, shape
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.sent: list[tuple[Tensor, dist.Work]] = []
        self.now: Action | None = None

    def receive(self) -> Tensor | None:
        forward = self.now.kind is Kind.FORWARD
        if forward and self.rank == 0:
            return self.inputs[self.now.microbatch].double()
        if not forward and self.rank == self.last:
            return None
        arrived = torch.empty(self.shape, dtype=torch.float64)
        dist.recv(arrived, self.rank - 1 if forward else self.rank + 1, tag=int(forward))
        return arrived

    def send(self, tensor: Tensor | None):
        forward = self.now.kind is Kind.FORWARD
        peer = self.rank + 1 if forward else self.rank - 1
        if 0 <= peer <= self.last:
            tensor = tensor.contiguous()
            self.sent.append((tensor, dist.isend(tensor, peer, tag=int(forward))))

    def settle(self):
        for _, work in self.sent:
            work.wait()


# --- stages that compute --------------------------------------------------------------------------


def table_awake(schedule_of: Callable[[int, int], Schedule], counts: Sequence[int]) -> Table:
    """The step of a larger GPT on each number of ranks: simulated from the seconds that each stage
    takes alone; all work, divided by the cores; and the fastest of five steps."""
    rows = []
    for count in counts:
        lists = schedule_of(count, LAB_MICROBATCHES)
        with ranks(count, device="cpu", announce=False) as world:
            alone = world.run(seconds_alone_on_rank, lists)
            steps = [from_zero(spans) for spans in zip(*world.run(spans_on_rank, lists))]
        forward, backward = zip(*alone)
        simulated = simulate(lists, Costs(forward, backward, 0)).seconds
        work = LAB_MICROBATCHES * sum(forward + backward) / min(cores(), count)
        measured = min(map(milliseconds, steps))
        say_if_busy(MedianSeconds(milliseconds(spans) / 1000 for spans in steps))
        rows.append([f"{count} ranks", round(1000 * simulated), round(1000 * work), measured])
    heads = ["simulated", f"work / cores ({cores()} here)", "measured"]
    return Table(["a step, ms", *heads], rows)


def timed_pipeline(lists: Schedule) -> tuple[TimedPipeline, Tensor, Tensor]:
    layers = layers_of(build_model(torch.float32, AWAKE_SIZES))
    batch, targets = next(batches_of_text(AWAKE_SIZES["max_sequence"], each=2))
    return (
        TimedPipeline(layers, plan_pipeline(layers, lists, batch), next_token_loss),
        batch,
        targets,
    )


def spans_on_rank(lists: Schedule) -> list[list[Span]]:
    """The spans of five steps, after one that nobody measures."""
    pipeline, batch, targets = timed_pipeline(lists)
    found = []
    for _ in range(6):
        pipeline.spans.clear()
        dist.barrier()
        pipeline.step(batch, targets)
        found.append(list(pipeline.spans))
    return found[1:]


def seconds_alone_on_rank(lists: Schedule) -> tuple[float, float]:
    """The fewest seconds of F and B of this rank's stage, while the other ranks wait their turn."""
    pipeline, batch, targets = timed_pipeline(lists)
    plan, rank, found = pipeline.plan, dist.get_rank(), []
    for turn in range(dist.get_world_size()):
        dist.barrier()
        if turn != rank:
            continue
        for _ in range(5):
            begin = time.perf_counter()
            x = batch.chunk(LAB_MICROBATCHES)[0]
            if rank:
                x = torch.zeros(plan.outputs[rank - 1].shape, requires_grad=True)
            y = x
            for layer in pipeline.layers.values():
                y = layer(y)
            if rank == plan.last:
                y = next_token_loss(y, targets.chunk(LAB_MICROBATCHES)[0])
            middle = time.perf_counter()
            y.backward(torch.ones_like(y))
            found.append((middle - begin, time.perf_counter() - middle))
    return tuple(map(min, zip(*found)))


# --- faults ---------------------------------------------------------------------------------------


class Divisions(NamedTuple):
    """The loss after twenty steps where gradients are divided by m once, and where twice."""

    once: float
    twice: float

    @property
    def percent(self) -> float:
        """The percentage by which the second is higher."""
        return round(100 * (self.twice / self.once - 1), 1)


class DividedByAll(NamedTuple):
    """Optimizer -> the losses in the end."""

    optimizers: dict[str, Divisions]

    def by_prediction(self) -> dict[str, float]:
        """Values by the names of the predictions."""
        return {
            f"divided twice, {name}, percent": own.percent for name, own in self.optimizers.items()
        }

    def table(self) -> Table:
        rows = [
            [name, f"{own.once:.4f}", f"{own.twice:.4f}"] for name, own in self.optimizers.items()
        ]
        return Table(["loss after twenty steps", "divided once", "divided twice"], rows)


def train_with_divisions(world) -> DividedByAll:
    """Train with SGD and with AdamW."""
    lists = one_f_one_b(world.world_size, LAB_MICROBATCHES)
    found = {}
    for name, of_weights in (("SGD", sgd), ("AdamW", adamw)):
        ends = [world.run(last_loss_on_rank, lists, of_weights, again) for again in (False, True)]
        found[name] = Divisions(*(on_ranks[-1] for on_ranks in ends))
    return DividedByAll(found)


def sgd(weights) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


def adamw(weights) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.003)


def last_loss_on_rank(lists: Schedule, of_weights: Callable, again: bool) -> float:
    """The mean over the last step's batch, on the last rank; 0 on the others."""
    layers, data = layers_of(build_model()), batches_of_text()
    pipeline = Pipeline(layers, plan_pipeline(layers, lists, next(data)[0]), next_token_loss)
    optimizer = of_weights(pipeline.parameters())
    for _ in range(TRAINED_STEPS):
        losses = pipeline.step(*next(data))
        for parameter in pipeline.parameters():
            if again:
                parameter.grad /= LAB_MICROBATCHES
        optimizer.step()
        optimizer.zero_grad()
    return losses.mean().item() if len(losses) else 0.0


# --- who waits for whom ---------------------------------------------------------------------------


def run_moves(
    moves: Callable[[int, int], list], count: int = 2, seconds: float = PATIENCE_SECONDS
) -> str:
    """moves(rank, ranks), a list of ("send" or "recv", peer), on ranks of their own: what became of
    them within so many seconds, in a few lines."""
    with ranks(count, device="cpu", patience_seconds=seconds, announce=False) as world:
        try:
            arrived = world.run(moves_on_rank, moves, limit_seconds=seconds)
        except RankError as error:
            lines = str(error).splitlines()[: count + 1]
            return "\n".join(line.strip() for line in lines)
    return f"messages that arrived: {sum(arrived)}"


def moves_on_rank(moves: Callable[[int, int], list]) -> int:
    """How many messages this rank has received."""
    arrived, x = 0, torch.zeros(4)
    for what, peer in moves(dist.get_rank(), dist.get_world_size()):
        if what == "send":
            dist.send(x, peer)
        else:
            dist.recv(x, peer)
            arrived += 1
    return arrived


def warm_up() -> int:
    """A step of no other use: it lets PyTorch load what it needs."""
    lists = [[Action(rank, kind, 0) for kind in (Kind.FORWARD, Kind.BACKWARD)] for rank in range(4)]
    return len(pipeline_step_on_rank(lists)[1])
