"""Recomputation beside tensor and sequence parallelism, pipelines and a split backward: the bits of
the same layout without it. That the layout itself is right, its own tests say."""

from functools import partial

import pytest
import torch
from night import at_night
from refusals import said_by
from tables import RIGHT, Beside, check
from test_recompute import gpt
from torch import nn

from ranklab.measure.communication import CommunicationLog
from ranklab.measure.ledger import Ledger
from shardlab.gpt import Block, CoreAttention, next_token_loss
from shardlab.mesh import Mesh
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import plan_pipeline
from shardlab.pipelines.schedules import schedule
from shardlab.recompute import CheckpointError, checkpoint
from shardlab.recompute.core import checkpoint_by_function
from shardlab.recompute.layers import checkpoint_every, checkpoint_modules
from shardlab.recompute.offload import offload_activations
from shardlab.recompute.partitioned import checkpoint_partitioned
from shardlab.recompute.selective import checkpoint_selective
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    vocabulary_parallel_loss,
)


@pytest.fixture
def pair(worlds):
    return worlds(2, patience_seconds=30)


SIZES = dict(
    layers=3, hidden=24, heads=4, feed_forward=31, vocabulary=53, max_sequence=8, dropout=0
)
STYLES = (
    dict(fused_attention=False, dropout=0.1),
    dict(biases=0, gated_mlp=1, key_value_heads=2, learned_positions=0, tied_head=0),
)


def offloaded(function, *args):
    with offload_activations(0):
        return function(*args)


CALLS = {
    "by hooks": checkpoint,
    "by function": checkpoint_by_function,
    "selective": checkpoint_selective,
    "on the host": offloaded,
    "partitioned": partial(checkpoint_partitioned, None),
    "selective, on the host": lambda f, *a: offloaded(partial(checkpoint_selective, f), *a),
}


# --- tensor and sequence parallelism --------------------------------------------------------------

WAYS = (None, dict(regather=False), dict(regather=True))


def tensor_step(style, way, call=None, core=False):
    """(loss, gradients, state of the random numbers, bytes kept, messages) of a step."""
    model = gpt(**{**SIZES, **style})
    plan = gpt_plan(model.config)
    apply_tensor_parallel(model, plan if way is None else sequence_parallel(plan, **way))
    if core:
        checkpoint_modules(model, CoreAttention)
    elif call:
        model.blocks = checkpoint_every(model.blocks, 2, call)
    torch.manual_seed(5)
    tokens = torch.randint(53, (3, 8))
    with Ledger(model) as ledger, CommunicationLog() as log:
        loss = vocabulary_parallel_loss(model(tokens), tokens.flip(0), 53)
        kept = ledger.bytes.activations
        loss.backward()
    messages = {name: total.messages for name, total in log.totals().items()}
    return loss.item(), [p.grad for p in model.parameters()], torch.get_rng_state(), kept, messages


def beside_tensor_parallelism(style, way):
    """The calls that are wrong, with their bytes."""
    wrong, plain = [], tensor_step(style, way)
    for name in (*CALLS, "core"):
        if name == "partitioned" and way is not None:
            continue  # each rank has its own tokens
        ours = tensor_step(style, way, CALLS.get(name), core=name == "core")
        equal = ours[0] == plain[0] and torch.equal(ours[2], plain[2])
        pairs = zip(ours[1], plain[1], strict=True)
        equal = equal and all(torch.equal(mine, theirs) for mine, theirs in pairs)
        if not equal or not ours[3] < plain[3]:
            wrong.append((name, equal, ours[3], plain[3]))
    return wrong


BY_DAY = [(STYLES[0], WAYS[2]), (STYLES[1], WAYS[0]), (STYLES[1], WAYS[1])]
OTHERS = [(STYLES[0], WAYS[0]), (STYLES[0], WAYS[1]), (STYLES[1], WAYS[2])]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("style, way", BY_DAY + at_night(*OTHERS))
def test_tensor_and_sequence_parallelism(pair, style, way):
    """Must catch: a product that an all-reduce changed, taken as it was before or summed twice; the
    mask of another rank drawn in the second run; a part gathered in another order."""
    assert pair.run(beside_tensor_parallelism, style, way) == [[], []]


def messages_of(name):
    plain, ours = (tensor_step(STYLES[1], None, call) for call in (None, CALLS[name]))
    return {key: ours[4][key] - plain[4].get(key, 0) for key in ours[4]}


def test_messages_of_the_second_run(pair):
    """Must catch: an all-reduce of the second run that the other rank does not make."""
    again = {"all_reduce": 2 * SIZES["layers"] - 2}  # 3 layers in 2 checkpoints
    assert pair.run(messages_of, "by hooks") == [again] * 2
    assert pair.run(messages_of, "partitioned") == [{**again, "all_gather": 2}] * 2


def of_own_tokens(way):
    """On a rank: what a partitioned checkpoint says of what ranks do not share."""
    return said_by(lambda: tensor_step(STYLES[1], way, CALLS["partitioned"]), CheckpointError)


def test_a_partitioned_input_that_ranks_do_not_share(pair):
    """Must catch: parts of other tokens gathered to one input, and gradients 0.1 off, without a
    word."""
    for said in pair.run(of_own_tokens, dict(regather=False)):
        assert said.startswith("an input of shape [3, 4, 24] is not the same on the ranks [0, 1]")
    assert pair.run(of_own_tokens, None) == [None, None]


