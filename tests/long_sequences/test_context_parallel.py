"""Context parallelism beside the plain model: outputs, every gradient, bytes; what is refused. Sums
are made in another order than the plain model's, hence 1e-12; float64 throughout."""

import copy
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from drawn import drawn_gpt
from night import at_night
from tables import far

from ranklab.measure.communication import CommunicationLog
from shardlab import context_parallel as hardened
from shardlab.context_parallel import Causal, ChosenTiles, Window, core, core_ring, targets_a_rank
from shardlab.data_loading.core_packing import PackedRow, keep_within_documents
from shardlab.gpt import PADDING, CoreAttention, GPTConfig, next_token_loss

CLOSE = 1e-12
MIXES = "RingAttention", "GatheredAttention", "Ulysses"
BY = {"core": core, "hardened": hardened}
COUNTS = [3, *at_night(2, 4)]


def gpt_2(n, **others):
    sizes = dict(layers=2, hidden=16 * n, heads=2 * n, feed_forward=29, vocabulary=31)
    return GPTConfig(**{**sizes, "max_sequence": 12 * n, **others})


def llama(n, **others):
    """Two queries share a key."""
    sizes = dict(key_value_heads=n, learned_positions=0, biases=0, gated_mlp=1, tied_head=0)
    return gpt_2(n, **{**sizes, **others})


STYLES = {
    "GPT-2": gpt_2,
    "Llama": llama,
    "one key for all queries": partial(llama, key_value_heads=1),  # Ulysses needs one a rank
}


def batch_of(config, n, chunk=5):
    """Tokens and targets [3, S] of an odd chunk. A sequence has no target on the first ranks,
    another none in its second half."""
    tokens, targets = torch.randint(config.vocabulary, (2, 3, 2 * n * chunk))
    targets[0, : chunk + 2] = PADDING
    targets[2, n * chunk :] = PADDING
    return tokens, targets


def documents_of(tokens):
    """Positions that begin again at random places, so that some chunks see none of others."""
    first = torch.rand(tokens.shape) < 0.2
    first[:, 0] = True
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    return places - (places * first).cummax(1).values


class Seen(CoreAttention):
    """Attention by a table [S, S] of what is seen."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, self.table, enable_gqa=True)


def errors(config, by, packed=False, rule=None, table=None):
    """On a rank: how far loss, outputs and each gradient are from the plain model's, at most."""
    torch.set_num_threads(1)
    n, found = dist.get_world_size(), {}
    plain = drawn_gpt(config)
    tokens, targets = batch_of(config, n)
    positions = documents_of(tokens) if packed else None
    mine = copy.deepcopy(plain)
    if packed:
        row = PackedRow()
        keep_within_documents(plain, row)
        row.positions = positions
    if table is not None:
        for block in plain.blocks:
            block.attention.core = Seen(config)
            block.attention.core.table = table
    logits = plain(tokens)
    loss = next_token_loss(logits, targets)
    loss.backward()
    mixes = MIXES if config.key_value_heads % n == 0 else MIXES[:2]
    for name, zigzag in product(mixes, (True, False)):
        context = by.Context(zigzag=zigzag, rule=rule)
        context.positions = positions
        net = by.context_parallel(copy.deepcopy(mine), context, getattr(by, name))
        own, own_targets = context.own(tokens), context.own(targets)
        own_logits = net(own)
        own_loss = next_token_loss(own_logits, own_targets, targets_a_rank(own_targets))
        own_loss.backward()
        average([own_loss.detach(), *(p.grad for p in net.parameters())])
        apart = [far(own_loss.detach(), loss.detach()), far(own_logits, context.own(logits))]
        pairs = zip(net.parameters(), plain.parameters(), strict=True)
        found[name, zigzag] = max(*apart, *(far(a.grad, b.grad) for a, b in pairs))
    return found


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def parity_of(world, *args, **named):
    for found in world.run(errors, *args, **named):
        assert all(error < CLOSE for error in found.values()), found


@pytest.mark.one_in(3)  # of each style, both ways of packing and both implementations
@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("packed", [False, True], ids=["sequences", "packed"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("n", COUNTS)
def test_parity(worlds, n, style, packed, by):
    """Must catch: a merge without rescaling; a block's own log-sum-exp in backward; gradients of
    keys that stay; tokens out of order under Ulysses; positions of rank 0 on all ranks; documents
    that see each other; ranks' means averaged where targets differ in number. Hardened: a rectangle
    that is not its halves."""
    parity_of(worlds(n), STYLES[style](n), BY[by], packed)


# --- masks ----------------------------------------------------------------------------------------

CHOSEN = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 1]]).bool()


def table_of(size, sees):
    return torch.tensor([[j <= i and bool(sees(i, j)) for j in range(size)] for i in range(size)])


