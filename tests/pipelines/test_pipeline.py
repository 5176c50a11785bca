"""Pipelines on real ranks against the plain model, whose gradients are added up by microbatch as a
pipeline does: only the tied weight's sum has another order, hence 1e-12 and not equality."""

import builtins
import os
import re
import signal
import time
from functools import partial

import compositions
import pytest
import torch
import torch.distributed as dist
from night import at_night
from refusals import said_by
from solved import Given, of_model
from told import from_told, sections
from torch import nn
from torch.utils.checkpoint import checkpoint

from coursekit.topics.pipelines.sleeping import measured_spans, seconds_of, sleeping_plan
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from ranklab.ranks import RankAbsent, RankDied, RankRaised, ranks
from shardlab import zero
from shardlab.common.agreement import CannotReplicate
from shardlab.common.shards import CannotShard
from shardlab.data_parallel import DistributedDataParallel
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import CannotPipeline, plan_pipeline
from shardlab.pipelines.schedules import (
    SCHEDULES,
    InvalidSchedule,
    Kind,
    gpipe,
    interleaved,
    one_f_one_b,
    schedule,
)
from shardlab.pipelines.simulation import Costs, in_flight, simulate
from shardlab.recompute.layers import checkpoint_every  # noqa: F401 (told.md names it)
from shardlab.zero.hardened import stage2

NUMBER = {name: number for number, name in enumerate(SCHEDULES, 1)}
M = 8  # microbatches


@pytest.fixture(autouse=True, scope="module")
def default_dtype():
    """The dtype of this process stays as it was, for the tests of other modules."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


# --- models ---------------------------------------------------------------------------------------

TIED = dict(layers=6, hidden=8, heads=2, vocabulary=11, max_sequence=5)
GATED = dict(TIED, layers=7, hidden=6, heads=3, key_value_heads=1, feed_forward=19, vocabulary=13)
GATED |= dict(biases=0, learned_positions=0, gated_mlp=1, tied_head=0)


class Turned(nn.Module):
    """Its output is not contiguous, and it recomputes its inside in backward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 7, bias=False))

    def forward(self, x):  # [B, 7]
        x = checkpoint(self.inner, x, use_reentrant=False) + x
        return x.t().contiguous().t()


def gpt(**sizes):
    model = GPT(GPTConfig(**sizes))
    return [model.embedding, *model.blocks, model.head]


def traps():
    """A first layer that is frozen, so that no gradient comes back through it; a module that is at
    both ends and in the middle; a parameter that is never used; a stage that begins by writing into
    its input; odd sizes."""
    frozen, shared = nn.Linear(7, 7).requires_grad_(False), nn.Linear(7, 7)
    unused = nn.Sequential(Turned())
    unused.extra = nn.Parameter(torch.empty(3))
    unused.forward = lambda x: unused[0](x)
    return [
        frozen,
        nn.Linear(7, 7),
        shared,
        Turned(),
        unused,
        shared,
        nn.Sequential(nn.LeakyReLU(0.3, inplace=True), Turned()),
        nn.LayerNorm(7),
        shared,
        nn.Linear(7, 3),
    ]


MODELS = {"tied": lambda: gpt(**TIED), "gated": lambda: gpt(**GATED), "traps": traps}


def built(name, seed=3):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    layers = MODELS[name]()
    for layer in dict.fromkeys(layers):
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
    return layers


def batch_of(name, part=0, size=M):
    """(inputs, targets, loss) of a batch; ranks of several parts see different ones."""
    draw = torch.Generator().manual_seed(part)
    if name == "traps":
        inputs, targets = (torch.randn(size, n, generator=draw) for n in (7, 3))
        return inputs, targets, nn.functional.mse_loss
    vocabulary = (TIED if name == "tied" else GATED)["vocabulary"]
    inputs, targets = (torch.randint(vocabulary, (size, 5), generator=draw) for _ in range(2))
    return inputs, targets, next_token_loss


def named(layers):
    """Every name of every parameter, by the number of its layer."""
    whole = nn.ModuleDict({str(number): layer for number, layer in enumerate(layers)})
    return dict(whole.named_parameters(remove_duplicate=False))


