"""Functions of the lab on data parallelism: one small GPT is built, trained, weighed, counted and
traced. Each rank has its own part of a step's batch: two sequences.

Functions that take a `world` run on the notebook's side and give tables and figures; the others run
on a rank.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from coursekit.exercises.going_on import must_be_right
from coursekit.formulas import evaluate
from coursekit.recordings.recordings import NOT_RECORDED, Recording
from coursekit.show.tables import Table
from coursekit.topics.data_parallelism.exercises import (
    buckets_in_the_order_of_backward,
    mean_of_the_gradients,
    one_message_for_a_bucket,
)
from coursekit.topics.data_parallelism.figures import drift_figure, step_figure
from shardlab.data_parallel import (
    Bucketed,
    DistributedDataParallel,
    ParameterServer,
    PerTensor,
)
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.clock import MedianSeconds, say_if_busy
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.measure.trace import Trace, trace_step
from shardlab.ranks import ranks
from shardlab.ranks.links import LinksUnavailable, two_hosts

SIZES = dict(layers=2, hidden=32, heads=2, vocabulary=64, max_sequence=16)
LARGER = dict(layers=6, hidden=256, heads=4, vocabulary=1000, max_sequence=128)
LARGER_BUCKET_BYTES = 4_000_000
BUCKET_BYTES = 50_000  # of the small model
ALONE_STEPS = 20
SHOWN_GRADIENTS = (1, 5, 10, 15, 20, 25, 28)
PAIRS_OF_TRACES = 3
FLOAT64_TOLERANCE = 1e-12  # in float64: sums in another order


# --- one model, one batch -------------------------------------------------------------------------


def build_model(seed: int = 0) -> GPT:
    """A GPT of two blocks in float64, so that rounding hides nothing."""
    torch.manual_seed(seed)
    return GPT(GPTConfig(**SIZES)).double()


def part_of_batch(rank: int, step: int = 0) -> torch.Tensor:
    """A rank's two sequences of 16 tokens in a step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(SIZES["vocabulary"], (2, 16), generator=generator)


def own_part(step: int = 0) -> torch.Tensor:
    """The part of the rank that asks."""
    return part_of_batch(dist.get_rank(), step)


def whole_batch(step: int = 0) -> torch.Tensor:
    """The parts of all ranks."""
    parts = [part_of_batch(rank, step) for rank in range(dist.get_world_size())]
    return torch.cat(parts)


def loss_of(model, tokens: torch.Tensor) -> torch.Tensor:
    """A task of its own: say each token again."""
    return next_token_loss(model(tokens), tokens)


def count_close(tensors, others) -> int:
    """How many pairs of tensors are alike within 1e-12."""
    return sum(
        (tensor - other).norm().item() < FLOAT64_TOLERANCE for tensor, other in zip(tensors, others)
    )


def tensors_in_words() -> str:
    """Tensors and bytes of the small model."""
    tensor_bytes = [parameter.nbytes for parameter in build_model().parameters()]
    return f"{len(tensor_bytes)} parameter tensors, {sum(tensor_bytes):,} bytes"


def by_rank(first: str, rows: Iterable) -> Table:
    """A table with a column for each of four ranks."""
    return Table([first, *(f"rank {rank}" for rank in range(4))], rows)


# --- copies that drift ----------------------------------------------------------------------------


class Drift(NamedTuple):
    """tensors that are the same on all ranks after one step, and the largest distance of a copy
    from rank 0's after each step."""

    alike_after_one_step: int
    distances: list[float]


def train_copies(world, average: Callable | None = None) -> Drift:
    """Four copies that start alike, each trained on its own part; average(parameters, dist) comes
    between backward and update. Raises NotYet unless its check passes."""
    if average is not None:
        must_be_right(mean_of_the_gradients, average)
    return world.run(drift_on_rank, average)[0]


def drift_on_rank(average: Callable | None) -> Drift:
    """The drift on this rank."""
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    alike, distances = 0, []
    for step in range(ALONE_STEPS):
        loss_of(model, own_part(step)).backward()
        if average is not None:
            average(list(model.parameters()), dist)
        optimizer.step()
        optimizer.zero_grad()
        distance = distance_from_rank_0(model.parameters())  # of each tensor
        if step == 0:
            alike = int((distance == 0).sum())
        distances.append(distance.norm().item())
    return Drift(alike, distances)


