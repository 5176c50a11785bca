"""Real ranks on virtual GPUs: each has a clock, and they tell each other when they come."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ranklab.virtual import GPU, Links, VirtualGPU, VirtualGPUs
from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.pipelines import schedules
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.simulation import Costs, simulate

SIMPLE = GPU({torch.float32: 1e12}, 1e9, Links(1e9, ranks_per_node=4), launch_seconds=5e-6)
HIDDEN, ROWS = 1024, 512
UNIT = round(2 * HIDDEN**2 * ROWS / 1000)  # nanoseconds of a product
TRANSFER = UNIT // 3
QUICK = Links(4 * HIDDEN * ROWS / TRANSFER * 1e9, node_latency_seconds=0)
ARITHMETIC = GPU({torch.float32: 1e12}, 1e18, QUICK, launch_seconds=0)


def late_rank():
    rank = dist.get_rank()
    with VirtualGPU(SIMPLE) as gpu:
        x, y, real = torch.ones(100_000 * (rank + 1)), torch.ones(1000), [None] * 4
        with gpu.step() as step:
            x.add_(1)  # 0.8 ms, 1.6 ms, ...
            dist.all_reduce(y)
            if rank == 0:
                dist.send(y, 3)
            if rank == 3:
                dist.recv(y, 0)
    dist.all_gather_object(real, rank)
    return (
        [(span.name, span.start, span.end) for span in step.spans],
        step.idle_seconds("other ranks"),
        real,
    )


def test_a_message_starts_when_the_last_rank_has_come(worlds):
    """Must catch: a message that starts when this rank comes; times that are told where PyTorch
    computes shapes alone, so that they are garbage; a sender that is done before its receiver has
    come; real tensors that are not sent any more."""
    ring = 6 * 3_400 + 6_000
    for rank, (spans, waited, real) in enumerate(worlds(4).run(late_rank)):
        came = 5_000 + 800_000 * (rank + 1)
        message = ("all_reduce", 3_205_000, 3_205_000 + ring)
        assert spans[:2] == [("add_", 5_000, came), message]
        assert real == [0, 1, 2, 3]
        if rank in (0, 3):
            begin = 3_205_000 + ring
            assert spans[2] == ({0: "send", 3: "recv"}[rank], begin, begin + 3_400 + 4_000)
        others = 3_205_000 - came + (rank in (1, 2)) * (3_400 + 4_000)
        assert waited == pytest.approx(others / 1e9)


CARD = replace(SIMPLE, flops_per_second={torch.float32: 1e13}, contention=0.5)


def trained(own: VirtualGPU, stage: int):
    with own:
        net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
        if stage:
            options = dict(units=[*net]) if stage == 3 else dict(bucket_bytes=1 << 18)
            adam = dict(stage=stage, prefetch=True, fused=True)
            net, adam = zero.shard(net, torch.optim.AdamW, **adam, **options)
        else:
            net = DistributedDataParallel(net, bucket_bytes=1 << 18)
            adam = torch.optim.AdamW(net.parameters(), fused=True)
        for _ in range(2):
            with own.step() as step:
                net(torch.ones(512, 256)).sum().backward()
                adam.step()
                adam.zero_grad()
    return step


def trained_on_a_real_rank(stage: int):
    return trained(VirtualGPU(CARD), stage)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_real_ranks_take_the_time_of_ranks_that_do_not_exist(worlds, stage):
    """To the nanosecond. Must catch: an end of a message that real ranks learn when they wait for
    it, so that kernels beside it are slowed after all of them; kernels that real ranks alone
    launch."""
    expected = trained(VirtualGPUs(2, CARD), stage)
    assert any(span.end - span.start > 30_000 for span in expected.spans if span.name == "mm")
    assert worlds(2).run(trained_on_a_real_rank, stage) == [expected] * 2


def both_ways():
    me = dist.get_rank()
    with VirtualGPU(SIMPLE) as gpu:
        x, y = torch.ones(250_000), torch.ones(250_000)
        with gpu.step() as step:
            for work in (dist.isend(x, me ^ 1), dist.irecv(y, me ^ 1)):
                work.wait()
    return [(span.start, span.end) for span in step.spans]


def test_a_link_carries_messages_both_ways_at_once(worlds):
    """Must catch: all single messages of a rank one after the other."""
    begin = 10_000  # each receives from its second launch on
    for spans in worlds(4).run(both_ways):
        assert spans == [(begin, begin + 3_400 + 1_000_000)] * 2


def pipelined(plans):
    ends = []
    for plan, counts in plans:
        with VirtualGPU(ARITHMETIC) as gpu:
            layers = [nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(sum(counts))]
            x = torch.ones(8 * ROWS, HIDDEN)
            planned = plan_pipeline(layers, plan, x, counts)
            pipeline = Pipeline(layers, planned, lambda y, _: y.mean())
            with gpu.step() as step:
                pipeline.step(x, x)
        assert step.host_waits == 0
        ends.append((step.end, step.computing_seconds))
    return ends


def test_a_pipeline_takes_the_time_of_its_schedule(worlds):
    """Must catch: receives that make a stage wait although it computes something else first; a rank
    whose clock another rank's message does not move."""
    plans = [
        schedules.gpipe(4, 8),
        schedules.one_f_one_b(4, 8),
        schedules.interleaved(4, 8, 2),
        schedules.zero_bubble_h1(4, 8),
    ]
    numbers = [1 + max(action.stage for own in plan for action in own) for plan in plans]
    found = worlds(4).run(pipelined, [(plan, [1] * n) for plan, n in zip(plans, numbers)])
    for number, (plan, stages) in enumerate(zip(plans, numbers)):
        # nobody wants the input's gradient
        costs = Costs(UNIT, [0] + [UNIT] * (stages - 1), UNIT, TRANSFER)
        seconds = simulate(plan, costs).seconds
        for rank in range(4):
            assert found[rank][number][0] == pytest.approx(seconds, rel=1e-4), (number, rank)


def test_zero_bubble_takes_no_longer_than_its_longest_stage(worlds):
    """No order is faster. Must catch: W of the last stage before the gradients for which the others
    wait (`late` is 0); a last stage that waits for a message, or whose I makes the gradients of
    weights."""
    found = worlds(4).run(pipelined, [(schedules.zero_bubble_h1(4, 8), [1, 1, 1, 2])])
    (seconds,) = {end / 1e9 for [(end, _)] in found}
    [(_, computing)] = found[-1]
    assert computing == pytest.approx(8 * 2 * 3 * UNIT / 1e9, rel=1e-4)
    assert seconds == pytest.approx(3 * (UNIT + TRANSFER) / 1e9 + computing, rel=1e-4)