def plain(name, steps=2):
    """(losses of each step [m], gradients of the last) of the undivided model."""
    layers = built(name)
    parameters = named(layers)
    trained = [p for p in dict.fromkeys(parameters.values()) if p.requires_grad]
    optimizer, found = torch.optim.SGD(trained, lr=0.1), []
    inputs, targets, loss_of = batch_of(name)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = []
        for x, target in zip(inputs.chunk(M), targets.chunk(M)):
            for layer in layers:
                x = layer(x)
            loss = loss_of(x, target)
            (loss / M).backward()
            losses.append(loss.item())
        found.append(losses)
        optimizer.step()
    return found, {key: parameter.grad for key, parameter in parameters.items()}


def plan_of(name, schedule_name, n, **options):
    return plan_pipeline(built(name), schedule(schedule_name, n, M, **options), batch_of(name)[0])


# --- parity ---------------------------------------------------------------------------------------


def train(name, plan, steps=2):
    """(losses of each step, gradients of the last by their names in the whole model). The last rank
    begins with other values of what the first rank has, too."""
    layers = built(name)
    if dist.get_rank() == dist.get_world_size() - 1 and name == "tied":
        layers[0].tokens.weight.data.add_(1)
    torch.manual_seed(dist.get_rank())
    inputs, targets, loss_of = batch_of(name)
    pipeline = Pipeline(layers, plan, loss_of)
    trained = [p for p in pipeline.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(pipeline.step(inputs, targets).tolist())
        optimizer.step()
    gradients = pipeline.layers.named_parameters(remove_duplicate=False)
    return losses, {key: parameter.grad for key, parameter in gradients}


def agrees(found, want, names):
    """Every gradient of every rank, and each parameter on some rank."""
    seen = set()
    for gradients in found:
        for key, gradient in gradients.items():
            seen.add(key)
            assert (gradient is None) == (want[key] is None), key
            if gradient is not None:
                error = (gradient - want[key]).abs().max() / want[key].abs().max()
                assert error < 1e-12, key
    assert seen == set(names)


@pytest.mark.parametrize(
    "name, n",
    [
        *(("tied", 3), ("gated", 2), ("traps", 2)),
        *at_night(("tied", 2), ("tied", 4), ("gated", 4), ("traps", 3)),
    ],
)
def test_losses_and_gradients(worlds, name, n):
    """To the bit where no weight is shared. Must catch: gradients divided by m twice or never; a
    tied weight counted twice, once, or begun with another value; the gradient of another
    microbatch; W added to a copy of a parameter, as under checkpoint; a message sent before it is
    contiguous; a frozen stage that fails."""
    losses, gradients = plain(name)
    bits = {}
    for kind in SCHEDULES:
        if kind == "interleaved 1F1B" and M % n:
            continue
        plan = plan_of(name, kind, n)
        found = worlds(n).run(train, name, plan)
        at = plan.home[plan.last]
        got = found[at][0]
        assert got[0] == losses[0] and (got == losses or name != "gated"), kind
        assert got[1] == pytest.approx(losses[1], rel=1e-12, abs=0)
        assert bits.setdefault(tuple(plan.cuts), got) == got, kind
        assert all(step == [] for r, f in enumerate(found) if r != at for step in f[0])
        agrees([f[1] for f in found], gradients, gradients)


def add_up(name, plan):
    """(gradients after an evaluation, gradients after two steps with an evaluation between)"""
    pipeline = Pipeline(built(name), plan, batch_of(name)[2])

    def evaluate():
        with torch.no_grad():
            pipeline.step(*batch_of(name)[:2])

    evaluate()
    nothing = [parameter.grad for parameter in pipeline.parameters()]
    pipeline.step(*batch_of(name)[:2])
    evaluate()
    pipeline.step(*batch_of(name)[:2])
    gradients = pipeline.layers.named_parameters(remove_duplicate=False)
    return nothing, {key: parameter.grad for key, parameter in gradients}


@pytest.mark.parametrize("name", ("tied", "traps"))
def test_steps_that_add_up(worlds, name):
    """Must catch: the sum of the first step added up over ranks once more, for a tied weight; zeros
    as its gradient after a step under no_grad."""
    _, once = plain(name, steps=1)
    found = worlds(3).run(add_up, name, plan_of(name, "1F1B", 3))
    assert all(gradient is None for nothing, _ in found for gradient in nothing)
    want = {key: None if gradient is None else 2 * gradient for key, gradient in once.items()}
    agrees([gradients for _, gradients in found], want, want)


def stopped_midway(plan):
    """On a rank: whether a step that raises leaves the gradients of tied weights from before."""
    pipeline = Pipeline(built("tied"), plan, batch_of("tied")[2])
    pipeline.step(*batch_of("tied")[:2])
    before = [parameter.grad.clone() for parameter, _ in pipeline.tied.shared]
    with pytest.raises(KeyboardInterrupt), pipeline.tied.added_up():
        raise KeyboardInterrupt
    after = [parameter.grad for parameter, _ in pipeline.tied.shared]
    return len(before), all(map(torch.equal, before, after))


def test_a_step_that_raises_loses_no_sum(worlds):
    """Must catch: a gradient that was set aside, and is not put back."""
    found = worlds(3).run(stopped_midway, plan_of("tied", "1F1B", 3))
    assert [same for _, same in found] == [True] * 3 and sum(count for count, _ in found) > 1


def in_several_pipelines(name, plans):
    """Gradients by the first pipeline, the last, and then by the layers themselves, of which each
    rank has all: a microbatch at a time."""
    layers = built(name)
    inputs, targets, loss_of = batch_of(name)
    pipelines, found = [Pipeline(layers, plan, loss_of) for plan in plans], []
    for pipeline in (pipelines[0], pipelines[-1]):
        pipeline.zero_grad()
        pipeline.step(inputs, targets)
        gradients = pipeline.layers.named_parameters(remove_duplicate=False)
        found.append({key: parameter.grad for key, parameter in gradients})
    parameters = named(layers)
    for parameter in parameters.values():
        parameter.grad = None
    for x, target in zip(inputs.chunk(M), targets.chunk(M)):
        for layer in layers:
            x = layer(x)
        (loss_of(x, target) / M).backward()
    return [*found, {key: parameter.grad for key, parameter in parameters.items()}]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("last", ("1F1B", "zero-bubble H2"))
def test_layers_in_several_pipelines(worlds, last):
    """Must catch: weights without a gradient, since their products wait for a pipeline that is not
    at work."""
    _, gradients = plain("tied", steps=1)
    plans = [plan_of("tied", kind, 2) for kind in ("zero-bubble H1", last)]
    for found in zip(*worlds(2).run(in_several_pipelines, "tied", plans)):
        agrees(found, gradients, gradients)


def test_three_stages_on_each_of_two_ranks(worlds):
    """Must catch: an activation taken for a gradient; a wrap-around on the channel of the other
    direction; a stage of the same rank that gets no copy of its own."""
    losses, gradients = plain("tied")
    for n, chunks in ((2, 3), (1, 2)):
        plan = plan_of("tied", "interleaved 1F1B", n, stages_per_rank=chunks)
        found = worlds(n).run(train, "tied", plan)
        assert found[plan.home[plan.last]][0][1] == pytest.approx(losses[1], rel=1e-12, abs=0)
        agrees([f[1] for f in found], gradients, gradients)


def said_at_the_start(plan):
    """On a rank, as (operation, peer): what it says when a pipeline is made, and in a step."""
    inputs, targets, loss_of = batch_of("gated")
    with CommunicationLog() as at_the_start:
        pipeline = Pipeline(built("gated"), plan, loss_of)
    with CommunicationLog() as in_a_step:
        pipeline.step(inputs, targets)
    kinds = ("all_reduce", "send", "recv")
    return [
        [(m.operation, m.peer) for m in log.messages if m.operation in kinds]
        for log in (at_the_start, in_a_step)
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ("GPipe", "interleaved 1F1B", "zero-bubble H1"))
def test_all_pairs_meet_at_the_start(worlds, kind):
    """Must catch: a pair that meets in a step only, in the order of a schedule; pairs in an order
    in which ranks wait in a circle; a batch of messages as the first use of the group."""
    found = worlds(4).run(said_at_the_start, plan_of("gated", kind, 4))
    assert all(start[0] == ("all_reduce", None) for start, _ in found)
    assert all(set(step) <= set(start) for start, step in found)
    left = [start[1:] for start, _ in found]
    while any(left):  # a message passes where both ranks have come to it
        ready = [
            (rank, own[0][1])
            for rank, own in enumerate(left)
            if own and own[0][0] == "send" and left[own[0][1]][:1] == [("recv", rank)]
        ]
        assert ready, left
        for rank in sum(ready, ()):
            left[rank].pop(0)


# --- with data parallelism and ZeRO ---------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "stage, kind",
    [
        (0, "zero-bubble H1"),
        (1, "1F1B"),
        (2, "zero-bubble H1"),
        *at_night((0, "1F1B"), (1, "zero-bubble H1"), (2, "1F1B")),
    ],
)
def test_with_data_parallelism_and_zero(worlds, stage, kind):
    """Must catch: means that are taken after each microbatch; weights whose gradients W has made
    and nobody has averaged; tied gradients added after those of one end were averaged; a tied
    weight counted twice in the norm; a norm of one rank's stages."""
    case = compositions.layout(2, stage, pp=2, microbatches=4, schedule=kind)
    case = case._replace(sizes={**case.sizes, "layers": 4, "tied_head": 1})
    assert compositions.parity_in(worlds(4), case) == "parity"


