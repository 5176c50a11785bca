"""Mixed precision with data parallelism, ZeRO, tensor parallelism and pipelines."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from drawn import drawn
from night import at_night
from refusals import said_by
from torch import nn

from shardlab import zero
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mesh import Mesh
from shardlab.mixed_precision import LossScaler, MasterWeights
from shardlab.mixed_precision.hardened.loss_scaler import CannotScale, OverflowEveryStep
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.tensor_parallel import apply_tensor_parallel, gpt_plan, vocabulary_parallel_loss
from shardlab.zero.hardened.full_parameters import unsharded

pytestmark = pytest.mark.usefixtures("one_thread")  # as a rank: 16-bit sums depend on threads
CONFIG = dict(layers=4, hidden=8, heads=4, vocabulary=11, max_sequence=6)
M = 4  # microbatches
BOTH = [torch.float16, *at_night(torch.bfloat16)]


# --- one overflow, all ranks ----------------------------------------------------------------------


def train_on_three_axes(scaler_of, dtype, scale):
    """Scales after each step, whether the step moved this rank's weights, and the norms: dp x pp x
    tp. In step r one gradient of rank r or r + 4 becomes infinite, after all sums; the last step
    has none. PyTorch's scaler relies on replicas that are alike, so there both replicas have it."""
    mesh = Mesh(dp=2, pp=2, tp=2)
    torch.manual_seed(7)
    sizes = GPTConfig(**CONFIG)
    model = GPT(sizes).to(dtype)
    tokens, targets = microbatches_of(mesh.dp.rank)
    layers = [model.embedding, *model.blocks, model.head]
    plan = plan_pipeline(layers, schedule("1F1B", 2, M), tokens)
    apply_tensor_parallel(model, gpt_plan(sizes), mesh.tp.group)
    layers = [model.embedding, *model.blocks, model.head]
    scaler = scaler_of(init_scale=scale, growth_interval=2)
    in_fp32 = partial(vocabulary_parallel_loss, vocabulary=11, group=mesh.tp.group)
    pipeline = Pipeline(
        layers, plan, lambda y, t: scaler.scale(in_fp32(y.float(), t)), mesh.pp.group
    )
    replicas = DistributedDataParallel(pipeline, group=mesh.dp.group)
    if dtype is torch.float32:
        optimizer = torch.optim.AdamW(replicas.parameters(), lr=1e-2)
    else:
        optimizer = MasterWeights(replicas.parameters(), torch.optim.AdamW, lr=1e-2)
    updated = optimizer.param_groups[0]["params"]
    seen, norms = [], []
    ours, (replica, place) = isinstance(scaler, LossScaler), divmod(dist.get_rank(), 4)
    for step in range(5):
        optimizer.zero_grad()
        before = [tensor.clone() for tensor in updated]
        pipeline.step(tokens, targets)
        if step == place and (not ours or replica == step % 2):
            next(p.grad for p in pipeline.parameters() if p.grad is not None).view(-1)[0] = (
                torch.inf
            )
        scaler.unscale_(optimizer)
        norms.append(clip_gradients(optimizer, 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        moved = any(not torch.equal(m, b) for m, b in zip(updated, before))
        seen.append((scaler.state_dict()["scale"], moved))
    return seen, norms


def norm_of_all(dtype):
    """The norm of the mean gradient of both replicas, in fp32; weights are as in `dtype`."""
    torch.manual_seed(7)
    model = GPT(GPTConfig(**CONFIG)).to(dtype).float()
    tokens, targets = map(torch.cat, zip(*map(microbatches_of, (0, 1))))
    next_token_loss(model(tokens), targets).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("scaler_of", "dtype"),
    [
        (LossScaler, torch.float16),
        (partial(torch.amp.GradScaler, "cpu"), torch.float16),
        *at_night((LossScaler, torch.bfloat16)),
        *at_night((partial(torch.amp.GradScaler, "cpu"), torch.float32)),
    ],
    ids=["ours", "GradScaler", "ours, bf16", "GradScaler and plain AdamW"],
)
def test_all_ranks_agree_on_an_overflow(worlds, scaler_of, dtype):
    """Must catch: agreement over one axis of the mesh alone; a rank that steps first and agrees
    then; GradScaler that knows the parts of tensor parallelism and not the stages, also those
    without a loss, or stages of parameters and not of their fp32 copies; fp32 copies of parts that
    count as whole in the norm; parts that are unscaled on one rank. The norm is behind
    some 90 roundings, each off by eps / 2 of its size."""
    events, norms = zip(*worlds(8).run(train_on_three_axes, scaler_of, dtype, 2.0**14))
    halved = [(2.0 ** (13 - step), False) for step in range(4)]
    assert events == ([*halved, (2.0**10, True)],) * 8
    (last,) = {of_rank[-1] for of_rank in norms}
    assert last == pytest.approx(norm_of_all(dtype), rel=3 * torch.finfo(dtype).eps / 2 * 90**0.5)


def on_every_step():
    """The sentence for each rank if one rank's gradients overflow forever."""
    weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = MasterWeights([("head.weight", weight)], torch.optim.SGD, lr=0.1)
    scaler = LossScaler(most_skips=3)
    for _ in range(20):
        scaler.scale(torch.ones(()))
        weight.grad = torch.full_like(weight, torch.inf if dist.get_rank() == 1 else 1.0)
        try:
            scaler.step(optimizer)
            scaler.update()
        except OverflowEveryStep as error:
            return str(error)
        optimizer.zero_grad()


def no_gradient_here():
    """A rank without gradients takes part, and the loss may be on one rank alone."""
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5), LossScaler(2.0)
    if dist.get_rank() == 3:
        scaler.scale(torch.ones(()))
    if dist.get_rank() != 2:
        weight.grad = torch.full((2,), 2.0)
    scaler.step(optimizer)
    scaler.update()
    return weight.tolist()


