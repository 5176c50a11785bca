"""Context parallelism as a user has it: beside other techniques, saved, and used wrongly."""

import copy
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import drawn_gpt
from night import at_night
from operators import Operators
from refusals import answer_of, begins
from tables import far
from test_context_parallel import batch_of, gpt_2, llama
from told import told
from torch import nn
from torch_has import FUSES_GROUPS

from shardlab import zero
from shardlab.common.torch_internals import fuses_groups
from shardlab.context_parallel import (
    Context,
    GatheredAttention,
    RingAttention,
    Ulysses,
    context_parallel,
    targets_a_rank,
)
from shardlab.data_loading.core_packing import PackedRow, keep_within_documents
from shardlab.gpt import GPT, next_token_loss
from shardlab.mesh import Mesh
from shardlab.recompute import checkpoint
from shardlab.recompute.layers import checkpoint_every
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict
from shardlab.zero.hardened.full_parameters import unsharded

CLOSE, attention = 1e-12, F.scaled_dot_product_attention
MIXES = {"ring": RingAttention, "gathered": GatheredAttention, "Ulysses": Ulysses}


def other_seed(config):
    torch.manual_seed(7 + dist.get_rank())
    return GPT(config).double()


# --- beside data parallelism and ZeRO, recomputation ----------------------------------------------


def trained(config, stage, mix, recompute):
    """On a rank of 2 x 2: how far parameters are from the plain model's after three steps of SGD,
    whose batches have other lengths. Only the first rank has the plain model's values."""
    torch.set_num_threads(1)
    fuses_groups.cache_clear()
    mesh = Mesh(dp=2, cp=2)
    group = mesh.line("dp", "cp").group
    plain = drawn_gpt(config)
    net = copy.deepcopy(plain) if dist.get_rank() == 0 else other_seed(config)
    context = Context(mesh.cp.group)
    net = copy.deepcopy(context_parallel(net, context, MIXES[mix]))
    if recompute:
        net.blocks = checkpoint_every(net.blocks, 1, checkpoint)
    called, optimizer = zero.shard(net, torch.optim.SGD, stage=stage, group=group, lr=0.1)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    torch.manual_seed(5)
    for chunk in (3, 5, 2):
        batches = [batch_of(config, 2, chunk) for _ in range(2)]
        tokens, targets = (torch.cat(each) for each in zip(*batches))
        next_token_loss(plain(tokens), targets).backward()
        own, own_targets = (context.own(x) for x in batches[mesh.dp.rank])
        count = targets_a_rank(own_targets, group)
        next_token_loss(called(own), own_targets, count).backward()
        for each in (plain_optimizer, optimizer):
            each.step()
            each.zero_grad()
    with unsharded(net) if stage == 3 else nullcontext():
        pairs = zip(net.parameters(), plain.parameters(), strict=True)
        return max(far(mine.detach(), whole.detach()) for mine, whole in pairs)


@pytest.mark.parametrize("stage", [0, *at_night(1, 2), 3])
@pytest.mark.parametrize("mix, recompute", [("ring", True), *at_night(("Ulysses", False))])
def test_beside_data_parallelism_and_zero(worlds, stage, mix, recompute):
    """Must catch: gradients averaged over data alone, or summed over the ring; counts of targets of
    one axis; ranks that begin differently; a forward that is not the first one's in recomputation,
    as that which asks once for PyTorch's kernel; a length that is kept from the step before; a
    neighbour counted in the world; a copy that fails on its group."""
    for error in worlds(4).run(trained, llama(2), stage, mix, recompute):
        assert error < CLOSE


# --- beside tensor parallelism --------------------------------------------------------------------