PADDING = ((0, 5, 1), (3, 2, 5))  # targets of each microbatch that are padding, by part


def padded(part):
    """(inputs, targets) in three microbatches of 2 x 5 targets."""
    draw = torch.Generator().manual_seed(part)
    inputs, targets = (torch.randint(11, (6, 5), generator=draw) for _ in range(2))
    for padding, own in zip(PADDING[part], targets.chunk(3)):
        own.view(-1)[: 2 * padding] = -100
    return inputs, targets


def train_padded(kind):
    """dp 2 x pp 2: (losses, gradients) of a batch with padding."""
    layers, mesh = built("tied"), Mesh(dp=2, pp=2)
    inputs, targets = padded(mesh.dp.rank)
    plan = plan_pipeline(layers, schedule(kind, 2, 3), inputs)
    pipeline = Pipeline(layers, plan, next_token_loss, mesh.pp.group)
    replicas = DistributedDataParallel(pipeline, group=mesh.dp.group)
    count = (targets != -100).sum()
    dist.all_reduce(count, group=mesh.dp.group)
    losses = pipeline.step(inputs, targets, count / mesh.dp.size)
    assert replicas.n == 2
    with pytest.raises(CannotShard, match="this rank's stages alone"):
        nn.utils.clip_grad_norm_(pipeline.parameters(), 0.1)
    gradients = pipeline.layers.named_parameters(remove_duplicate=False)
    return losses, {key: parameter.grad for key, parameter in gradients}