def test_errors_are_raised_on_all_ranks(four):
    """Must catch: an error on one rank while the others wait; a rank without gradients that does
    not send its flag."""
    told = four.run(on_every_step)
    assert all(sentence.startswith("4 steps in a row") for sentence in told)
    assert "head.weight of shape [2] is not" in told[1] and "another rank" in told[0]
    found = four.run(no_gradient_here)
    assert found == [[0.5, 0.5], [0.5, 0.5], [1, 1], [0.5, 0.5]]


# --- parity with one process ----------------------------------------------------------------------


def net():
    torch.manual_seed(3)
    layers = nn.Linear(6, 9), nn.Linear(9, 5), nn.Linear(5, 3)
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.5)
        nn.init.normal_(layer.bias, std=0.5)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def part(rank, step):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model, x, dtype):
    return model(x.to(dtype)).float().square().mean()


STEPS, LR = 3, 1e-2


def one_process(dtype):
    """Two halves of a batch; gradients halved in 16 bits and added, as two ranks do."""
    model = net().to(dtype)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=LR)
    scaler = LossScaler(2.0**8)
    for step in range(STEPS):
        halves = []
        for rank in (0, 1):
            model.zero_grad()
            scaler.scale(loss_of(model, part(rank, step), dtype)).backward()
            halves.append([p.grad / 2 for p in model.parameters()])
        for parameter, left, right in zip(model.parameters(), *halves):
            parameter.grad = left + right
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).float()