def with_tensor_parallelism(config, mix, own_tokens, context_first, packed):
    """On a rank of cp 2 x tp 2: how far loss and gradients are from the plain model's."""
    torch.set_num_threads(1)
    mesh, plain = Mesh(cp=2, tp=2), drawn_gpt(config)
    net = copy.deepcopy(plain)
    tokens, targets = batch_of(config, 2, chunk=4)
    context = Context(mesh.cp.group)
    if packed:
        row = PackedRow()
        keep_within_documents(plain, row)
        row.positions = context.positions = torch.arange(16).expand_as(tokens) % 6
    plan = sequence_parallel(gpt_plan(config)) if own_tokens else gpt_plan(config)
    steps = [
        lambda: context_parallel(net, context, MIXES[mix]),
        lambda: apply_tensor_parallel(net, plan, mesh.tp.group),
    ]
    for step in steps if context_first else reversed(steps):
        step()
    own, own_targets = context.own(tokens), context.own(targets)
    scores, found = net(own), {}
    count = targets_a_rank(own_targets, mesh.cp.group)
    sizes = config.vocabulary, mesh.tp.group
    vocabulary_parallel_loss(scores, own_targets, *sizes, count).backward()
    if own_tokens:
        sum_gradients(torch.optim.SGD(net.parameters(), lr=0.1), mesh.tp.group)
    next_token_loss(plain(tokens), targets).backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, group=mesh.cp.group)
        p.grad /= 2
        p.data = p.grad
    for name, whole in whole_state_dict(net).items():
        found[name] = far(whole, plain.get_parameter(name).grad)
    return found


BESIDE_TENSORS = [
    ("ring", False, False, False),
    ("gathered", True, True, True),
    *at_night(
        ("ring", True, False, True), ("Ulysses", True, True, False), ("Ulysses", False, True, True)
    ),
]


@pytest.mark.parametrize("mix, own_tokens, context_first, packed", BESIDE_TENSORS)
def test_beside_tensor_parallelism(worlds, mix, own_tokens, context_first, packed):
    """Must catch: positions of a tensor-parallel rank's own tokens that are not among the context's
    (return the table's slice from OwnRows); a mix that counts all heads, or replaces a part."""
    config = gpt_2(2, heads=8, vocabulary=32)
    for found in worlds(4).run(
        with_tensor_parallelism, config, mix, own_tokens, context_first, packed
    ):
        assert all(error < CLOSE for error in found.values()), found


# --- kernels --------------------------------------------------------------------------------------


def kernels(zigzag):
    """On a rank: fused kernels of one ring, and all matrix products."""
    heads = 2 if FUSES_GROUPS else 4  # of keys
    q, k, v = torch.randn(2, 4, 8, 8), *torch.randn(2, 2, heads, 8, 8)
    mix, context = RingAttention(llama(heads)), Context(zigzag=zigzag)
    mix.context = context
    with Operators() as operators:
        mix(q, k, v)
    return tuple(sum(kind in name for name in operators.names()) for kind in ("flash", "mm"))


def test_a_turn_is_one_fused_kernel(worlds):
    """Must catch: blocks of scores in memory where nothing asks for them; two kernels for a
    rectangle; keys that are computed with although none is seen."""
    assert worlds(3).run(kernels, True) == [(3, 0)] * 3
    assert worlds(3).run(kernels, False) == [(1, 0), (2, 0), (3, 0)]


def heads_under_a_mask(mix):
    """On a rank: heads of queries, and of keys, that PyTorch's attention is given."""
    q, k, v = torch.randn(2, 8, 8, 8), *torch.randn(2, 2, 4, 8, 8)
    mixed, context = MIXES[mix](llama(2)), Context()
    mixed.context, context.positions = context, torch.arange(16).expand(2, 16) % 6
    with mock.patch.object(F, "scaled_dot_product_attention", wraps=attention) as called:
        mixed(q, k, v)
    return {(call.args[0].shape[1], call.args[1].shape[1]) for call in called.call_args_list}