RULES = {
    "window": (lambda size: Window(7), lambda i, j: i - j < 7),
    "window and sinks": (lambda size: Window(4, sinks=3), lambda i, j: i - j < 4 or j < 3),
    "a key of its own": (lambda size: Window(1), lambda i, j: i == j),
    "tiles": (
        lambda size: ChosenTiles(CHOSEN, 12),
        lambda i, j: CHOSEN[i // 12, j // 12] or i // 12 == j // 12,
    ),
}


@pytest.mark.parametrize("rule", [*at_night("window"), *list(RULES)[1:]])
@pytest.mark.parametrize("n", [3, *at_night(2, 4)])
def test_parity_of_masks(worlds, n, rule):
    """Must catch: a window one key too long or too short; a block skipped that has a sink, or an
    edge of the window; gradients that go home from a late turn when the ring has ended early."""
    made, sees = RULES[rule]
    parity_of(worlds(n), gpt_2(n), core, rule=made(10 * n), table=table_of(10 * n, sees))


def test_parity_of_a_window_in_packed_rows(worlds):
    """Must catch: a rule that replaces the walls between documents."""
    config, size = llama(2), 20
    for found in worlds(2).run(errors_of_both, config, size):
        assert all(error < CLOSE for error in found.values()), found


def errors_of_both(config, size):
    wide, narrow = Window(size), Window(1)
    return errors(config, hardened, packed=True, rule=wide) | errors(
        config, hardened, packed=True, rule=narrow, table=torch.eye(size).bool()
    )


def counted(rule, zigzag, tokens=8):
    """On a rank: (blocks that it computes, messages that it sends in forward and backward)."""
    context = core.Context(zigzag=zigzag, rule=rule)
    q, k, v = torch.randn(3, 1, 2, tokens, 4, requires_grad=True)
    blocks = core_ring.Blocks(context)
    turns = context.rule.turns(context, tokens)
    computed = sum(len([*blocks.at(turn, q)]) for turn in range(turns))
    mix = core.RingAttention(gpt_2(1))
    mix.context = context
    with CommunicationLog() as log:
        mix(q, k, v).sum().backward()
    return computed, sum(message.operation == "send" for message in log.messages)


def test_work_and_messages_of_each_rule(worlds):
    """Must catch: a block that no query sees computed, or sent for; a ring that ends before all
    have what they see; work in zigzag order that is not equal."""
    world = worlds(4)

    def of(rule, zigzag):
        blocks, messages = zip(*world.run(counted, rule, zigzag))
        assert len({*messages}) == 1
        return [*blocks], messages[0]

    assert of(Causal(), False) == ([3, 7, 11, 15], 10)
    assert of(Causal(), True) == ([9] * 4, 10)
    assert of(Window(5), False) == ([3, 4, 4, 4], 4)  # two turns: T - 1 + T - 1 + T
    assert of(Window(9), False) == ([3, 6, 6, 6], 4)
    assert of(Window(10), False) == ([3, 7, 8, 8], 7)
    assert of(Window(1), True) == ([2] * 4, 0)
    assert of(Window(5), True) == ([3, 4, 4, 4], 10)  # the next chunk may be on the rank before
    assert of(Window(5, sinks=1), False)[1] == 10


# --- bytes ----------------------------------------------------------------------------------------


def sent(mix, config, dtype):
    """On a rank: bytes that it sends in one attention's forward and backward, the ring's gradients
    apart."""
    n, head = dist.get_world_size(), config.hidden // config.heads
    context, made = core.Context(), getattr(core, mix)(config)
    made.context = context
    shapes = [(2, heads, 6, head) for heads in (config.heads, *[config.key_value_heads] * 2)]
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
    with CommunicationLog() as log:
        made(q, k, v).sum().backward()
    total, home = 0, 0
    for message in log.messages:
        if message.operation == "send":
            total += message.nbytes
            home += message.nbytes * (message.dtype == "float32")
        elif message.operation != "recv":
            total += message.nbytes * (n - 1) // n
    return total, home


@pytest.mark.parametrize("n", COUNTS)
def test_bytes_that_each_mix_sends(worlds, n):
    """2(3c - 2) b(s/c)h_kv by the ring, 4(c - 1) b(s/c)h_kv gathered, 4(h + h_kv) b(s/c) (c - 1)/c
    by Ulysses. Must catch: a turn too many; queries that travel; keys repeated before they are
    sent; gradients added up in 16 bits."""
    for config in (gpt_2(n), llama(n)):
        tokens, size, groups = 2 * 6, config.hidden // config.heads, config.key_value_heads
        kv, both = tokens * groups * size, tokens * (config.heads + groups) * size
        want = {"RingAttention": 2 * (3 * n - 2) * kv, "GatheredAttention": 4 * (n - 1) * kv}
        want["Ulysses"] = 4 * both * (n - 1) // n
        for mix, elements in want.items():
            for total, _ in worlds(n).run(sent, mix, config, torch.float64):
                assert total == 8 * elements, mix
        for total, home in worlds(n).run(sent, MIXES[0], config, torch.bfloat16):
            assert home == 4 * 2 * (n - 1) * kv  # in fp32, until the last rank has added to them
            assert total - home == 2 * 2 * (2 * n - 1) * kv


def second_gradient():
    """On a rank: a ring's gradient, asked for its own gradient."""
    q = torch.randn(1, 2, 4, 4, requires_grad=True)
    y = core_ring.RingOfKeys.apply(q, q, q, core_ring.Blocks(core.Context())).square().sum()
    (first,) = torch.autograd.grad(y, q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_second_gradient_is_refused(worlds):
    """Must catch: a second gradient that is wrong."""
    worlds(3).run(second_gradient)
