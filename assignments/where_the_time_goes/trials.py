"""Trials of the assignment: five slow programs. README.md beside this file says what a learner
writes. Nothing is timed: operations, waits, reads and bytes are counted."""

import torch
from torch import Tensor, nn

from coursekit.exercises.assignments import Assignment
from shardlab.common.torch_internals import TorchDispatchMode

from ..asking import demand, expect, held
from . import trials_mended

LOG, CLIP, PLACES, AVERAGE, BATCH = "train_and_log", "clip", "positions", "average", "batch"
MENDED = {name: getattr(trials_mended, name) for name in (LOG, CLIP, PLACES, AVERAGE, BATCH)}
ASSIGNMENT = Assignment(
    "where_the_time_goes",
    reference=MENDED,
    core=MENDED,
    forbidden=("torch.nn.utils",),
    world_size=1,
)
STEPS, LENGTH = 12, 5


class Counted(TorchDispatchMode):
    """Operations, and reads of a value, in a context."""

    def __init__(self):
        super().__init__()
        self.operations = self.waits = 0

    def __torch_dispatch__(self, function, types, args=(), named=None):
        self.operations += not function.is_view
        self.waits += function.overloadpacket.__name__ in (
            "_local_scalar_dense",
            "equal",
            "nonzero",
        )
        return function(*args, **(named or {}))


class Store:
    """A hundred tokens on a disk, and the reads that were asked for."""

    def __init__(self):
        self.reads: list[tuple[int, int]] = []

    def read(self, begin: int, count: int) -> Tensor:
        self.reads.append((begin, count))
        return torch.arange(begin, begin + count) * 7 % 100


def training():
    torch.manual_seed(3)
    model = nn.Linear(6, 4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(5, 6).double(), torch.randn(5, 4).double()) for _ in range(STEPS)]
    return model, optimizer, data


def with_gradients(count: int) -> list[nn.Parameter]:
    torch.manual_seed(5)
    made = [nn.Parameter(torch.randn(3, 2).double()) for _ in range(count)]
    for parameter in made[:-1]:  # the last one has no gradient
        parameter.grad = torch.randn(3, 2).double()
    return made


def gradients_of(parameters: list[nn.Parameter]) -> Tensor:
    return torch.stack([p.grad for p in parameters if p.grad is not None])


def operations_of(work, *arguments) -> int:
    with Counted() as counted:
        work(*arguments)
    return counted.operations


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", LOG)
def losses_and_weights(mine):
    """the losses of twelve steps, and the weights after them"""
    wanted_model, *rest = training()
    wanted = trials_mended.train_and_log(wanted_model, *rest)
    model, optimizer, data = training()
    found = mine.train_and_log(model, optimizer, data)
    demand(
        isinstance(found, list) and len(found) == STEPS and all(type(x) is float for x in found),
        f"a list of {STEPS} floats should come back, one for each batch.",
    )
    wanted = torch.tensor(wanted)
    shifted = {"These are the losses after the updates.": torch.cat([wanted[1:], wanted[:1]])}
    expect("the losses", torch.tensor(found), wanted, shifted, close=1e-6)
    expect("the weight after the last step", model.weight, wanted_model.weight)


@ASSIGNMENT.trial("parity", CLIP)
def clipped(mine):
    """gradients above the limit, and below it"""
    for most in (0.5, 1000.0):
        parameters, wanted = with_gradients(4), with_gradients(4)
        before = gradients_of(parameters)
        norm = mine.clip(parameters, most)
        expect(f"the norm before, at most {most}", norm, trials_mended.clip(wanted, most))
        expect(
            f"the gradients, clipped to {most}",
            gradients_of(parameters),
            gradients_of(wanted),
            {
                "They were scaled up: multiply by 1 where the norm is smaller than the limit.": (
                    before * most / norm
                ),
                "They are what they were: scale them in place.": before,
            },
        )


