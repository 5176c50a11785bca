"""What the lab on data parallelism does on its ranks: one small GPT is built, trained, weighed,
counted and traced. Each rank has its own part of a step's batch: two sequences."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.measure.trace import Trace, trace_step
from shardlab.ranks import ranks
from shardlab.ranks.links import LinksUnavailable, two_hosts

SIZES = dict(layers=2, hidden=32, heads=2, vocabulary=64, max_sequence=16)
LARGER = dict(layers=6, hidden=256, heads=4, vocabulary=1000, max_sequence=128)
LARGER_BUCKET_BYTES = 4_000_000
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


# --- gradients and parameters ---------------------------------------------------------------------


def gradients_like_the_whole_batch(average: Callable) -> int:
    """How many of this rank's gradients are, after average(parameters, dist), those of a plain
    model that sees the batch of all ranks."""
    copy, plain = build_model(), build_model()
    loss_of(copy, own_part()).backward()
    average(copy.parameters(), dist)
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


# --- messages -------------------------------------------------------------------------------------


class Messages(NamedTuple):
    """How many, and bytes together."""

    messages: int
    nbytes: int


def count_messages(wrapper: type, options: dict) -> dict[str, Messages]:
    """What this rank hands to the backend in one forward and backward, by operation."""
    model = wrapper(build_model(), **options)
    with CommunicationLog() as log:
        loss_of(model, own_part()).backward()
    return {name: Messages(total.messages, total.nbytes) for name, total in log.totals().items()}


def reduces_at_each_gradient(overlap: bool) -> list[int]:
    """How many all-reduces have been handed over when each gradient arrives, in the order in which
    gradients arrive."""
    model, handed_over = build_model(), []
    log = CommunicationLog()

    def note(parameter):
        handed_over.append(len(log.messages))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    model = DistributedDataParallel(model, bucket_bytes=50_000, overlap=overlap)
    with log:
        loss_of(model, own_part()).backward()
    return handed_over


# --- overlap over a slow link ---------------------------------------------------------------------


def trace_larger_step(overlap: bool) -> Trace:
    """When what happens on this rank in a step of a model of 5 million parameters; two steps before
    it warm up."""
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
    return {overlap: world.run(trace_larger_step, overlap)[0] for overlap in (False, True)}


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


class ThirdStep(NamedTuple):
    """All-reduces, their bytes, and bytes alive after backward besides the parameters."""

    messages: int
    nbytes: int
    after_backward: int


def third_step(implementation: str, options: dict) -> ThirdStep:
    """Of "PyTorch" or "shardlab" on this rank. Every rank has the same tokens."""
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