def test_padded_targets(worlds):
    """dp 2 x pp 2, and as many targets in no two microbatches. Must catch: a mean of microbatches'
    means, or of ranks' means; a sum divided by m as well; PyTorch's clipping by the norm of one
    rank's stages."""
    layers = built("tied")
    inputs, targets = (torch.cat(both) for both in zip(padded(0), padded(1)))
    for layer in layers:
        inputs = layer(inputs)
    loss = next_token_loss(inputs, targets)
    loss.backward()
    want = {key: parameter.grad for key, parameter in named(layers).items()}
    for kind in ("1F1B", "zero-bubble H1"):
        found = worlds(4).run(train_padded, kind)
        agrees([gradients for _, gradients in found], want, want)
        mean = (found[1][0].sum() + found[3][0].sum()) / 2  # over the replicas, as the gradients
        assert mean.item() == pytest.approx(loss.item(), rel=1e-12)


def evaluate_after_a_step(kind, mode):
    """dp 2 x pp 2 under ZeRO 2: (what an evaluation after step() says, its losses, losses of the
    same in the next step, whether the shards' gradients stay)."""
    layers, mesh = built("tied"), Mesh(dp=2, pp=2)
    inputs, targets, loss_of = batch_of("tied", mesh.dp.rank)
    plan = plan_pipeline(layers, schedule(kind, 2, M), inputs)
    pipeline = Pipeline(layers, plan, loss_of, mesh.pp.group)
    optimizer = stage2.ShardedOptimizer(
        pipeline.parameters(), torch.optim.SGD, group=mesh.dp.group, lr=0.1
    )
    pipeline.step(inputs, targets)
    optimizer.step()
    shards = [shard for bucket in optimizer.buckets for shard in bucket.shards]
    before = [shard.grad.clone() for shard in shards]
    with CommunicationLog() as log, mode():
        losses = pipeline.step(inputs, targets).tolist()
    same = all(map(torch.equal, before, (shard.grad for shard in shards)))
    optimizer.zero_grad()
    said = {name: total.messages for name, total in log.totals().items()}
    return said, losses, pipeline.step(inputs, targets).tolist(), same


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "mode, kind, messages",
    [(torch.no_grad, "interleaved 1F1B", (2 * M, M)), (torch.inference_mode, "1F1B", (M, 0))],
)
def test_evaluation_after_a_step(worlds, mode, kind, messages):
    """Must catch: zeros sent backwards, or to the shards; an error because the gradients of the
    step before are still there."""
    found = worlds(4).run(evaluate_after_a_step, kind, mode)
    for rank, (said, losses, again, same) in enumerate(found):
        sent, received = messages if rank % 2 == 0 else messages[::-1]
        want = {"send": sent, "recv": received}
        assert said == {name: count for name, count in want.items() if count}
        assert losses == again and same


