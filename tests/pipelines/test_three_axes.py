"""Data, pipeline and tensor parallelism with sequence parallelism at once, on 8 ranks: the losses
of one process."""

import sys
from functools import partial

import cloudpickle
import pytest
import torch
from torch import nn

from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.ranks import ranks
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])
CONFIG = dict(layers=4, hidden=8, heads=4, vocabulary=11, max_sequence=6)
M, STEPS = 4, 3


@pytest.fixture(scope="module")
def eight():
    before = torch.get_default_dtype()
    with ranks(8, device="cpu", announce=False) as world:
        yield world
    torch.set_default_dtype(before)


def gpt_of(seed):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    model = GPT(GPTConfig(**CONFIG))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def part_of(number):
    """(tokens, targets) of a data-parallel rank."""
    draw = torch.Generator().manual_seed(number)
    return tuple(torch.randint(11, (M, 6), generator=draw) for _ in range(2))


class Counting(Pipeline):
    """Notes how many products each I has left to its W."""

    def input_gradient_of(self, action):
        super().input_gradient_of(action)
        self.products = len(self.put_off[action.stage, action.microbatch])


def train_on_three_axes(kind):
    """(losses of each step, products that an I left to its W)"""
    mesh = Mesh(dp=2, pp=2, tp=2)
    model = gpt_of(seed=7)
    tokens, targets = part_of(mesh.dp.rank)

    def layers():
        return [model.embedding, *model.blocks, model.head]

    plan = plan_pipeline(layers(), schedule(kind, 2, M), tokens)
    # between the stages, too, a rank has its own tokens alone
    shapes = [(b, s // mesh.tp.size, *rest) for (b, s, *rest), _ in plan.outputs]
    outputs = [o._replace(shape=shape) for o, shape in zip(plan.outputs, shapes)]
    apply_tensor_parallel(model, sequence_parallel(gpt_plan(model.config)), mesh.tp.group)
    loss = partial(vocabulary_parallel_loss, vocabulary=11, group=mesh.tp.group)
    pipeline = Counting(layers(), plan._replace(outputs=outputs), loss, mesh.pp.group)
    replicas = DistributedDataParallel(pipeline, group=mesh.dp.group)
    optimizer = torch.optim.SGD(replicas.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(pipeline.step(tokens, targets).tolist())
        sum_gradients(optimizer, mesh.tp.group)
        optimizer.step()
    return losses, getattr(pipeline, "products", 0)


@pytest.mark.parametrize("kind", ("1F1B", "zero-bubble H1"))
def test_dp_pp_tp_and_sequence_parallel(eight, kind):
    """Three steps of SGD of a GPT with a tied head. Zero bubble puts off all that the ranks have
    parts of: four linear layers of each block, and the head.

    Must catch: gradients of a microbatch averaged before the last; a tied weight of which each tp
    rank has a part that is added to another part; messages of whole sequences between stages; I
    that does the whole backward of a layer cut by columns or rows."""
    model = gpt_of(seed=7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    want = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        want.append([])
        for part in (0, 1):
            tokens, targets = part_of(part)
            of_part = []
            for x, target in zip(tokens.chunk(M), targets.chunk(M)):
                loss = next_token_loss(model(x), target)
                (loss / (2 * M)).backward()
                of_part.append(loss.item())
            want[-1].append(of_part)
        optimizer.step()
    found = eight.run(train_on_three_axes, kind)
    for part, rank in ((0, 2), (0, 3), (1, 6), (1, 7)):  # the last stages of both replicas
        for step in range(STEPS):
            assert found[rank][0][step] == pytest.approx(want[step][part], rel=1e-12, abs=0)
    first, last = (8, 9) if kind == "zero-bubble H1" else (0, 0)
    assert [products for _, products in found] == [first, first, last, last] * 2