def pairs_of_ranks(how, dtype):
    """Trainings on two ranks, twice, by a technique: whole 16-bit weights, or each rank's
    shards of them."""
    mesh = Mesh(dp=2, tp=2)
    group, model = mesh.dp.group, net()
    if mesh.dp.rank:  # begin differently: rank 0's values are handed out
        for parameter in model.parameters():
            nn.init.normal_(parameter)
    scaler = LossScaler(2.0**8)
    if how == "stage 3":
        model.to(dtype).float()  # what masters begin with
        rule = torch.optim.AdamW
        options = dict(units=[model[0], model[2], model[4]], compute_dtype=dtype)
    else:
        model.to(dtype)
        rule, options = MasterWeights, dict(of=torch.optim.AdamW)
    stage = 0 if how == "replicas" else int(how[-1])
    model, optimizer = zero.shard(model, rule, stage=stage, group=group, lr=LR, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, part(mesh.dp.rank, step), dtype)).backward()
        scaler.step(optimizer)
        scaler.update()
    if how == "stage 3":
        with unsharded(model):
            weights = [p.detach().to(dtype) for p in model.parameters()]
    else:
        weights = [p.detach() for p in model.parameters()]
    held = sum(m.nbytes for _, m in getattr(getattr(optimizer, "inner", None), "pairs", ()))
    return torch.cat([w.flatten() for w in weights]).float(), held


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("how", ["replicas", "stage 1", "stage 2", "stage 3"])
def test_parity_of_techniques(four, how, dtype):
    """Bit for bit: two halves are added. Must catch: masters of each rank's own beginning, or of
    all parameters in stages 1 and 2; gradients of shards unscaled in fp16, or counted twice; the
    division by the number of ranks after the sum."""
    want = one_process(dtype)
    elements = want.numel()
    for weights, held in four.run(pairs_of_ranks, how, dtype):
        assert torch.equal(weights, want)
        if how in ("stage 1", "stage 2"):
            assert held in (4 * (elements // 2), 4 * (elements - elements // 2))


def microbatches_of(step):
    draw = torch.Generator().manual_seed(step)
    return [torch.randint(11, (M, 6), generator=draw) for _ in range(2)]


def gpt_in(dtype):
    """(model, its layers)"""
    model = drawn(lambda: GPT(GPTConfig(**CONFIG, tied_head=0)), 7, std=0.2).to(dtype)
    return model, [model.embedding, *model.blocks, model.head]


def through_stages(theirs):
    """The 16-bit weights of this rank's layers after three steps, by their number and name."""
    mesh = Mesh(dp=2, pp=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if theirs else LossScaler(2.0**8)
    _, layers = gpt_in(torch.float16)
    plan = plan_pipeline(layers, schedule("1F1B", 2, M), microbatches_of(0)[0])
    pipeline = Pipeline(
        layers, plan, lambda y, t: scaler.scale(next_token_loss(y.float(), t)), mesh.pp.group
    )
    optimizer = MasterWeights(pipeline.parameters(), torch.optim.AdamW, lr=LR)
    for step in range(STEPS):
        optimizer.zero_grad()
        pipeline.step(*microbatches_of(step))
        scaler.step(optimizer)
        scaler.update()
    return {name: p.detach() for name, p in pipeline.layers.named_parameters()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "GradScaler"])
def test_parity_of_stages(four, theirs):
    """Bit for bit. Must catch: a stage without a loss whose gradients stay scaled, or are unscaled
    twice; masters of layers that belong to another rank."""
    _, layers = gpt_in(torch.float16)
    wanted = nn.ModuleDict({str(number): layer for number, layer in enumerate(layers)})
    optimizer = MasterWeights(wanted.parameters(), torch.optim.AdamW, lr=LR)
    scaler = LossScaler(2.0**8)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, t in zip(*(batch.chunk(M) for batch in microbatches_of(step))):
            for layer in layers:
                x = layer(x)
            (scaler.scale(next_token_loss(x.float(), t)) / M).backward()
        scaler.step(optimizer)
        scaler.update()
    whole = dict(wanted.named_parameters())
    found = four.run(through_stages, theirs)
    assert {name for own in found for name in own} == set(whole)
    for own in found:
        assert all(torch.equal(weight, whole[name]) for name, weight in own.items())


# --- what other techniques have cut ---------------------------------------------------------------


def scaled_in(axis, stage):
    """On a rank: what a scaler says that knows the ranks of one axis."""
    mesh, sizes = Mesh(dp=2, tp=2), GPTConfig(**CONFIG)
    model = apply_tensor_parallel(GPT(sizes), gpt_plan(sizes), mesh.tp.group)
    model, optimizer = zero.shard(model, torch.optim.SGD, stage=stage, group=mesh.dp.group, lr=0.1)
    scaler = LossScaler(group=getattr(mesh, axis).group)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    loss = vocabulary_parallel_loss(model(tokens), tokens, 11, mesh.tp.group)
    scaler.scale(loss).backward()
    return said_by(lambda: scaler.step(optimizer), CannotScale)


def test_a_scaler_of_some_ranks(four):
    """Must catch: scales of 64 and 32 on the ranks of one model, by a group along dp, or by one
    along tp where ZeRO has cut along dp; a refusal of one axis beside replicas."""
    for axis, stage in (("dp", 0), ("tp", 1), ("dp", 3)):
        for said in four.run(scaled_in, axis, stage):
            assert said and said.startswith("the scaler's group has the ranks ["), (axis, stage)
            assert "have other parts of the model: give it all ranks that train one" in said
    assert four.run(scaled_in, "tp", 0) == [None] * 4