def refused_by_stage_3():
    """The sentences about a pipeline that stage 3 shards, and about a pipeline of sharded
    layers."""
    said, mesh = [], Mesh(dp=2, pp=2)
    layers, (inputs, _, loss_of) = built("tied"), batch_of("tied")
    plan = plan_pipeline(layers, one_f_one_b(2, M), inputs)
    pipeline = Pipeline(layers, plan, loss_of, mesh.pp.group)
    shard = partial(zero.shard, optimizer_cls=torch.optim.SGD, stage=3, group=mesh.dp.group)
    said.append(said_by(lambda: shard(pipeline), CannotShard))
    whole = nn.Sequential(*built("tied"))
    shard(whole)
    for make in (
        lambda: plan_pipeline([*whole], one_f_one_b(2, M), inputs),
        lambda: Pipeline([*whole], plan, loss_of, mesh.pp.group),
    ):
        said.append(said_by(make, CannotPipeline))
    return said


def test_stage_3_is_refused(worlds):
    """Must catch: a refusal at the first step only, and by "parameters were replaced"."""
    for said in worlds(4).run(refused_by_stage_3):
        assert "is in a stage of a pipeline, where stage 3 would gather it" in said[0]
        assert all("layer 0 is sharded by ZeRO stage 3, which would" in text for text in said[1:])


def trained_later():
    """The sentence for each rank if a layer of it was frozen when the replicas were made."""
    layers, mesh = built("tied"), Mesh(dp=2, pp=2)
    inputs, targets, loss_of = batch_of("tied", mesh.dp.rank)
    for layer in (layers[1], layers[-2]):
        layer.requires_grad_(False)
    plan = plan_pipeline(layers, one_f_one_b(2, M), inputs)
    pipeline = Pipeline(layers, plan, loss_of, mesh.pp.group)
    replicas = DistributedDataParallel(pipeline, group=mesh.dp.group)
    replicas.requires_grad_(True)
    return said_by(lambda: pipeline.step(inputs, targets), CannotReplicate)


def test_a_layer_that_is_trained_later(worlds):
    """Must catch: gradients of each replica's own, without a word."""
    for said in worlds(4).run(trained_later):
        assert "is trained, and was frozen or another parameter" in said


# --- what ranks do, hold and send, against lists and formulas -------------------------------------


class Watched(Pipeline):
    """Notes what it does and what it holds."""

    def step(self, *batch):
        self.done, self.most = [], 0
        return super().step(*batch)

    def perform(self, action):
        super().perform(action)
        self.done.append(action)
        self.most = max(self.most, len(self.held) + len(self.put_off))


def watched(plan):
    inputs, targets, loss_of = batch_of("tied")
    pipeline = Watched(built("tied"), plan, loss_of)
    pipeline.step(inputs, targets)
    return pipeline.done, pipeline.most


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_in_flight_executed_simulated_and_by_formula(worlds, kind):
    """Must catch: an executor with an order of its own; microbatches kept after their backward; p -
    r - 1 for p - r."""
    plan = plan_of("tied", kind, 4)
    found = worlds(4).run(watched, plan)
    assert [done for done, _ in found] == plan.schedule
    executed = [most for _, most in found]
    given = dict(pipeline_schedule=NUMBER[kind], pipeline_parallel=4, microbatches=M)
    ranks = [Given(pipeline_rank=rank, stages_per_rank=2, **given) for rank in range(4)]
    assert executed == in_flight(plan.schedule) == [rank.pipeline_in_flight for rank in ranks]


