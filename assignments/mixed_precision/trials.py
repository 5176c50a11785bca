"""Trials of the assignment: 16 bits compute, 32 bits remember. README.md beside this file says what
a learner builds."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from coursekit.exercises.assignments import Assignment
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab import mixed_precision
from shardlab.mixed_precision import core

from ..asking import demand, expect, race_of_two, refuses

ASSIGNMENT = Assignment(
    "mixed_precision",
    reference={
        "MasterWeights": mixed_precision.MasterWeights,
        "LossScaler": mixed_precision.LossScaler,
    },
    core={"MasterWeights": core.MasterWeights, "LossScaler": core.LossScaler},
    forbidden=("torch.amp", "torch.cuda.amp"),
    world_size=2,
)
MASTERS, SCALER = "MasterWeights", "LossScaler"
COMPARED_STEPS = 12
AGREEMENT_BYTES = 64  # of an agreement about an overflow


def parameters_of_all_kinds(dtype: torch.dtype = torch.bfloat16) -> list[nn.Parameter]:
    """A matrix, a vector of fp32, one that is frozen, one that gets no gradient."""
    torch.manual_seed(11)
    made = [nn.Parameter(torch.randn(5, 7).to(dtype)), nn.Parameter(torch.randn(7))]
    made += [nn.Parameter(torch.randn(3).to(dtype)), nn.Parameter(torch.randn(3).to(dtype))]
    made[2].requires_grad_(False)
    return made


def give_gradients(parameters: list[nn.Parameter], number: int, factor: float = 1.0):
    """Gradients of a step: no backward is needed to try an optimizer."""
    generator = torch.Generator().manual_seed(number)
    for parameter in parameters[:2]:
        gradient = torch.randn(parameter.shape, generator=generator) * factor
        parameter.grad = gradient.to(parameter.dtype)


def stepped_by_hand(kind: type, steps: int, **settings) -> list[Tensor]:
    """The parameters after these steps, with fp32 copies."""
    parameters = parameters_of_all_kinds()
    copies = [nn.Parameter(p.detach().float()) for p in parameters]
    optimizer = kind([copies[0], copies[1], copies[3]], **settings)
    for number in range(steps):
        give_gradients(parameters, number)
        for parameter, copy in zip(parameters[:2], copies):
            copy.grad = parameter.grad.float()
        optimizer.step()
        for parameter, copy in zip(parameters, copies):
            parameter.data.copy_(copy.data)
    return [p.detach() for p in parameters]


def stepped_without_copies(kind: type, steps: int, **settings) -> list[Tensor]:
    """The update without copies: the optimizer is on the 16-bit parameters."""
    parameters = parameters_of_all_kinds()
    optimizer = kind([p for p in parameters if p.requires_grad], **settings)
    for number in range(steps):
        give_gradients(parameters, number)
        optimizer.step()
    return [p.detach() for p in parameters]


def words_of_kinds(parameters: list[nn.Parameter]) -> list[str]:
    return ["the bf16 matrix", "the fp32 vector", "the frozen vector", "the vector not used"]


def factor_of(scaler) -> float:
    return float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler.factor)


def scaled_step(scaler, weight: nn.Parameter, optimizer, gradient: float):
    """A step in which the true gradient is `gradient`."""
    scaler.scale((weight * 0.0).sum()).backward()
    weight.grad = torch.full_like(weight, gradient * factor_of(scaler))
    scaler.step(optimizer)
    scaler.update()


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", MASTERS)
def steps_on_copies(mine):
    """bits of the parameters after 12 steps of SGD with momentum and of AdamW"""
    for kind, settings in (
        (torch.optim.SGD, dict(lr=1e-3, momentum=0.9)),
        (torch.optim.AdamW, dict(lr=1e-3)),
    ):
        parameters = parameters_of_all_kinds()
        optimizer = mine.MasterWeights(parameters, kind, **settings)
        for number in range(COMPARED_STEPS):
            give_gradients(parameters, number)
            optimizer.step()
            optimizer.zero_grad()
        wanted = stepped_by_hand(kind, COMPARED_STEPS, **settings)
        lost = stepped_without_copies(kind, COMPARED_STEPS, **settings)
        before = parameters_of_all_kinds()
        for place, name in enumerate(words_of_kinds(parameters)):
            expect(
                f"{name} after {COMPARED_STEPS} steps of {kind.__name__}",
                parameters[place],
                wanted[place],
                {
                    "The copies may be right: round them into the parameters after the update.": (
                        before[place].detach()
                    ),
                    "That is 16-bit training: updates smaller than half a spacing are lost. The"
                    " optimizer inside must update fp32 copies that live on.": lost[place],
                },
                close=0,
            )


@ASSIGNMENT.trial("parity", MASTERS)
def small_updates(mine):
    """a thousand updates of 0.0001 move a weight of 1 by 0.1"""
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = mine.MasterWeights([weight], torch.optim.SGD, lr=1e-4)
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()
    expect(
        "a bf16 weight of 1 after 1,000 updates of -0.0001",
        weight,
        torch.full((3,), 0.9).bfloat16(),
        {
            "It has not moved: each update is smaller than half of bf16's spacing at 1, 0.0078 and"
            " 0.0039 below. The fp32 copy must live from step to step.": torch.ones(3).bfloat16()
        },
        close=0,
    )


@ASSIGNMENT.trial("parity", MASTERS)
def microbatches_in_fp32(mine):
    """gradients of 512 microbatches, taken after each, add up in fp32"""
    weight = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = mine.MasterWeights([weight], torch.optim.SGD, lr=1.0)
    for _ in range(512):
        weight.grad = torch.ones_like(weight)
        optimizer.take_gradients()
        demand(
            weight.grad is None,
            "after take_gradients the parameter still has its gradient, which the next backward"
            " would add to.",
        )
    optimizer.step()
    expect(
        "a weight of 0 after 512 microbatches with gradients of 1",
        weight,
        torch.full((2,), -512.0).bfloat16(),
        {
            "In bf16 256 + 1 is 256: add the gradients in fp32.": torch.full(
                (2,), -256.0
            ).bfloat16(),
            "Only the last microbatch counts: add to the gradient that the copy has.": torch.full(
                (2,), -1.0
            ).bfloat16(),
        },
        close=0,
    )


@ASSIGNMENT.trial("parity", SCALER)
def scales_step_by_step(mine):
    """the scale over steps with and without overflows, and the parameters, which skip these"""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = mine.LossScaler(init_scale=8.0, growth_interval=3)
    story = "good good good good OVERFLOW good good good good good good OVERFLOW OVERFLOW good"
    factor, row, moved = 8.0, 0, 0.0
    for number, event in enumerate(story.split(), 1):
        bad = event == "OVERFLOW"
        before = factor_of(scaler)
        scaled_step(scaler, weight, optimizer, torch.inf if bad else 0.25)
        moved -= 0.0 if bad else 0.25
        row = 0 if bad else row + 1
        factor = factor / 2 if bad else factor * 2 if row == 3 else factor
        row = 0 if row == 3 else row
        happened = "an overflow" if bad else "a good step"
        expect(
            f"the weight after step {number}, {happened}, at scale {before:g}",
            weight,
            torch.full((3,), moved),
            {
                "The gradient was not divided by the scale.": torch.full(
                    (3,), moved + (0 if bad else 0.25 - 0.25 * before)
                ),
                "The gradient was divided by the scale twice.": torch.full(
                    (3,), moved + (0 if bad else 0.25 - 0.25 / before)
                ),
            },
        )
        after = factor_of(scaler)
        why = ""
        if bad and after == before:
            why = " An overflow halves it."
        elif not bad and after > factor:
            why = (
                " It grows after growth_interval good steps in a row: an overflow begins a new row."
            )
        elif not bad and after < factor:
            why = " After growth_interval good steps in a row it doubles."
        demand(
            after == factor,
            f"the scale after step {number}, {happened}, growth_interval = 3, should be {factor:g},"
            f" and is {after:g}.{why}",
        )
        optimizer.zero_grad()


@ASSIGNMENT.trial("parity", SCALER)
def clipped_between(mine):
    """unscale_, a clip, then step: the gradients are divided once"""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = mine.LossScaler(init_scale=1024.0)
    loss = scaler.scale((weight * 3.0).sum())
    expect("scale(loss) of a loss of 0", loss, torch.zeros(()))
    loss.backward()
    scaler.unscale_(optimizer)
    expect(
        "the gradient after unscale_",
        weight.grad,
        torch.full((4,), 3.0),
        {"It is still scaled.": torch.full((4,), 3072.0)},
    )
    nn.utils.clip_grad_norm_([weight], 1.0)
    scaler.step(optimizer)
    scaler.update()
    expect(
        "the weight after unscale_, a clip to 1, and step",
        weight,
        torch.full((4,), -0.5),
        {"step divided the gradients again.": torch.full((4,), -0.5 / 1024)},
        close=1e-6,
    )


@ASSIGNMENT.trial("parity", SCALER)
def masters_and_a_scale(mine):
    """with MasterWeights, fp16 gradients of 2^-26 arrive"""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    optimizer = mine.MasterWeights([weight], torch.optim.SGD, lr=2.0**20)
    scaler = mine.LossScaler(init_scale=2.0**12)
    scaler.scale((weight.float() * 2.0**-26).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    expect(
        "an fp16 weight of 0 after a step with gradients of 2^-26, lr = 2^20",
        weight,
        torch.full((3,), -(2.0**-6)).half(),
        {
            "The gradient became zero in fp16: divide it in fp32, after take_gradients.": (
                torch.zeros(3).half()
            ),
            "The gradient was not divided by the scale.": torch.full((3,), -(2.0**6)).half(),
        },
        close=0,
    )


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", MASTERS)
def memory_between_steps(mine):
    """12 bytes for each 16-bit element after zero_grad: a copy and two moments"""
    model = nn.Linear(300, 300, bias=False).bfloat16()
    weight = model.weight
    with Ledger(model) as ledger:
        start = ledger.bytes.total
        optimizer = mine.MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
        for _ in range(2):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()
        more = ledger.bytes.total - start
    each = more / weight.numel()
    demand(
        each <= 12.1,
        f"between steps a bf16 element costs {each:.1f} bytes besides its own 2: the copy and"
        " AdamW's moments are 12. Drop gradients in fp32 with zero_grad, and keep one copy.",
    )
    demand(
        each >= 11.9,
        f"between steps a bf16 element costs {each:.1f} bytes besides its own 2, and a copy and two"
        " moments in fp32 are 12: something is not fp32, or is not kept.",
    )


@ASSIGNMENT.trial("bytes", SCALER)
def bytes_of_an_agreement(mine):
    """unscale_ sends one small message, step and update none"""
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = mine.LossScaler(init_scale=8.0)
    scaler.scale(weight.sum()).backward()
    counts = []
    for call in (lambda: scaler.unscale_(optimizer), lambda: scaler.step(optimizer), scaler.update):
        with CommunicationLog() as log:
            call()
        counts.append((len(log.messages), sum(message.nbytes for message in log.messages)))
    demand(
        counts[0][0] == 1 and counts[0][1] <= AGREEMENT_BYTES,
        f"unscale_ sends {counts[0][0]} messages of {counts[0][1]:,} bytes in all: one flag,"
        " reduced over all ranks, is enough.",
    )
    demand(
        counts[1][0] == counts[2][0] == 0,
        f"step and update send {counts[1][0]} and {counts[2][0]} messages: unscale_ has asked.",
    )


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", MASTERS)
def seconds_of_an_update(mine):
    """an update of a million bf16 elements by AdamW"""

    def update(kind):
        weights = [nn.Parameter(torch.ones(100_000, dtype=torch.bfloat16)) for _ in range(10)]
        optimizer = kind(weights, torch.optim.AdamW, lr=1e-3)

        def step():
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return race_of_two(update(mine.MasterWeights), update(ASSIGNMENT.reference[MASTERS]))


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", SCALER)
def overflow_on_one_rank(mine):
    """a NaN on rank 1 alone: all ranks skip the step and halve the scale"""
    for bad in (torch.nan, torch.inf, -torch.inf):
        weight = nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler = mine.LossScaler(init_scale=8.0)
        scaler.scale(weight.sum()).backward()
        if dist.get_rank() == 1:
            weight.grad[1] = bad
        scaler.step(optimizer)
        scaler.update()
        rank = dist.get_rank()
        expect(
            f"rank {rank}'s weight after a step with a gradient of {bad} on rank 1",
            weight,
            torch.zeros(3),
            {
                "Ranks must agree: those that step alone drift away from the others.": torch.full(
                    (3,), -1.0
                )
            },
        )
        demand(
            factor_of(scaler) == 4.0,
            f"rank {rank}'s scale after a gradient of {bad} on rank 1 should be 4, and is"
            f" {factor_of(scaler):g}.",
        )


@ASSIGNMENT.trial("faults", SCALER)
def wrong_order(mine):
    """unscale_ twice, step twice, update without either: RuntimeError (PyTorch: AssertionError)"""

    def begin():
        weight = nn.Parameter(torch.zeros(3))
        scaler = mine.LossScaler(init_scale=8.0)
        scaler.scale(weight.sum()).backward()
        return scaler, torch.optim.SGD([weight], lr=1.0)

    scaler, optimizer = begin()
    scaler.unscale_(optimizer)
    refuses(
        "unscale_ a second time",
        lambda: scaler.unscale_(optimizer),
        errors=(RuntimeError,),
        may_send=True,
    )
    scaler, optimizer = begin()
    scaler.step(optimizer)
    refuses(
        "step a second time", lambda: scaler.step(optimizer), errors=(RuntimeError,), may_send=True
    )
    scaler, optimizer = begin()
    refuses(
        "update without a step",
        scaler.update,
        errors=(RuntimeError, AssertionError),
        may_send=True,
    )


@ASSIGNMENT.trial("faults", SCALER)
def wrong_scales(mine):
    """a scale of 0, -1 or infinity, a loss in fp16; a scale that would grow to infinity"""
    for value in (0.0, -1.0, torch.inf, torch.nan):
        refuses(
            f"LossScaler({value})",
            lambda value=value: mine.LossScaler(value),
            errors=(ValueError,),
            may_send=True,
        )
    loss = torch.ones((), dtype=torch.float16, requires_grad=True)
    refuses(
        "scale of a loss in fp16",
        lambda: mine.LossScaler(8.0).scale(loss),
        errors=(ValueError,),
        may_send=True,
    )
    weight = nn.Parameter(torch.zeros(3))
    scaler = mine.LossScaler(init_scale=2.0**127, growth_interval=1)
    scaled_step(scaler, weight, torch.optim.SGD([weight], lr=1.0), 0.0)
    factor = factor_of(scaler)
    demand(
        factor == 2.0**127,
        f"a scale of 2^127 became {factor:g} after a good step: fp32 ends there, so the scale"
        " stays.",
    )


@ASSIGNMENT.trial("faults", MASTERS)
def loaded_weights(mine):
    """weights that are loaded between steps stay; other copies keep their digits"""
    weights = [nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = mine.MasterWeights(weights, torch.optim.SGD, lr=1e-3)

    def step(times):
        for _ in range(times):
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
            optimizer.zero_grad()

    step(1)  # the copies are 0.999, the weights 1
    with torch.no_grad():
        weights[0].fill_(5.0)
    step(3)
    expect(
        "a bf16 weight, loaded as 5, after 3 updates of -0.001",
        weights[0],
        torch.full((3,), 5.0).bfloat16(),
        {
            "The load is lost: the copy remembered what was there before.": torch.full(
                (3,), 0.996
            ).bfloat16()
        },
        close=0,
    )
    step(20)
    expect(
        "the other bf16 weight after 24 updates of -0.001",
        weights[1],
        torch.full((3,), 1 - 0.024).bfloat16(),
        {
            "Its copy lost its digits: only where the parameter is not the rounding of its copy,"
            " the copy begins anew.": torch.ones(3).bfloat16()
        },
        close=0,
    )


@ASSIGNMENT.trial("faults", MASTERS)
def without_gradients(mine):
    """a parameter without a gradient is left alone, with weight decay too"""
    weights = [nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = mine.MasterWeights(weights, torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    for _ in range(2):
        weights[0].grad = torch.ones_like(weights[0])
        optimizer.step()
        optimizer.zero_grad()
    expect(
        "a weight of 1 that got no gradient, after two steps with weight decay",
        weights[1],
        torch.ones(3).bfloat16(),
        close=0,
    )
    demand(
        all(weight.grad is None for weight in weights),
        "after zero_grad a parameter still has a gradient.",
    )
