"""A step of stages 1 and 2, and what misconceptions make of it."""

import torch
from torch import nn

from coursekit.exercises.on_a_rank import Here, closest, expect
from coursekit.exercises.trap_model import Trap, plain_model, trained

from .given import CLOSE

BOTH = ("ShardedStates", "ShardedGradients")
SMALL_BUCKET_BYTES = 200
SETTINGS = (
    (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1)),
    (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1)),
)
SGD, SGD_SETTINGS = SETTINGS[0]


def begun(here: Here) -> Trap:
    """Ranks begin with different parameters. Buffers are alike: an optimizer is not given them."""
    module = Trap(here.me)
    module.shift.copy_(Trap(0).shift)
    return module


def zeros_for_none(model: nn.Module) -> nn.Module:
    for parameter in trained(model):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return model


def after_a_step(ranks, number: int = 0, some_rank: int = -1, factor: float = 1.0) -> nn.Module:
    """The plain model after one step of SGD with the mean gradient of these ranks."""
    model = zeros_for_none(plain_model(0, ranks, number, some_rank, factor))
    SGD(model.parameters(), **SGD_SETTINGS).step()
    return model


def compare_step(what: str, module: nn.Module, here: Here, some_rank: int = -1):
    """Each parameter after the first step of SGD, with what misconceptions lead to."""
    n = here.n
    right, before = after_a_step(range(n), 0, some_rank), Trap(0)
    others = {
        f"That is a step with the sum over {n} ranks: divide by {n}.": after_a_step(
            range(n), 0, some_rank, n
        ),
        "That is a step with the mean divided by the number of ranks once more.": after_a_step(
            range(n), 0, some_rank, 1 / n
        ),
    }
    own = [after_a_step([rank], 0, some_rank) for rank in range(n)]
    for name, wanted in right.named_parameters():
        got = module.get_parameter(name)
        instead = {said: other.get_parameter(name).detach() for said, other in others.items()}
        if got.shape == wanted.shape:
            pair = [wanted.detach(), before.get_parameter(name).detach()]
            instead[
                "Nothing changed, or some of the elements: each rank has updated its shard, and"
                " all-gather hands the shards to all."
            ] = closest(got, pair)
            instead[
                "Each element is updated with the gradient of one rank: reduce-scatter adds up"
                " those of all ranks."
            ] = closest(got, [other.get_parameter(name).detach() for other in own])
        expect(f"{what}: {name}", got, wanted.detach(), instead, CLOSE)