@pytest.mark.parametrize("kind", ("interleaved 1F1B", "zero-bubble H1"))
def test_a_measured_timeline(worlds, kind):
    """Must catch: spans of the first step, too; the time of waiting counted as work; W that does
    not sleep, or a backward that sleeps for W as well."""
    costs = Costs(0.002, 0.002, 0.002)
    plan = sleeping_plan(schedule(kind, 2, 4), costs)
    spans = worlds(2).run(measured_spans, plan, costs)
    assert [[span.action for span in own] for own in spans] == plan.schedule
    begins = {span.action: span.begin for own in spans for span in own}
    for own in spans:
        for before, span in zip(own, own[1:]):
            assert span.begin >= before.end
        for action, begin, end in own:
            assert end - begin >= costs.of(action)
            if action.kind is Kind.FORWARD and action.stage:
                source = action._replace(stage=action.stage - 1)
                assert begin >= begins[source] + costs.of(source)
    assert seconds_of(spans) >= simulate(plan.schedule, costs).seconds


SIZES = dict(layers=8, hidden=8, heads=2, vocabulary=11, max_sequence=5)
COUNTS = [3, 2, 2, 3]  # layers of the stages: two blocks each, the embedding, the head


def weighed(plan):
    """(parameters, most bytes that autograd keeps of this rank's blocks, messages, bytes)."""
    torch.set_default_dtype(torch.float32)
    layers = gpt(**SIZES)
    inputs, targets = (torch.randint(11, (2 * M, 5)) for _ in range(2))
    pipeline = Pipeline(layers, plan, next_token_loss)
    with Ledger(pipeline) as ledger, CommunicationLog() as log:
        pipeline.step(inputs, targets)
    kept = max(point.bytes.activations for point in ledger.timeline)
    parameters = sum(p.numel() for p in pipeline.parameters())
    torch.set_default_dtype(torch.float64)
    return parameters, kept, log.totals()["send"]


@pytest.fixture(scope="module")
def weights(worlds):
    """{schedule: what each rank of four found}."""
    torch.set_default_dtype(torch.float32)
    model, batch = gpt(**SIZES), torch.randint(11, (2 * M, 5))
    found = {}
    for kind in ("GPipe", "1F1B", "eager 1F1B"):
        plan = plan_pipeline(model, schedule(kind, 4, M), batch, COUNTS)
        found[kind] = worlds(4).run(weighed, plan)
    plan = plan_pipeline(model, interleaved(4, M, 2), batch, [2, 1, 1, 1, 1, 1, 1, 2])
    found["interleaved 1F1B"] = worlds(4).run(weighed, plan)
    torch.set_default_dtype(torch.float64)
    return found


def wanted_of(kind, rank):
    given = dict(pipeline_schedule=NUMBER[kind], pipeline_parallel=4, pipeline_rank=rank)
    return Given(**of_model(GPTConfig(**SIZES), 2, 5, microbatches=M, stages_per_rank=2, **given))


def test_what_each_rank_has(weights):
    """Must catch: a head left out, or not counted twice where it is tied; p - r - 1 microbatches;
    the activations of one stage for those of v; the loss of one microbatch in GPipe, or of none."""
    for kind, of_ranks in weights.items():
        for rank, (parameters, kept, _) in enumerate(of_ranks):
            assert parameters == wanted_of(kind, rank).stage_parameters
            if rank > 0:
                want = wanted_of(kind, rank).held_bytes
                if rank == 3:
                    want += 8 * 2 * M * 5 + 4 * (M if kind == "GPipe" else 1)
                assert kept == want, (kind, rank)


def test_messages_and_bytes(weights):
    """Must catch: an activation that the last stage sends; stages of an interleaved schedule
    counted once; a tied gradient that is not sent, or sent by every rank."""
    for kind, of_ranks in weights.items():
        for rank, (_, _, sent) in enumerate(of_ranks):
            want = wanted_of(kind, rank)
            tied = 1 if rank in (0, 3) else 0
            # one more message each way when the tied weight was handed out
            assert sent.messages == want.pipeline_messages + tied, (kind, rank)
            assert sent.nbytes == want.pipeline_sent_bytes, (kind, rank)


