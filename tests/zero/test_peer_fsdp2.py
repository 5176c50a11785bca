"""PyTorch's FSDP2 beside stage 3, and its first FSDP beside stage 1, where these say that PyTorch
does the same, or that it does not."""

from contextlib import nullcontext
from functools import partial

import pytest
import tables
import torch
import torch.distributed as dist
from night import at_night
from test_zero_misuses import linears
from torch import nn
from torch.optim import SGD

from ranklab.ranks import RankError, ranks
from shardlab.zero.hardened import stage1, stage3
from shardlab.zero.hardened.flat import Native


@pytest.fixture(scope="module")
def pair():
    with ranks(2, device="cpu", announce=False, patience_seconds=4) as world:
        yield world


def fsdp2(model, units=()):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for unit in dict.fromkeys([*units, model]):
        fully_shard(unit, mesh=mesh)
    return model


def crosswise(shard, width=8, frozen=False, before=0):
    """On a rank: how far the output of the unit with the rank's number is from its own."""
    model, x = linears(width, width, width, bias=False), torch.ones(1, width)
    want = model[dist.get_rank()](x).sum().item()
    shard(model.requires_grad_(not frozen), list(model))
    dist.barrier()
    for _ in range(before):
        model[0](x)
    return abs(model[dist.get_rank()](x).sum().item() - want)


NATIVE = partial(stage3.fully_shard, collectives=Native())
AHEAD = partial(stage3.fully_shard, collectives=tables.LastMoment(), prefetch=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "said, shard, model",
    [
        ("wait for each other", stage3.fully_shard, ()),
        ("disagree", NATIVE, (7,)),
        *at_night(
            ("disagree", NATIVE, ()),
            ("disagree", NATIVE, (8, True)),
            ("disagree", AHEAD, (8, False, 2)),
        ),
    ],
)
def test_different_units_on_different_ranks(pair, said, shard, model):
    """FSDP2 gathers units of one size crosswise, without a word. Must catch: a stage 3 that does so
    too, because messages of two units fit each other (a Ring without numbered, Native without
    named)."""
    assert min(pair.run(crosswise, fsdp2)) > 0.01
    with pytest.raises(RankError, match=said) as caught:
        pair.run(crosswise, shard, *model)
    assert "of unit 1" in str(caught.value) and "of unit 2" in str(caught.value)


class Maybe(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, used):
        return self.layer(x) if used else x * 1


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.maybe, self.last = nn.Linear(8, 8), Maybe(), nn.Linear(8, 8)

    def forward(self, x, used):
        return self.last(self.maybe(self.first(x), used)).pow(2).sum()


@pytest.mark.parametrize("shard", [stage3.fully_shard, *at_night(fsdp2)])
def test_a_unit_that_one_rank_does_not_use(pair, shard):
    """Must catch: a wait without an end, or gradients of other units, where the data of one rank
    leave parameters out."""

    def step(shard, used):
        model = Branches()
        shard(model, [model.first, model.maybe, model.last])
        model(torch.ones(1, 8), used(dist.get_rank())).backward()
        return [p.grad is not None for p in model.maybe.parameters()]

    for found in pair.run(step, shard, lambda rank: False):
        assert not any(found)
    with pytest.raises(RankError, match="disagree|wait for each other|ended without"):
        pair.run(step, shard, lambda rank: rank == 0)


def decayed(by_fsdp1):
    """The square of an unused layer's norm after a step, over that before."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    net = nn.ModuleDict(dict(used=nn.Linear(4, 2), unused=nn.Linear(4, 4)))
    net.forward = net["used"].forward
    rule = SGD if by_fsdp1 else partial(stage1.ShardedOptimizer, optimizer_cls=SGD)
    squares = lambda: sum(p.norm().item() ** 2 for p in net["unused"].parameters())
    before = squares()
    model = FullyShardedDataParallel(net, device_id=torch.device("cpu")) if by_fsdp1 else net
    optimizer = rule(model.parameters(), lr=0.1, weight_decay=0.5)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    whole = FullyShardedDataParallel.summon_full_params(model) if by_fsdp1 else nullcontext()
    with whole:
        return squares() / before


def test_a_gradient_that_is_missing_counts_as_zeros(pair):
    """So the parameter decays, as in a flat parameter of PyTorch's first FSDP.

    Must catch: a parameter of a shared flat tensor that decay leaves alone."""
    for by_fsdp1 in (True, False):
        assert pair.run(decayed, by_fsdp1) == pytest.approx([0.95**2] * 2)
