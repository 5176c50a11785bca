"""Trials of the assignment: data parallelism with buckets that leave during backward. README.md
beside this file says what a learner builds."""

from functools import partial

import torch
from torch import nn

from coursekit.exercises.assignments import Assignment
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab import data_parallel
from shardlab.data_parallel import core

from ..asking import Here, Wrong, demand, expect, groups, race_of_two, refuses
from ..trap_model import Stumble, Trap, plain_model, stumble, trained, trap_loss

ASSIGNMENT = Assignment(
    "data_parallelism",
    reference={
        "make_buckets": data_parallel.make_buckets,
        "DistributedDataParallel": data_parallel.DistributedDataParallel,
    },
    core={
        "make_buckets": core.make_buckets,
        "DistributedDataParallel": core.DistributedDataParallel,
    },
    forbidden=(
        "torch.nn.parallel",
        "torch.distributed.fsdp",
        "torch.distributed._composable",
        "torch.distributed.algorithms",
    ),
)
DDP = "DistributedDataParallel"
SMALL_BUCKET_BYTES = 200  # of a bucket: the model below has several
CLOSE = 1e-12  # of sums of a few numbers in float64
LEARNING_RATE = 0.1


def compare(what: str, model: nn.Module, plain: nn.Module, others: dict[str, nn.Module]):
    """Each gradient with the plain model's; `others` are what misconceptions lead to."""
    wanted = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        got, right = parameter.grad, wanted[name].grad
        said = f"{what}: the gradient of {name}"
        if right is None:
            if got is not None:
                why = (
                    "it is frozen."
                    if not parameter.requires_grad
                    else "no rank has used it, and an optimizer with weight decay would change it."
                )
                raise Wrong(f"{said} should be None: {why}")
            continue
        instead = {
            sentence: other.get_parameter(name).grad
            for sentence, other in others.items()
            if other.get_parameter(name).grad is not None
        }
        expect(said, got, right, instead, CLOSE)


def replicas_of(
    mine, here: Here, bucket_bytes: int = SMALL_BUCKET_BYTES
) -> tuple[nn.Module, nn.Module]:
    """(replicas, the module in them). Ranks begin differently; the group's rank 0 has seed 0."""
    module = Trap(here.me)
    return mine.DistributedDataParallel(module, bucket_bytes, group=here.group), module