# --- faults ---------------------------------------------------------------------------------------


class Faulty(nn.Module):
    """A layer that fails on one rank when it is called for the third time."""

    def __init__(self, inner, rank, how):
        super().__init__()
        self.inner, self.rank, self.how, self.calls = inner, rank, how, 0

    def forward(self, x):
        self.calls += 1
        if dist.get_rank() == self.rank and self.calls == 3:
            self.how()
        return self.inner(x)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(1000)


def step_with_a_fault(plan, rank, how):
    layers = built("tied")
    inputs, targets, loss_of = batch_of("tied")
    first = plan.cuts[rank][0]
    layers[first] = Faulty(layers[first], rank, how)
    Pipeline(layers, plan, loss_of).step(inputs, targets)


@pytest.fixture(scope="module")
def impatient():
    with ranks(3, device="cpu", patience_seconds=8, announce=False) as world:
        yield world


@pytest.mark.parametrize(
    "kind, rank", [("1F1B", 1), *at_night(("GPipe", 2), ("zero-bubble H2", 0))]
)
def test_a_stage_that_hangs_is_named(impatient, kind, rank):
    """Must catch: a receive that is posted ahead taken for waiting; a neighbour of the guilty
    rank."""
    with pytest.raises(RankAbsent) as caught:
        impatient.run(step_with_a_fault, plan_of("tied", kind, 3), rank, hang)
    said = str(caught.value)
    assert said.startswith(f"Rank {rank} did not come to send and recv")
    assert f"rank {rank} was in" in said and "time.sleep(1000)" in said


def test_a_stage_that_is_killed_is_named(impatient):
    """Must catch: the neighbours, whose messages break, named instead."""
    with pytest.raises(RankDied, match="Rank 1 died: it was killed by SIGKILL"):
        impatient.run(step_with_a_fault, plan_of("tied", "1F1B", 3), 1, die)


# --- bad input ------------------------------------------------------------------------------------


class Two(nn.Module):
    def forward(self, x):
        return x, x


class Counts(nn.Module):
    def forward(self, x):
        return x.long()


LINEAR = [nn.Linear(3, 3) for _ in range(4)]


@from_told("layers, lists, size, counts, words")
def test_bad_input_is_refused_before_a_rank_starts(layers, lists, size, counts, words):
    """Must catch: each of these found by a rank while the others wait for it; a batch cut into
    microbatches of different sizes, whose mean loss is another one."""
    with pytest.raises((CannotPipeline, InvalidSchedule)) as caught:
        plan_pipeline(layers, lists, torch.ones(size, 3), counts)
    assert words in str(caught.value)


def test_messages_in_another_order_are_refused():
    """Must catch: a valid list in which activations, all of one size, go to the wrong
    microbatch."""
    lists = gpipe(2, 3)
    for actions in lists[1:]:
        actions[0], actions[1] = actions[1], actions[0]
    with pytest.raises(InvalidSchedule, match="rank 1 takes the forward messages of rank 0 in an"):
        plan_pipeline(LINEAR, lists, torch.ones(6, 3))


def of_two(kind="1F1B", layers=None, group=None):
    """On a rank of two: a pipeline of the tied model."""
    plan = plan_of("tied", kind, 2)
    return Pipeline(layers or built("tied"), plan, batch_of("tied")[2], group)


def untied_on_rank_1():
    layers = built("tied")
    if dist.get_rank():
        layers[-1].scores.weight = nn.Parameter(layers[-1].scores.weight.detach().clone())
    return layers


@pytest.mark.parametrize("call, words", sections()["test_pipeline::test_ranks_refuse_together"])
def test_ranks_refuse_together(worlds, call, words):
    """Must catch: a rank that raises, or a weight that is tied on its own rank alone, while the
    others wait; a batch of another size than was planned, which other ranks receive in part."""
    refused = eval(f"lambda: said_by(lambda: {call}, ValueError)", globals())
    for said in worlds(2).run(refused):
        assert words in said