@pytest.mark.parametrize("mix, heads", [("gathered", 8), ("Ulysses", 4)])
def test_a_mask_and_shared_keys(worlds, mix, heads):
    """A GPU's fused kernels take one of the two, and without them scores of all are in memory.

    Must catch: keys that are not repeated for each head of queries under a mask."""
    assert worlds(2).run(heads_under_a_mask, mix) == [{(heads, heads)}] * 2


# --- what users do --------------------------------------------------------------------------------


def setting(n):
    config = gpt_2(n)
    net, context = drawn_gpt(config), Context()
    return config, context_parallel(net, context, RingAttention), context, batch_of(config, n)


def tokens_not_cut(n):
    _, net, context, (tokens, targets) = setting(n)
    context.own(targets)
    net(tokens[:, : 6 * n])


def nothing_cut(n):
    _, net, _, (tokens, _) = setting(n)
    net(tokens[:, :6])


def targets_not_cut(n):
    _, net, context, (tokens, targets) = setting(n)
    next_token_loss(net(context.own(tokens)), targets)


def another_batch_on_each_rank(n):
    _, _, context, (tokens, _) = setting(n)
    context.own(tokens + dist.get_rank())


def positions_cut(n):
    _, net, context, (tokens, _) = setting(n)
    context.positions = context.own(torch.arange(10 * n).expand_as(tokens))
    net(context.own(tokens))


def cut_twice(n):
    config, net, context, _ = setting(n)
    context_parallel(net, context, Ulysses)


def walls_already(n):
    net = drawn_gpt(gpt_2(n))
    keep_within_documents(net, PackedRow())
    context_parallel(net, Context(), Ulysses)


def nothing_that_mixes(n):
    context_parallel(nn.Linear(2, 2), Context(), Ulysses)


def drops(n):
    context_parallel(GPT(gpt_2(n, dropout=0.1)), Context(), Ulysses)


def other_models(n):
    context_parallel(GPT(gpt_2(n, layers=1 + dist.get_rank() % 2)), Context(), Ulysses)


def never_averaged(n):
    _, net, context, (tokens, targets) = setting(n)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        own = context.own(targets)
        next_token_loss(net(context.own(tokens)), own, targets_a_rank(own)).backward()
        optimizer.step()


REFUSED = told("test_hardened_context::test_what_is_refused", globals())


@pytest.mark.parametrize("misuse, sentence", REFUSED, ids=[one.__name__ for one, _ in REFUSED])
def test_what_is_refused(worlds, misuse, sentence):
    """On all ranks. Must catch: training on tokens of another place, on half of a batch's targets,
    across documents, or on ranks whose models drift apart; a rank that waits for another one."""
    for found in worlds(2).run(answer_of, misuse, 2):
        assert begins(found, sentence), found


def copied_and_evaluated():
    """On a rank: how far a copy's scores of packed rows are from the model's, and those of a plain
    model that loads its state, from what this rank has."""
    config, net, context, (tokens, _) = setting(2)
    twin = copy.deepcopy(net)
    context.positions = torch.arange(20).expand_as(tokens) % 7
    with torch.no_grad():
        scores = net(context.own(tokens))
        apart = far(twin(context.own(tokens)), scores)
        plain, row = GPT(config).double(), PackedRow()
        plain.load_state_dict(net.state_dict())
        keep_within_documents(plain, row)
        row.positions = context.positions
        return apart, far(scores, context.own(plain(tokens)))


def test_copies_and_states(worlds):
    """Must catch: a copy with a context of its own, whose positions nobody sets; names of
    parameters that change."""
    for apart, from_plain in worlds(2).run(copied_and_evaluated):
        assert apart == 0 and from_plain < CLOSE


def planned():
    """On a rank: whether a model without contents gives the shape that a real one gives."""
    _, net, context, (tokens, _) = setting(2)
    own, shapes = context.own(tokens), copy.deepcopy(net).to("meta")
    return shapes(own.to("meta")).shape == net(own).shape


def test_planned_on_the_meta_device(worlds):
    """Must catch: messages of tensors without contents."""
    assert all(worlds(2).run(planned))
