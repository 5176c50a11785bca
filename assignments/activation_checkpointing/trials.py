"""Trials of the assignment: activation checkpointing, twice. README.md beside this file says what a
learner builds."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coursekit.exercises.assignments import Assignment
from ranklab.measure.ledger import Ledger
from shardlab import recompute
from shardlab.recompute import core

from ..asking import Wrong, demand, expect, race_of_two

ASSIGNMENT = Assignment(
    "activation_checkpointing",
    reference={
        "checkpoint_by_function": core.checkpoint_by_function,
        "checkpoint": recompute.checkpoint,
    },
    core={
        "checkpoint_by_function": core.checkpoint_by_function,
        "checkpoint": core.checkpoint,
    },
    forbidden=("torch.utils.checkpoint",),
    world_size=1,
)
BOTH = ("checkpoint_by_function", "checkpoint")


class OddBlock(nn.Module):
    """[N, 5] -> [N, 5], odd sizes inside, and a count of its runs."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(5, 7), nn.Linear(7, 5), nn.Dropout(dropout)
        self.double()
        self.runs = 0

    def forward(self, x: Tensor, other: Tensor | None = None, times: float = 1.0) -> Tensor:
        self.runs += 1
        hidden = self.drop(torch.tanh(self.up(x)))
        y = self.down(hidden.sin()) * times
        return y if other is None else y * other


class StepSeen(NamedTuple):
    """The results of a step: tensors by their names in words."""

    tensors: dict[str, Tensor | None]
    drawn: Tensor  # the next random numbers


def _plain(function: Callable, *args, **named):
    return function(*args, **named)


def _step(call: Callable, dropout: float = 0.0, calls: int = 1) -> StepSeen:
    """A step of `calls` blocks, each in a checkpoint of its own."""
    torch.manual_seed(7)
    blocks = [OddBlock(dropout) for _ in range(calls)]
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    y = x
    for block in blocks:
        y = call(block, y)
    y.square().sum().backward()
    found = {"the output": y.detach(), "the gradient of the argument": x.grad}
    for number, block in enumerate(blocks):
        for name, parameter in block.named_parameters():
            found[f"the gradient of {name} in call {number + 1}"] = parameter.grad
    return StepSeen(found, torch.rand(3))


def _same_bits(what: str, got: StepSeen, wanted: StepSeen, why: str = ""):
    for name, right in wanted.tensors.items():
        if right is None:
            continue
        given = got.tensors[name]
        if given is None:
            raise Wrong(f"{what}: {name} is None. {why}".strip())
        try:
            expect(f"{what}: {name}", given, right, close=0)
        except Wrong as error:
            raise Wrong(f"{error} {why}".strip()) from None


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def bits(call, name):
    """outputs and every gradient are the plain function's, bit for bit, for three calls in a row"""
    _same_bits(f"{name} of three blocks", _step(call, calls=3), _step(_plain, calls=3))


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def masks(call, name):
    """with dropout, the second run draws the masks of the first"""
    wanted, got = _step(_plain, 0.5, calls=3), _step(call, 0.5, calls=3)
    why = "Without dropout it is right: put the random number generator back for the second run."
    _same_bits(f"{name} with dropout", got, wanted, why)
    demand(
        torch.equal(got.drawn, wanted.drawn),
        f"after a step with {name}, torch.rand gives other numbers than after the plain step: the"
        " second run moved the random number generator; put back the state that you found.",
    )


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def several_arguments(call, name):
    """two tensors and a number in, two tensors out, of which the loss uses both"""

    def step(by):
        torch.manual_seed(9)
        block = OddBlock()
        x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        other = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

        def both(x, other, times):
            return block(x, other, times), x * other

        first, second = by(both, x, other, 3.0)
        (first.sum() + second.square().sum()).backward()
        found = {"the first output": first.detach(), "the second output": second.detach()}
        found |= {"the gradient of x": x.grad, "the gradient of other": other.grad}
        found |= {f"the gradient of {key}": p.grad for key, p in block.named_parameters()}
        return StepSeen(found, torch.rand(1))

    _same_bits(f"{name} of (x, other, 3.0)", step(call), step(_plain))