OTHERS = {  # what the last rank is given instead
    "a batch": lambda inputs, targets: (inputs.flip(0), targets),
    "targets": lambda inputs, targets: (inputs, targets.roll(1, 1)),
    "another order": lambda inputs, targets: (inputs.flip(0), targets.flip(0)),
    "another dtype": lambda inputs, targets: (inputs.int(), targets),
}


def given_another_batch(plan, other, evaluated):
    """The sentences of two pipelines, of which the second is given one batch first."""
    inputs, targets, loss_of = batch_of("tied")
    given = OTHERS[other](inputs, targets) if dist.get_rank() else (inputs, targets)
    pipeline, late = (Pipeline(built("tied"), plan, loss_of) for _ in range(2))
    with pytest.raises(CannotPipeline) as caught, torch.set_grad_enabled(not evaluated):
        pipeline.step(*given)
    late.step(inputs, targets)
    late.step(*given)  # nobody compares, and no GPU waits
    return str(caught.value)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("other", OTHERS)
def test_ranks_are_given_one_batch(worlds, other):
    """Must catch: the loss of targets that do not belong to the batch, without a word."""
    plan = plan_of("tied", "1F1B", 2)
    for said in worlds(2).run(given_another_batch, plan, other, other == "targets"):
        assert re.match(r"rank 0 has (as targets )?a batch .*, rank 1 has ", said), said
        assert "the ranks of one pipeline, here [0, 1], are given one batch" in said


LOSSES = {
    "[1, 5]": lambda y, t: nn.functional.cross_entropy(y.mT, t, reduction="none"),
    "tuple": lambda y, t: (next_token_loss(y, t), 3),
    "float": lambda y, t: next_token_loss(y, t).item(),
    "a number without a graph": lambda y, t: next_token_loss(y.detach(), t),
}


def losses_refused(plan):
    found = []
    for returned, loss_of in LOSSES.items():
        pipeline = Pipeline(built("tied"), plan, loss_of)
        with pytest.raises(CannotPipeline) as caught:
            pipeline.step(*batch_of("tied")[:2])
        found.append(returned in str(caught.value) and "loss(y, targets)" in str(caught.value))
        with pytest.raises(CannotPipeline, match="a step of this pipeline was cut short"):
            pipeline.loss = next_token_loss
            pipeline.step(*batch_of("tied")[:2])
    single = Pipeline(built("tied"), plan, lambda y, t: next_token_loss(y, t).view(1))
    return found, single.step(*batch_of("tied")[:2]).shape


def test_losses_that_are_no_number(worlds):
    """Must catch: a complaint of autograd's; a loss without a graph, by which nothing is trained;
    an activation of the step before taken for one of this step."""
    [(found, shape)] = worlds(1).run(losses_refused, plan_of("tied", "interleaved 1F1B", 1))
    assert found == [True] * len(LOSSES) and list(shape) == [M]


def make_and_keep(plan):
    builtins.kept_pipeline = Pipeline(built("tied"), plan, batch_of("tied")[2])
    builtins.kept_pipeline.step(*batch_of("tied")[:2])


def step_again():
    return said_by(lambda: builtins.kept_pipeline.step(*batch_of("tied")[:2]), CannotPipeline)


def raise_on_a_rank():
    raise ValueError("planned") if dist.get_rank() else dist.barrier()


def test_after_ranks_were_mended(impatient):
    """Must catch: a complaint of PyTorch's about a group that is not registered."""
    impatient.run(make_and_keep, plan_of("tied", "1F1B", 3))
    with pytest.raises(RankRaised, match="planned"):
        impatient.run(raise_on_a_rank)
    for said in impatient.run(step_again):
        assert "or its process groups were made anew, as after a rank raised" in said


def step_in_another_dtype(plan):
    inputs, targets, loss_of = batch_of("traps")
    layers = [layer.float() for layer in built("traps")]
    Pipeline(layers, plan, loss_of).step(inputs.float(), targets.float())


def test_messages_of_another_dtype(impatient):
    """Must catch: a stage that sends fp32 where the next expects fp64, as after a plan of other
    layers, or outside of autocast."""
    said = r"Rank 0 raised CannotPipeline: stage 0 makes \[1, 7\] of torch.float32, and the plan"
    with pytest.raises(RankRaised, match=said):
        impatient.run(step_in_another_dtype, plan_of("traps", "1F1B", 3))