# --- pipelines ------------------------------------------------------------------------------------

M = 4


def staged_step(kind, style, call=None, tp=1):
    """(losses, gradients) of a step of this rank, one of 2 x tp: a pipeline whose layers tensor
    parallelism has cut, each block in a checkpoint."""
    mesh, model, loss = Mesh(pp=2, tp=tp), gpt(**{**SIZES, **style}), next_token_loss
    torch.manual_seed(6)
    tokens, targets = (torch.randint(53, (2 * M, 8)) for _ in range(2))

    def layers():
        return [model.embedding, *model.blocks, model.head]

    plan = plan_pipeline(layers(), schedule(kind, 2, M), tokens)
    if tp > 1:
        apply_tensor_parallel(model, gpt_plan(model.config), mesh.tp.group)
        loss = partial(vocabulary_parallel_loss, vocabulary=53, group=mesh.tp.group)
    pipeline = Pipeline(layers(), plan, loss, mesh.pp.group)
    if call == "core":
        checkpoint_modules(model, CoreAttention)
    elif call == "partitioned":
        checkpoint_modules(model, Block, partial(checkpoint_partitioned, mesh.tp.group))
    elif call:
        checkpoint_modules(model, Block, CALLS[call])
    torch.manual_seed(7)
    losses = pipeline.step(tokens, targets)
    return losses, *(parameter.grad for parameter in pipeline.parameters())


def beside_stages(kind, call, styles, tp=1):
    """The styles for which the call gives other bits."""
    torch.set_default_dtype(torch.float64)  # of what the plan says that stages send
    try:
        found = [[staged_step(kind, style, one, tp) for one in (None, call)] for style in styles]
        return [s for s, both in zip(styles, found) if not all(map(torch.equal, *both))]
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["by hooks", "by function", "selective", "on the host", "core"])
@pytest.mark.parametrize("kind", ["1F1B", "zero-bubble H1"])
def test_pipelines_and_split_backward(pair, kind, name):
    """Must catch: random numbers of another microbatch in the second run; a weight's gradient that
    is put off and lands on a tensor that was recomputed."""
    assert pair.run(beside_stages, kind, name, STYLES) == [[], []]


@pytest.fixture
def four(worlds):
    return worlds(4, patience_seconds=30)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("call", ["partitioned", "by hooks", "selective"])
def test_parts_of_layers_in_a_split_backward(four, call):
    """Must catch: an input that is partitioned over the ranks of the pipeline; a gathering of the
    second run that the other rank makes for another microbatch."""
    assert four.run(beside_stages, "zero-bubble H1", call, STYLES[:1], 2) == [[]] * 4


# --- beside data parallelism and ZeRO -------------------------------------------------------------


class Called(nn.Module):
    def __init__(self, call, layer):
        super().__init__()
        self.call, self.layer = call, layer

    def forward(self, x):
        return self.call(self.layer, x)


def blocks():
    inner = lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), inner()) for _ in range(3)))


def inside(net, call):
    """Checkpoints inside of units."""
    for block in net:
        block[1] = Called(call, block[1])


def around(net, call):
    for number, block in enumerate(net):
        net[number] = Called(call, block)


def of_forward(net, call):
    for block in net:
        block.forward = partial(call, block.forward)


def in_groups(net, call):
    net.forward = checkpoint_every(nn.Sequential(*net), 2, call).forward


def recomputed(door, place, call):
    """Two microbatches, checkpoints in both models. Must catch: gradients sent before the second
    run has added its own; a unit of stage 3 that is not there when its layers run again."""
    before = (lambda net: place(net, call)) if place is inside else lambda net: None
    beside = Beside(door, blocks, before=before)
    for net in (beside.plain,) if place is inside else beside.nets:
        place(net, call)
    for _ in range(2):
        beside.optimizer.zero_grad()
        beside.plain_optimizer.zero_grad()
        for _ in range(2):
            beside.backward()
        beside.step()
    return beside.verdict()


def called_with_nothing(door):
    checkpoint(torch.tanh, torch.ones(2))


BESIDE_REPLICAS = (checkpoint, checkpoint_by_function, checkpoint_selective, offloaded)
PLACES = (inside, around, of_forward, in_groups)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "door, place",
    [(door, place) for door in ("replicas", "stage 3") for place in PLACES]
    + [("stage 2", around)]  # whose hooks find gradients of the second run
    + at_night(*(("stage 1", place) for place in PLACES))
    + at_night(*(("stage 2", place) for place in (inside, of_forward, in_groups))),
)
def test_the_parameters_of_the_plain_model(worlds, door, place):
    """Must catch: what the row says."""
    for call in BESIDE_REPLICAS:
        check(worlds(2, patience_seconds=30), door, recomputed, (place, call), RIGHT)


def test_the_sentence_comes_on_every_rank(worlds):
    """Must catch: an error that a rank keeps for itself, or that cannot travel."""
    said = "CheckpointError: nothing that checkpoint() was given"
    check(worlds(2, patience_seconds=30), "replicas", called_with_nothing, (), said)