@ASSIGNMENT.trial_of_each("parity", *BOTH)
def lower_precision(call, name):
    """under autocast, the second run is under autocast too"""

    def step(by):
        torch.manual_seed(9)
        block = OddBlock().float()
        x = torch.randn(4, 5, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = by(block, x)
        y.float().square().sum().backward()  # outside, as always
        found = {"the output": y.detach(), "the gradient of the argument": x.grad}
        found |= {f"the gradient of {key}": p.grad for key, p in block.named_parameters()}
        return StepSeen(found, torch.rand(1))

    why = "Backward runs outside autocast: the second run needs the settings of the first."
    try:
        got = step(call)
    except RuntimeError as error:
        raise Wrong(f"{name} under autocast raised {error} {why}") from error
    _same_bits(f"{name} under autocast", got, step(_plain), why)


@ASSIGNMENT.trial("parity", "checkpoint")
def named_arguments(mine):
    """named arguments, and torch.autograd.grad"""

    def gradients(by):
        torch.manual_seed(9)
        block = OddBlock()
        x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        other = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        y = by(block, x, other=other, times=2.0)
        found = torch.autograd.grad(y.sum(), [x, other, *block.parameters()])
        return StepSeen({f"gradient {number}": g for number, g in enumerate(found)}, torch.rand(1))

    _same_bits(
        "checkpoint(block, x, other=other, times=2.0)",
        gradients(mine.checkpoint),
        gradients(_plain),
    )


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("bytes", *BOTH)
def kept_between(call, name):
    """between forward and backward a call keeps its argument, and after backward nothing"""
    layers = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(64, 64), nn.Tanh())))

    def function(x):
        return layers(x)

    x = torch.randn(128, 64, requires_grad=True)
    with Ledger(layers) as ledger:
        y = call(function, x)
        kept = ledger.bytes.total - sum(p.nbytes for p in layers.parameters())
        most = 2 * x.nbytes + 16_384  # the argument, the output, the random state
        demand(
            kept <= most,
            f"after the forward of {name} {kept:,} bytes are kept: the argument and the output are"
            f" {2 * x.nbytes:,}. The activations of the function live on.",
        )
        y.sum().backward()  # y lives on, as the loss of a training loop does
        left = ledger.bytes.total - 2 * sum(p.nbytes for p in layers.parameters())
    most = 3 * x.nbytes + 1024  # the argument, its gradient, the output
    demand(
        left <= most,
        f"after the backward of {name} {left:,} bytes are kept, {left - 3 * x.nbytes:,} more than"
        " the argument, its gradient and the output: drop what the second run has made.",
    )


@ASSIGNMENT.trial_of_each("bytes", *BOTH)
def runs_of_the_function(call, name):
    """the function runs once in forward and once in backward, without a graph once"""
    block = OddBlock()
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    y = call(block, x)
    demand(
        block.runs == 1, f"the forward of {name} runs the function {block.runs} times, not once."
    )
    y.sum().backward()
    demand(
        block.runs == 2,
        f"the backward of {name} runs the function {block.runs - 1} times: once is enough for all"
        " activations.",
    )
    with torch.no_grad():
        y = call(block, x)
    demand(
        block.runs == 3 and not y.requires_grad,
        f"under no_grad {name} should run the function once, and give an output without a graph.",
    )


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def data_in_front(call, name):
    """parameters get gradients although no argument requires one, as in a first layer"""
    found = []
    for by in (call, _plain):
        torch.manual_seed(3)
        block = OddBlock()
        y = by(block, torch.randn(4, 5, dtype=torch.float64))
        demand(
            y.requires_grad,
            f"the output of {name} requires no gradient where no argument does, and the parameters"
            " inside the function do: they would never be trained.",
        )
        y.sum().backward()
        found.append(StepSeen({n: p.grad for n, p in block.named_parameters()}, torch.rand(1)))
    _same_bits(f"{name} of data", *found)


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def written_arguments(call, name):
    """an argument that is written to in place raises an error, not a wrong gradient"""
    block = OddBlock()
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True) * 1
    y = call(block, x)
    with torch.no_grad():
        x.mul_(2)
    try:
        y.sum().backward()
    except RuntimeError:
        return
    raise Wrong(
        f"{name}: the argument was doubled in place before backward, which computed a gradient"
        " from it all the same: keep arguments as autograd keeps tensors, by save_for_backward."
    )


class _Stumble(Exception):
    """Raised by a trial's function."""


@ASSIGNMENT.trial_of_each("faults", *BOTH)
def exceptions(call, name):
    """an exception in either run comes out, and the random numbers go on"""
    for run in (1, 2):
        block = OddBlock()

        def function(x, block=block, run=run):
            y = block(x)
            torch.rand(1)
            if block.runs == run:
                raise _Stumble
            return y.sin()

        x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        try:
            y = call(function, x)
            torch.rand(5)  # what draws between forward and backward
            before = torch.get_rng_state()
            y.sum().backward()
        except _Stumble:
            pass
        else:
            raise Wrong(f"{name}: an exception in run {run} of the function did not come out.")
        if run == 2:
            demand(
                torch.equal(before, torch.get_rng_state()),
                f"{name}: after an exception in the second run the random number generator is not"
                " put back: use try and finally, or fork_rng.",
            )
        _same_bits(f"{name} after an exception", _step(call, 0.5), _step(_plain, 0.5))


@ASSIGNMENT.trial("faults", "checkpoint")
def two_backwards(mine):
    """retain_graph: a second backward adds the same gradients again"""

    def step(by):
        torch.manual_seed(5)
        block = OddBlock(0.5)
        x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        y = by(block, x).square().sum()
        y.backward(retain_graph=True)
        y.backward()
        found = {"the gradient of the argument": x.grad}
        found |= {f"the gradient of {name}": p.grad for name, p in block.named_parameters()}
        return StepSeen(found, torch.rand(1))

    _same_bits("checkpoint after two backwards", step(mine.checkpoint), step(_plain))


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial_of_each("speed", *BOTH)
def seconds_of_a_checkpoint(call, name):
    """forward and backward of eight layers of 256"""
    layers = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(256, 256), nn.GELU())))
    x = torch.randn(64, 256, requires_grad=True)

    def step(by):
        by(layers, x).sum().backward()

    return race_of_two(lambda: step(call), lambda: step(ASSIGNMENT.reference[name]))
