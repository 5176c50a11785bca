"""Helpers that the trials of the assignment share."""

from functools import partial

from torch import nn

from coursekit.exercises.grading import Assignment
from coursekit.exercises.on_a_rank import Here, Wrong, expect
from coursekit.exercises.trap_model import Trap, plain_model
from shardlab import data_parallel
from shardlab.data_parallel import core

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