def distance_from_rank_0(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """The largest distance of any rank's tensor from rank 0's, for each tensor."""
    apart = []
    for parameter in parameters:
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        apart.append((parameter.detach() - first).norm())
    largest = torch.stack(apart)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest


def figure_of_drift(drifts: Mapping[str, Drift]):
    """How far apart the copies are, step by step."""
    return drift_figure({words: drift.distances for words, drift in drifts.items()})


# --- gradients and parameters ---------------------------------------------------------------------


def table_of_agreement(world, average: Callable) -> Table:
    """How many gradients of each rank are those of a plain model with the batch of all."""
    must_be_right(mean_of_the_gradients, average)
    agreeing = world.run(gradients_like_the_whole_batch, average)
    return by_rank("", [["gradients like the whole batch's", *agreeing]])


def gradients_like_the_whole_batch(average: Callable) -> int:
    """How many of this rank's gradients are, after average(parameters, dist), those of a plain
    model that sees the batch of all ranks."""
    copy, plain = build_model(), build_model()
    loss_of(copy, own_part()).backward()
    average(list(copy.parameters()), dist)
    loss_of(plain, whole_batch()).backward()
    return count_close(
        [parameter.grad for parameter in copy.parameters()],
        [parameter.grad for parameter in plain.parameters()],
    )


def alike_after_training(wrapper: type) -> int:
    """How many of this rank's parameters are those of a plain model after four steps of SGD with
    momentum. Each rank builds its copy from another seed; the plain model has rank 0's, and sees
    the whole batch."""
    model = wrapper(build_model(seed=dist.get_rank()))
    plain = build_model(seed=0)
    parameters = [*model.parameters(), *plain.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(4):
        loss_of(model, own_part(step)).backward()
        loss_of(plain, whole_batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return count_close(model.module.parameters(), plain.parameters())


def table_of_training(world) -> Table:
    """How many tensors of each rank are the plain model's after four steps. Raises AssertionError
    unless copies that reduce stay one model."""
    wrappers = (ParameterServer, PerTensor, DistributedDataParallel)
    alike = {wrapper.__name__: world.run(alike_after_training, wrapper) for wrapper in wrappers}
    tensors = len(list(build_model().parameters()))
    for name in ("PerTensor", "DistributedDataParallel"):
        assert set(alike[name]) == {tensors}, (name, alike[name])
    return by_rank("tensors alike", [[name, *counts] for name, counts in alike.items()])


# --- messages -------------------------------------------------------------------------------------


class Messages(NamedTuple):
    """How many, and bytes together."""

    messages: int
    nbytes: int


def count_messages(wrapper: type, options: dict) -> dict[str, Messages]:
    """The messages that this rank hands to the backend in one forward and backward, by
    operation."""
    model = wrapper(build_model(), **options)
    with CommunicationLog() as log:
        loss_of(model, own_part()).backward()
    return {name: Messages(total.messages, total.nbytes) for name, total in log.totals().items()}


def count_own_messages(buckets: Callable, send_bucket: Callable) -> dict[str, Messages]:
    """The messages of a plain model, whose gradients the reader's functions send after backward."""
    model = build_model()
    with CommunicationLog() as log:
        loss_of(model, own_part()).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        for bucket in buckets(gradients, BUCKET_BYTES):
            send_bucket(bucket, dist)
    return {name: Messages(total.messages, total.nbytes) for name, total in log.totals().items()}


class AllWays(NamedTuple):
    """The messages that each rank hands to the backend in one step, way by way: a dict by operation
    for each rank; and rank 0's messages in the first three ways."""

    totals: dict[str, list[dict[str, Messages]]]

    def messages(self, way: str) -> int:
        """The number of messages that rank 0 sends as a server, or of its reductions."""
        operation = "send" if way == "server" else "all_reduce"
        return self.totals[way][0][operation].messages

    def table(self) -> Table:
        """Ranks 0 and 1, operation by operation."""
        rows = [
            [way, rank, operation, *total]
            for way, on_ranks in self.totals.items()
            for rank in (0, 1)
            for operation, total in on_ranks[rank].items()
        ]
        return Table(["", "rank", "operation", "messages", "bytes"], rows)

    def beside_formulas(self) -> str:
        """The bytes and buckets by formula. Raises AssertionError if a rank differs by a byte."""
        tensor_bytes = [parameter.nbytes for parameter in build_model().parameters()]
        given = dict(
            parameter_tensors=len(tensor_bytes),
            parameter_bytes=sum(tensor_bytes),
            gradient_bytes=sum(tensor_bytes),
            gradient_element_bytes=8,
            data_parallel=len(self.totals["server"]),
            bucket_bytes=BUCKET_BYTES,
        )
        names = ["reduced_bytes", "gradient_buckets_at_most"]
        reduced_bytes, most_buckets = evaluate(names, allow_unused=True, **given).values()
        for way in ("each tensor", "buckets", "overlap"):
            for counted in self.totals[way]:
                assert counted["all_reduce"].nbytes == reduced_bytes, way
        for counted in self.totals["yours"]:
            assert counted["all_reduce"].nbytes == sum(tensor_bytes)
        names = ["server_messages", "server_sent_bytes", "server_received_bytes"]
        for rank, counted in enumerate(self.totals["server"]):
            found = evaluate(names, allow_unused=True, rank=rank, **given)
            messages, sent, received = found.values()
            assert counted["send"] == (messages, sent), rank
            assert counted["recv"].nbytes == received, rank
        return f"formulas: {reduced_bytes:,} bytes, as counted; at most {most_buckets} buckets"


def count_all_ways(world, buckets: Callable, send_bucket: Callable) -> AllWays:
    """Messages of the four ways and of the reader's buckets. Raises NotYet unless their checks
    pass."""
    must_be_right(buckets_in_the_order_of_backward, buckets)
    must_be_right(one_message_for_a_bucket, send_bucket)
    options = dict(bucket_bytes=BUCKET_BYTES)
    return AllWays(
        {
            "server": world.run(count_messages, ParameterServer, {}),
            "each tensor": world.run(count_messages, PerTensor, {}),
            "yours": world.run(count_own_messages, buckets, send_bucket),
            "buckets": world.run(count_messages, Bucketed, options),
            "overlap": world.run(count_messages, DistributedDataParallel, options),
        }
    )


class HandedOver(NamedTuple):
    """All-reduces handed over at each gradient, with overlap and without."""

    overlap: list[int]
    no_overlap: list[int]

    def table(self) -> Table:
        rows = [
            [name.replace("_", " "), *(counts[number - 1] for number in SHOWN_GRADIENTS)]
            for name, counts in self._asdict().items()
        ]
        return Table(["all-reduces handed over at gradient", *map(str, SHOWN_GRADIENTS)], rows)


def reduces_handed_over(world) -> HandedOver:
    """On rank 0."""
    return HandedOver(*(world.run(reduces_at_each_gradient, over)[0] for over in (True, False)))


def reduces_at_each_gradient(overlap: bool) -> list[int]:
    """How many all-reduces have been handed over when each gradient arrives, in the order in which
    gradients arrive."""
    model, handed_over = build_model(), []
    log = CommunicationLog()

    def note(parameter):
        handed_over.append(len(log.messages))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    model = DistributedDataParallel(model, bucket_bytes=BUCKET_BYTES, overlap=overlap)
    with log:
        loss_of(model, own_part()).backward()
    return handed_over


# --- overlap over a slow link ---------------------------------------------------------------------


def trace_larger_step(overlap: bool) -> Trace:
    """The trace of a step on this rank, for a model of 5 million parameters; two steps before it
    warm up."""
    model = GPT(GPTConfig(**LARGER))
    model = DistributedDataParallel(model, bucket_bytes=LARGER_BUCKET_BYTES, overlap=overlap)
    tokens = torch.randint(LARGER["vocabulary"], (8, LARGER["max_sequence"]))
    for _ in range(3):
        dist.barrier()
        trace = trace_step(model, lambda: loss_of(model, tokens))
        model.zero_grad()
    return trace


def trace_with_and_without_overlap(megabits_per_second: int) -> tuple[dict[bool, Trace], str]:
    """Rank 0's steps over a slow link between two ranks, and which link it was: where the system
    cannot rehearse a slow one, both ranks are on one host."""
    try:
        with (
            two_hosts(megabits_per_second) as hosts,
            ranks(2, device="cpu", hosts=hosts) as world,
        ):
            return trace_both(world), f"{megabits_per_second / 1000:g} Gbit/s"
    except LinksUnavailable:
        print("no slow link can be rehearsed here")
    with ranks(2, device="cpu") as world:
        return trace_both(world), "one host"


def trace_both(world) -> dict[bool, Trace]:
    """The median of a few steps of each, in turns: other work on this machine meets both alike."""
    traces = {False: [], True: []}
    for _ in range(PAIRS_OF_TRACES):
        for overlap, found in traces.items():
            found.append(world.run(trace_larger_step, overlap)[0])
    say_if_busy(*(MedianSeconds(one.whole_seconds for one in found) for found in traces.values()))
    return {
        overlap: sorted(found, key=lambda trace: trace.whole_seconds)[len(found) // 2]
        for overlap, found in traces.items()
    }


def waiting_saved_percent(traces: Mapping[bool, Trace]) -> float:
    """The share that overlap saves of the waiting after the last gradient without overlap."""
    after, during = (
        traces[overlap].whole_seconds - traces[overlap].last_gradient_seconds
        for overlap in (False, True)
    )
    return round(100 * (1 - during / after), 1)


def step_figures(traces: Mapping[bool, Trace], link: str) -> list:
    """A figure of each step, on one scale."""
    longest_seconds = max(trace.whole_seconds for trace in traces.values())
    return [
        step_figure(
            f"{('no overlap', 'overlap')[overlap]}, {link}: {1000 * trace.whole_seconds:.0f} ms",
            trace,
            longest_seconds,
        )
        for overlap, trace in traces.items()
    ]


def given_to_explorer(trace: Trace) -> dict:
    """The values with which the explorer of a step's time starts: the measured step and its
    model."""
    return dict(
        measured={
            "data_parallel_step_seconds": [(LARGER_BUCKET_BYTES, trace.whole_seconds)],
        },
        data_parallel=2,
        **GPTConfig(**LARGER).quantities(),
        link="Ethernet, 1 Gbit/s",
        bucket_bytes=LARGER_BUCKET_BYTES,
        update_seconds=0,
        forward_seconds=float(f"{trace.forward_seconds:.3g}"),
        backward_seconds=float(f"{trace.last_gradient_seconds - trace.forward_seconds:.3g}"),
    )


# --- memory ---------------------------------------------------------------------------------------


class CopyBytes(NamedTuple):
    """Parameters, what else is alive after backward, the optimizer's states after its step."""

    parameters: int
    after_backward: int
    optimizer: int


def weigh_copy(wrapper: type | None = None) -> CopyBytes:
    """Bytes on this rank in one step of AdamW; without a wrapper, of a rank alone."""
    plain = build_model()
    optimizer = torch.optim.AdamW(plain.parameters())
    with Ledger(plain, optimizer) as ledger:
        model = plain if wrapper is None else wrapper(plain)
        loss_of(model, own_part()).backward()
        after_backward = ledger.bytes.total - ledger.bytes.parameters
        optimizer.step()
        return CopyBytes(ledger.bytes.parameters, after_backward, ledger.bytes.optimizer)


def weigh_copies(world) -> list[CopyBytes]:
    """One rank alone, then each of the ranks together."""
    return [world.run(weigh_copy)[0], *world.run(weigh_copy, DistributedDataParallel)]


def table_of_copies(copies: list[CopyBytes]) -> Table:
    names = ["one rank alone", *(f"rank {rank} of four" for rank in range(len(copies) - 1))]
    rows = [[name, *copy] for name, copy in zip(names, copies)]
    return Table(["bytes", "parameters", "alive after backward", "optimizer states"], rows)


class ThirdStep(NamedTuple):
    """All-reduces, their bytes, and bytes alive after backward besides the parameters."""

    messages: int
    nbytes: int
    after_backward: int


def third_step(implementation: str, options: dict) -> ThirdStep:
    """The third step of "PyTorch" or "shardlab" on this rank. Every rank has the same tokens."""
    kinds = {"PyTorch": TorchDataParallel, "shardlab": DistributedDataParallel}
    plain = build_model()
    with Ledger(plain) as ledger:
        model = kinds[implementation](plain, **options)
        for _ in range(3):
            plain.zero_grad()
            with CommunicationLog() as log:
                loss_of(model, part_of_batch(0)).backward()
        reduced = log.totals()["all_reduce"]
        after_backward = ledger.bytes.total - ledger.bytes.parameters
    return ThirdStep(reduced.messages, reduced.nbytes, after_backward)


def table_beside_pytorch(world) -> Table:
    """Messages, bytes and memory of this book's version and of PyTorch's, with gradients as views
    and without."""
    ways = {
        "shardlab": ("shardlab", {}),
        "PyTorch": ("PyTorch", dict(gradient_as_bucket_view=False)),
        "PyTorch, views": ("PyTorch", dict(gradient_as_bucket_view=True)),
    }
    rows = [[name, *world.run(third_step, *way)[0]] for name, way in ways.items()]
    return Table(["", "messages", "bytes", "alive after backward"], rows)


# --- GPUs -----------------------------------------------------------------------------------------


def times_on_gpus(recordings: Iterable[Recording]) -> Table | None:
    """A step's time over PyTorch's, from a recording on a GPU; without one a line says so."""
    name = "data_parallel.step_ratio"
    for recording in recordings:
        if recording.hardware.kind == "gpu" and recording.find(name):
            print(recording.label)
            columns = ("implementation", "ranks", "backend", "ranks_share_a_gpu")
            rows = [
                [*(str(row.case[column]) for column in columns), f"{row.value:.2f}"]
                for row in recording.find(name)
            ]
            heads = ["step", "ranks", "backend", "share a GPU?", "time / PyTorch's"]
            return Table(heads, rows)
    print(f"skipped: {NOT_RECORDED}")
    return None