def misread(here: Here, number: int = 0, some_rank: int = -1) -> dict[str, nn.Module]:
    """The results to which misconceptions lead."""
    n = here.n
    of_all = partial(plain_model, 0, range(n), number, some_rank)
    of_one = partial(plain_model, 0, [here.me], number, some_rank)
    return {
        f"That is the sum over {n} ranks: divide by {n}.": of_all(n),
        "That is the mean divided by the number of ranks once more.": of_all(1 / n),
        "That is this rank's own gradient: it was not averaged, or not waited for.": of_one(),
        f"That is this rank's own gradient divided by {n}: its bucket was not sent, or not"
        " waited for.": of_one(1 / n),
    }


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", "make_buckets")
def buckets_of_parameters(mine):
    """buckets in the given order, closed at bucket_bytes, of one dtype each"""
    sizes = (3, 5, 1, 8, 2, 2, 30, 1)
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    for bucket_bytes in (1, 16, 32, 33, 10_000):
        found = mine.make_buckets(iter(parameters), bucket_bytes)
        demand(
            isinstance(found, list) and all(isinstance(bucket, list) for bucket in found),
            "make_buckets should return a list of lists of parameters.",
        )
        got = [[p.numel() for p in bucket] for bucket in found]
        wanted = [
            [p.numel() for p in bucket]
            for bucket in data_parallel.make_buckets(parameters, bucket_bytes)
        ]
        why = ""
        if [] in got:
            why = " No bucket is empty."
        elif sum(map(sum, got)) < sum(sizes):
            why = " Parameters are missing: the last bucket may be small."
        elif got != wanted:
            why = " A bucket is closed once it holds bucket_bytes or more, and no earlier."
        demand(
            got == wanted,
            f"make_buckets of parameters of {', '.join(map(str, sizes))} elements of 4 bytes, with"
            f" bucket_bytes = {bucket_bytes}, should give buckets of {_words(wanted)} elements, and"
            f" gives {_words(got)}.{why}",
        )
    mixed = [
        nn.Parameter(torch.zeros(3, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16)
    ]
    found = mine.make_buckets(mixed, 10_000)
    demand(
        all(len({p.dtype for p in bucket}) == 1 for bucket in found),
        "make_buckets puts float32 and bfloat16 into one bucket: a message has one dtype.",
    )
    demand(
        sorted(id(p) for bucket in found for p in bucket) == sorted(map(id, mixed)),
        "make_buckets of two dtypes should put each parameter into one bucket.",
    )


def _words(buckets) -> str:
    return " | ".join(" + ".join(map(str, bucket)) or "nothing" for bucket in buckets)[:200]


@ASSIGNMENT.trial("parity", DDP)
def values_of_rank_0(mine):
    """parameters and buffers of the group's rank 0, frozen ones too"""
    for here in groups(4, 3, 2):
        _, module = replicas_of(mine, here)
        wanted, own = Trap(0), Trap(here.me)
        for kind, tensors in (
            ("parameter", wanted.named_parameters()),
            ("buffer", wanted.named_buffers()),
        ):
            for name, right in tensors:
                get = module.get_parameter if kind == "parameter" else module.get_buffer
                other = (own.get_parameter if kind == "parameter" else own.get_buffer)(name)
                expect(
                    f"{kind} {name} on rank {here.me} of {here.n}",
                    get(name),
                    right.detach(),
                    {"The ranks begin differently: hand out rank 0's values.": other.detach()},
                    close=0,
                )


@ASSIGNMENT.trial("parity", DDP)
def every_gradient(mine):
    """every gradient is the mean over 2, 3 and 4 ranks, with small buckets and with one"""
    for here in groups(4, 3, 2):
        for bucket_bytes in (1, SMALL_BUCKET_BYTES, 1 << 20):
            model, module = replicas_of(mine, here, bucket_bytes)
            trap_loss(model, here.me).backward()
            what = f"rank {here.me} of {here.n}, bucket_bytes = {bucket_bytes}"
            compare(what, module, plain_model(0, range(here.n)), misread(here))


@ASSIGNMENT.trial("parity", DDP)
def three_steps(mine):
    """parameters after three steps of SGD with weight decay are the plain model's"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        plain = Trap(0)
        settings = dict(lr=LEARNING_RATE, weight_decay=0.1)
        theirs = torch.optim.SGD(model.parameters(), **settings)
        ours = torch.optim.SGD(plain.parameters(), **settings)
        for number in range(3):
            theirs.zero_grad()
            ours.zero_grad()
            trap_loss(model, here.me, number).backward()
            (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
            theirs.step()
            ours.step()
            for name, right in plain.named_parameters():
                expect(
                    f"{name} after step {number + 1} on rank {here.me} of 3",
                    module.get_parameter(name),
                    right.detach(),
                    close=CLOSE,
                )


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", DDP)
def messages_by_bucket(mine):
    """one all-reduce for each bucket, of its gradients and at most a flag for each"""
    for here in groups(4):
        for bucket_bytes in (SMALL_BUCKET_BYTES, 1 << 20):
            model, module = replicas_of(mine, here, bucket_bytes)
            loss = trap_loss(model, here.me)
            with CommunicationLog() as log:
                loss.backward()
            parameters = trained(module)
            buckets = data_parallel.make_buckets(reversed(parameters), bucket_bytes)
            names = sorted({message.operation for message in log.messages})
            demand(
                names == ["all_reduce"],
                f"backward sends {', '.join(names) or 'nothing'}: each bucket is one all_reduce.",
            )
            count = len(log.messages)
            demand(
                count == len(buckets),
                f"backward with bucket_bytes = {bucket_bytes} sends {count} messages, and there are"
                f" {len(buckets)} buckets"
                f" of {len(parameters)} parameters: each bucket is one flat message.",
            )
            least = sum(parameter.nbytes for parameter in parameters)
            most = least + 8 * len(parameters)  # flags
            nbytes = sum(message.nbytes for message in log.messages)
            demand(
                least <= nbytes <= most,
                f"backward sends {nbytes:,} bytes: the gradients have {least:,}, with a flag for"
                f" each of {len(parameters)} parameters {most:,}. A tied parameter is sent once, a"
                " frozen one never.",
            )


def _note_count(seen: list[int], log: CommunicationLog, _):
    seen.append(len(log.messages))


@ASSIGNMENT.trial("bytes", DDP)
def buckets_leave_early(mine):
    """the first buckets leave before backward reaches the first layer"""
    for here in groups(4):
        model, _ = replicas_of(mine, here)
        seen: list[int] = []
        with CommunicationLog() as log:
            watch = partial(_note_count, seen, log)
            loss = trap_loss(model, here.me, some_rank=here.me, watch=watch)
            before = len(log.messages)
            demand(
                before == 0,
                f"forward sends {before} messages: parameters are alike already, so nothing is"
                " sent before backward.",
            )
            # the parameter that no rank uses is in the first bucket, and would hold all others
            for parameter in model.parameters():
                if parameter.requires_grad:
                    loss = loss + 0 * parameter.sum()
            loss.backward()
        demand(
            bool(seen) and seen[0] > 0,
            f"when backward reaches the first layer, {seen[0] if seen else 0} of"
            f" {len(log.messages)} buckets have left: a complete bucket leaves at once, so that its"
            " sum travels while backward goes on.",
        )


@ASSIGNMENT.trial("bytes", DDP)
def gradients_are_held_once(mine):
    """memory after backward: each gradient once, no bucket beside it"""
    for here in groups(2):
        model, module = replicas_of(mine, here)
        trap_loss(model, here.me).backward()  # whatever is made once is there
        model.zero_grad(set_to_none=True)
        with Ledger(module) as ledger:
            start = ledger.bytes.total
            loss = trap_loss(model, here.me)
            loss.backward()
            del loss
            more = ledger.bytes.total - start
        parameters = trained(module)
        gradients = sum(parameter.nbytes for parameter in parameters)
        demand(
            more <= 1.5 * gradients,
            f"after backward rank {here.me} holds {more:,} bytes more than before, of which"
            f" gradients are {gradients:,}: make .grad a view of its bucket, or copy back and drop"
            " the bucket.",
        )


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", DDP)
def seconds_of_a_step(mine):
    """a backward of 1.3 million parameters in buckets of 1 MB, on 4 ranks"""

    def backward(kind):
        torch.manual_seed(0)
        layers = [nn.Linear(256, 256) for _ in range(20)]
        model = kind(nn.Sequential(*layers), 1 << 20)
        inputs = torch.randn(8, 256)

        def step():
            model.zero_grad(set_to_none=True)
            model(inputs).square().mean().backward()

        return step

    return race_of_two(backward(mine.DistributedDataParallel), backward(ASSIGNMENT.reference[DDP]))


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", DDP)
def used_on_one_rank(mine):
    """a parameter that one rank uses: the others bring zeros, and nobody waits"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        for number in range(2):
            model.zero_grad(set_to_none=True)
            trap_loss(model, here.me, number, some_rank=1).backward()
            plain = plain_model(0, range(here.n), number, some_rank=1)
            compare(f"rank {here.me} of 3, of which rank 1 uses all", module, plain, {})


@ASSIGNMENT.trial("faults", DDP)
def used_on_no_rank(mine):
    """a parameter that no rank uses keeps no gradient"""
    for here in groups(2):
        model, module = replicas_of(mine, here)
        trap_loss(model, here.me).backward()
        compare(f"rank {here.me} of 2", module, plain_model(0, range(2)), {})


@ASSIGNMENT.trial("faults", DDP)
def microbatches(mine):
    """no_sync sends nothing, and the next backward sends the sum of both"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        with CommunicationLog() as log, model.no_sync():
            trap_loss(model, here.me, 0).backward()
        demand(
            not log.messages, f"backward inside no_sync sends {len(log.messages)} messages, not 0."
        )
        trap_loss(model, here.me, 1).backward()
        plain = Trap(0)
        for number in range(2):
            (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
        second = plain_model(0, range(3), 1)
        compare(
            f"rank {here.me} of 3 after a backward in no_sync and one outside",
            module,
            plain,
            {"The microbatch inside no_sync is lost.": second},
        )


@ASSIGNMENT.trial("faults", DDP)
def gradients_add_up(mine):
    """two backwards without zero_grad add up, as on one rank"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        plain = Trap(0)
        for number in range(2):
            trap_loss(model, here.me, number).backward()
            (sum(trap_loss(plain, rank, number) for rank in range(3)) / 3).backward()
        last = plain_model(0, range(3), 1)
        compare(
            f"rank {here.me} of 3 after two backwards",
            module,
            plain,
            {"The first backward is lost.": last},
        )


@ASSIGNMENT.trial("faults", DDP)
def after_an_error(mine):
    """a backward that raised halfway leaves nothing behind"""
    for here in groups(3):
        model, module = replicas_of(mine, here)
        try:
            trap_loss(model, here.me, watch=stumble).backward()
        except Stumble:
            pass
        else:
            raise Wrong("an exception inside backward did not come out of backward().")
        model.zero_grad(set_to_none=True)
        trap_loss(model, here.me, 1).backward()
        compare(
            f"rank {here.me} of 3, in the backward after one that raised",
            module,
            plain_model(0, range(3), 1),
            misread(here, 1),
        )


@ASSIGNMENT.trial("faults", DDP)
def wrong_arguments(mine):
    """bucket_bytes of 0, a module without trained parameters"""
    frozen = Trap(0).requires_grad_(False)
    cases = [(f"bucket_bytes = {value}", Trap(0), value) for value in (0, -5, 2.5)]
    for what, module, value in (*cases, ("a module with no trained parameter", frozen, 100)):
        refuses(
            f"{DDP} with {what}",
            mine.DistributedDataParallel,
            module,
            value,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )
