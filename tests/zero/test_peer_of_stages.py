"""PyTorch's DDP, ZeroRedundancyOptimizer and first FSDP, where data parallelism and stages 1 and 2
say that PyTorch does the same."""

import copy
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchReplicas

from shardlab.data_parallel import CannotReplicate, DistributedDataParallel
from shardlab.zero.hardened import stage1

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def two(worlds):
    return worlds(2)


def layers(*sizes):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))


def own_input(features):
    return torch.full((1, features), 1.0 + dist.get_rank())


def redundancy(params, *args, **named):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(params, *args, **named)


def test_frozen_parameters_that_are_not_given_stay_each_ranks_own(two):
    """ZeroRedundancyOptimizer hands out nothing at all; zero.shard hands out everything.

    Must catch: a sentence of this book that says so and is out of date."""

    def frozen(kind):
        torch.manual_seed(dist.get_rank())
        layer = nn.Linear(3, 3)
        layer.bias.requires_grad_(False)
        kind([layer.weight], torch.optim.SGD, lr=0.1)
        return layer.bias.tolist()

    for kind in (redundancy, stage1.ShardedOptimizer):
        first, second = two.run(frozen, kind)
        assert first != second


def test_a_gradient_that_is_missing_counts_as_zeros(two):
    """So the parameter decays, as in a flat parameter of PyTorch's first FSDP.

    Must catch: a parameter of a shared flat tensor that decay leaves alone."""

    def fsdp1(model):
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)

    def ours(model):
        return model, stage1.ShardedOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, weight_decay=0.5
        )

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    def decayed(shard):
        torch.manual_seed(0)
        net = Half()
        norm = net.unused.weight.norm().item() ** 2 + net.unused.bias.norm().item() ** 2
        model, optimizer = shard(net)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        if shard is fsdp1:
            from torch.distributed.fsdp import FullyShardedDataParallel

            with FullyShardedDataParallel.summon_full_params(model):
                after = sum(p.norm().item() ** 2 for p in net.unused.parameters())
        else:
            after = sum(p.norm().item() ** 2 for p in net.unused.parameters())
        return after / norm

    for shard in (fsdp1, ours):
        assert two.run(decayed, shard) == pytest.approx([0.95**2] * 2)


def test_copies_of_replicas(two):
    """Must catch: a copy of this book's that does otherwise."""

    def copied(replicas):
        twin = copy.deepcopy(replicas(layers(4, 2)))
        twin(own_input(4)).sum().backward()
        return twin.module[0].weight.grad.unique().tolist()

    def of_a_group(replicas):
        model = replicas(layers(4, 2), process_group=dist.new_group([0, 1]))
        try:
            copy.deepcopy(model)
        except (TypeError, RuntimeError, CannotReplicate) as error:
            return type(error).__name__

    for replicas in (TorchReplicas, DistributedDataParallel):
        assert two.run(copied, replicas) == [[1.5]] * 2
    assert None not in two.run(of_a_group, TorchReplicas)
