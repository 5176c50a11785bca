"""The model on which stage 3 is tried, and what its trials compare."""

from functools import partial

import torch
from torch import Tensor, nn

from coursekit.exercises.on_a_rank import Here, demand, expect
from coursekit.exercises.trap_model import inputs_of
from shardlab.measure.ledger import Ledger

from .given import CLOSE

SHARD, WHOLE = "fully_shard", "whole_parameters"
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)


class Stack(nn.Module):
    """[N, 5] -> [N, 5]: units of odd sizes, a frozen one, a weight that two units share, and a
    parameter that is in no unit."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 5)
        self.blocks = nn.ModuleList(nn.Linear(7, 7) for _ in range(4))
        self.scale = nn.Parameter(torch.empty(5))
        self.double()
        for tensor in self.parameters():
            tensor.data.normal_(generator=generator)
        self.blocks[3].weight = self.blocks[0].weight
        self.blocks[1].requires_grad_(False)

    def forward(self, x: Tensor, watch=None) -> Tensor:
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = torch.tanh(block(x))
            if watch is not None:
                x.register_hook(watch)
        return self.last(x) * self.scale


def units_of(model: Stack) -> list[nn.Module]:
    return [model.first, *model.blocks, model.last]


def sharded_stack(mine, here: Here) -> Stack:
    model = Stack(here.me)
    mine.fully_shard(model, units_of(model), here.group)
    return model


def stack_loss(model: nn.Module, rank: int, number: int = 0, **named) -> Tensor:
    return (model(inputs_of(rank, number), **named) ** 2).mean()


def mean_stack_loss(model: nn.Module, ranks, number: int = 0) -> Tensor:
    losses = [stack_loss(model, rank, number) for rank in ranks]
    return sum(losses) / len(losses)


def stepped_stack(ranks, factor: float = 1.0) -> Stack:
    model = Stack(0)
    (factor * mean_stack_loss(model, ranks)).backward()
    SGD(model.parameters()).step()
    return model


def compare_whole(what: str, mine, model: nn.Module, plain: nn.Module, others: dict | None = None):
    found, wanted = mine.whole_parameters(model), dict(plain.named_parameters())
    demand(
        isinstance(found, dict),
        f"whole_parameters should return a dict, not {type(found).__name__}.",
    )
    missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    demand(
        not missing and not more,
        f"whole_parameters should have the names of the plain module's named_parameters:"
        f" {', '.join(missing) or 'nothing'} is missing, {', '.join(more) or 'nothing'} is too"
        " much. A tied weight has its first name.",
    )
    for name, right in wanted.items():
        instead = {said: o.get_parameter(name).detach() for said, o in (others or {}).items()}
        expect(f"{what}: {name}", found[name], right.detach(), instead, CLOSE)


def held_besides_shards(
    model: nn.Module, inputs: Tensor, backward: bool = False
) -> tuple[int, int]:
    """Bytes besides the shards: at the peak of a forward, and of its backward, and after it."""
    with Ledger(model) as ledger:
        start = ledger.bytes.total
        y = model(inputs)
        if backward:
            y.sum().backward()
        del y
        after = ledger.bytes.total - start
    return max((point.bytes.total for point in ledger.timeline), default=start) - start, after