@ASSIGNMENT.trial("parity", PLACES)
def places(mine):
    """rows of lengths 3, 0, 5, 1 and 5"""
    lengths = [3, 0, 5, 1, 5]
    wanted = trials_mended.positions(lengths, LENGTH)
    whole = torch.arange(LENGTH).expand(len(lengths), LENGTH)
    filled = {"Behind the end of a row should be -1.": whole}
    expect("the positions", mine.positions(lengths, LENGTH), wanted, filled, close=0)


@ASSIGNMENT.trial("parity", AVERAGE)
def means(mine):
    """means of three weights after two moves"""
    torch.manual_seed(7)
    weights = [torch.randn(4).double() for _ in range(3)]
    found, wanted = ([torch.ones(4).double() for _ in range(3)] for _ in range(2))
    turned = [torch.ones(4).double() for _ in range(3)]
    for _ in range(2):
        mine.average(found, weights, 0.9)
        trials_mended.average(wanted, weights, 0.9)
        trials_mended.average(turned, weights, 0.1)
    said = {"decay is the share of the mean that stays, 1 - decay that of the weight.": turned[2]}
    expect("the mean of the third weight", found[2], wanted[2], said)


@ASSIGNMENT.trial("parity", BATCH)
def windows(mine):
    """windows that overlap, and one alone"""
    for starts in ([2, 4, 4, 30], [11]):
        wanted = trials_mended.batch(Store(), starts, LENGTH)
        expect(f"windows at {starts}", mine.batch(Store(), starts, LENGTH), wanted, close=0)


# --- what each does -------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", LOG)
def one_wait(mine):
    """the host waits once for all losses, or not at all by a read"""
    with Counted() as counted:
        mine.train_and_log(*training())
    demand(
        counted.waits <= 1,
        f"{counted.waits} values were read for {STEPS} steps: each read waits for the GPU, and the"
        " host loses its lead. Keep the losses as tensors, and read all of them at the end, with"
        " one tolist().",
    )


@ASSIGNMENT.trial("bytes", CLIP)
def operations_of_clip(mine):
    """as many operations for 40 parameters as for 4, and no wait"""
    few, many = (operations_of(mine.clip, with_gradients(count), 0.5) for count in (4, 40))
    demand(
        many <= few,
        f"{few} operations for 4 parameters and {many} for 40: each is a launch. Lists of tensors"
        " go through torch._foreach_norm and torch._foreach_mul_ in one.",
    )
    with Counted() as counted:
        mine.clip(with_gradients(4), 0.5)
    demand(
        counted.waits == 0,
        f"the host waits {counted.waits} times: an `if`, a float() or .item() reads the norm."
        " clamp keeps the factor at most 1 without a look.",
    )


@ASSIGNMENT.trial("bytes", PLACES)
def operations_of_positions(mine):
    """as many operations for 30 rows as for 3"""
    few, many = (operations_of(mine.positions, [3, 1, 5] * count, LENGTH) for count in (1, 10))
    demand(
        many <= few,
        f"{few} operations for 3 rows and {many} for 30: Python goes through rows or places."
        " Compare torch.arange(longest) with the lengths as a column.",
    )


@ASSIGNMENT.trial("bytes", AVERAGE)
def memory_of_means(mine):
    """no memory beside means and weights"""
    means, weights = ([torch.ones(1000) for _ in range(3)] for _ in range(2))
    most = held(mine.average, means, weights, 0.9)
    demand(
        most < 4000,
        f"{most:,} bytes at one time, for means of 4,000 bytes each: every product and sum is a new"
        " tensor, written and read again. lerp_, or mul_ and add_ with alpha, work in place.",
    )


@ASSIGNMENT.trial("bytes", BATCH)
def reads_of_a_batch(mine):
    """one read, from the first token to the last"""
    store = Store()
    mine.batch(store, [2, 4, 4, 30], LENGTH)
    demand(
        len(store.reads) == 1,
        f"{len(store.reads)} reads for 4 windows: each waits for the disk. One read from the first"
        " start to the last window's end has them all.",
    )
    demand(
        store.reads[0] == (2, 33),
        f"the read is of {store.reads[0][1]} tokens from {store.reads[0][0]} on: 33 from 2 on are"
        " enough.",
    )
