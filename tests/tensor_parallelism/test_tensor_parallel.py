"""Tensor and sequence parallelism against the plain model. Each rank draws its model from a seed of
its own, so that only rank 0's values, handed out, give the plain model's. Sums over ranks are made
in another order, hence 1e-12; float64 throughout."""

import copy
import io
import re
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from drawn import drawn_gpt
from night import at_night
from refusals import said_by
from tables import far
from told import from_told
from torch import nn

from coursekit.formulas import evaluate
from coursekit.topics.tensor_parallelism import runs
from ranklab.measure.communication import CommunicationLog
from ranklab.measure.fake_ranks import fake_ranks
from ranklab.measure.ledger import Ledger
from shardlab import zero
from shardlab.common.backward import NoSecondGradient
from shardlab.common.cross_node_warning import CrossesNodes
from shardlab.common.shards import groups_of
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mixed_precision.hardened.master_weights import MasterWeights
from shardlab.tensor_parallel import (
    CannotSplit,
    apply_tensor_parallel,
    check_plan,
    core,
    core_sequence,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.full_parameters import (
    cuts_of,
    whole_state_dict,
)
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Rows, Tokens, Whole

CLOSE = 1e-12
PEERS = {"DTensor": dict(sequence=False), "DTensor, sequence": dict(sequence=True)}
WAYS = ("tensor", "sequence", "sequence, gathered again")
OVERLAPPED = ("tensor, 1 chunk", "tensor, 3 chunks", "sequence, 2 chunks")
OVERLAPPED += ("sequence, gathered again, 3 chunks",)


def gpt_2(n, **others):
    """Heads of an odd size, an MLP and a vocabulary that no number of ranks divides."""
    sizes = dict(layers=2, hidden=6 * n, heads=2 * n, feed_forward=29, vocabulary=101)
    return GPTConfig(**{**sizes, "max_sequence": 4 * n, "dropout": 0.1, **others})


def llama(n, **others):
    """Two queries share a key."""
    sizes = dict(hidden=4 * n, heads=2 * n, key_value_heads=n, biases=0, gated_mlp=1, tied_head=0)
    return gpt_2(n, **{**sizes, "learned_positions": 0, "dropout": 0.0, **others})


MODELS = {
    "GPT-2": gpt_2,
    "GPT-2, not tied, fused attention": lambda n: gpt_2(n, tied_head=0, dropout=0.0),
    "Llama": llama,
    "Llama, tied, dropout": lambda n: llama(n, tied_head=1, dropout=0.1),
}

ON_RANKS = [(model, 3) for model in MODELS]
ON_RANKS += [(model, n) for model in ("GPT-2", "Llama") for n in (2, 4)]
PARITY = [(*on, way) for on in ON_RANKS for way in WAYS]
PARITY += [(*on, way) for on in (*ON_RANKS[::3], ("Llama", 2)) for way in OVERLAPPED]


def but_four_at_night(rows):
    """Three ranks, which divide few sizes, and two find by day what four find."""
    return [row for row in rows if row[1] < 4] + at_night(*(row for row in rows if row[1] == 4))


def plan_of(config, way):
    return as_said(gpt_plan(config), way)


def as_said(plan, way):
    if own_tokens(way):
        plan = sequence_parallel(plan, regather="again" in way)
    chunks = re.search(r"(\d) chunk", way)
    return overlapped(plan, int(chunks[1])) if chunks else plan


def own_tokens(way):
    return way.startswith("sequence")


def batch_of(config, n, seed=3):
    """Tokens and targets, among them the first of each rank's part of the vocabulary, and the last
    of all."""
    draw = torch.Generator().manual_seed(seed)
    batch = torch.randint(config.vocabulary, (2, 3, 2 * n), generator=draw)
    parts = torch.arange(config.vocabulary).tensor_split(n)
    batch[:, 0, :n] = torch.stack([part[0] for part in parts])
    batch[:, 1, 0] = config.vocabulary - 1
    return batch


def errors(config, way, frozen=(), by_core=False):
    """On a rank: how far loss and each gradient are from the plain model's."""
    torch.set_num_threads(1)
    me, n = dist.get_rank(), dist.get_world_size()
    tokens, targets = batch_of(config, n)
    model, plain = drawn_gpt(config, seed=100 if by_core else 100 + me), drawn_gpt(config, seed=100)
    for net in (model, plain):
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(not any(name.endswith(end) for end in frozen))
    torch.manual_seed(5 + me)
    if way in PEERS:
        model.load_state_dict(plain.state_dict())
        gradients, _ = runs.dtensor(model, torch.optim.SGD, **PEERS[way])
        loss = gradients(tokens, targets)
    elif by_core:
        (core_sequence.split_gpt_by_tokens if own_tokens(way) else core.split_gpt)(model)
        loss = core.vocabulary_parallel_loss(model(tokens), targets, config.vocabulary)
        loss.backward()
    else:
        apply_tensor_parallel(model, plan_of(config, way))
        loss = vocabulary_parallel_loss(model(tokens), targets, config.vocabulary)
        loss.backward()
    if own_tokens(way) and by_core:
        core_sequence.sum_gradients(model)
    elif own_tokens(way):
        sum_gradients(torch.optim.SGD(model.parameters(), lr=0.1))
    torch.manual_seed(5)
    plain_loss = next_token_loss(plain(tokens), targets)
    plain_loss.backward()
    return {"loss": far(whole(loss).detach(), plain_loss.detach()), **all_far(model, plain)}


def all_far(model, plain):
    """How far each gradient is from the plain model's."""
    expected, found = dict(plain.named_parameters()), {}
    for name, parameter in model.named_parameters():
        gradient = expected.pop(name).grad
        if gradient is None or parameter.grad is None:
            assert gradient is parameter.grad, name
            continue
        own = whole(parameter.grad)
        found[name] = far(own, part_of(name, gradient, own.shape, model))
    assert not expected
    return found


def part_of(name, gradient, shape, model):
    """This rank's part of a plain gradient: by the cut, or where the core cuts."""
    me, n = dist.get_rank(), dist.get_world_size()
    cuts = {name: cut for name, cut, _ in cuts_of(model)}
    if name in cuts:
        return cuts[name].part(gradient, me, n)
    for dim, size in enumerate(shape):
        begin, end = core.bounds(gradient.shape[dim], None)
        gradient = (
            gradient if gradient.shape[dim] == size else gradient.narrow(dim, begin, end - begin)
        )
    return gradient


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def close(found):
    return all(error < CLOSE for error in found.values())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model, n, way", but_four_at_night(PARITY))
def test_parity(worlds, model, n, way):
    """Must catch: a collective left out or made twice, forward or backward; a bias added before the
    sum; heads cut through; a mask off by one; a mask of dropout that depends on the ranks;
    gradients of norms that are not summed."""
    config = MODELS[model](n)
    for found in worlds(n).run(errors, config, way):
        assert close(found), found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("way", ("tensor", "sequence, gathered again"))
@pytest.mark.parametrize("model, n", but_four_at_night(ON_RANKS))
def test_parity_of_the_core(worlds, model, n, way):
    """Must catch: sum_gradients left out, or for the biases of rows alone; positions of the first
    tokens on all ranks; a tied head that is untied; all tokens gathered again in another order."""
    config = replace(MODELS[model](n), dropout=0.0)
    for frozen in ((), ("qkv.weight", "up.weight", "norm.weight")):
        for found in worlds(n).run(errors, config, way, frozen, True):
            assert close(found), found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", PEERS)
def test_the_peer_keeps_the_same_spec(worlds, way):
    """Must catch: a race against a plan that computes something else, or an untied head."""
    for found in worlds(2).run(errors, gpt_2(2, dropout=0.0, feed_forward=30), way):
        assert close(found), found


def test_frozen_parameters(worlds):
    """Must catch: an input counted as kept that nobody will ask for, so that it is never let go."""
    frozen = ("qkv.weight", "tokens.weight", "mlp.down.bias", "head.norm.weight")
    for way in WAYS + OVERLAPPED[1:]:
        for found in worlds(3).run(errors, gpt_2(3), way, frozen):
            assert close(found), found


# --- between forward and backward -----------------------------------------------------------------


def second_backward(way):
    """On a rank: (the largest difference of a second backward of the scores, what one of the loss
    says)."""
    config = llama(dist.get_world_size())
    tokens, targets = batch_of(config, dist.get_world_size())
    model = apply_tensor_parallel(drawn_gpt(config, seed=1), plan_of(config, way))
    inner = []
    model.blocks[0].mlp.up.register_forward_hook(lambda *given: inner.append(given[2]))
    scores, found = model(tokens), []
    # a backward that ends in the middle of a module
    torch.autograd.grad(scores.pow(2).sum(), inner[0], retain_graph=True)
    for _ in range(2):
        scores.pow(2).sum().backward(retain_graph=True)
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    loss = vocabulary_parallel_loss(model(tokens), targets, config.vocabulary)
    loss.backward(retain_graph=True)
    try:
        loss.backward()
    except RuntimeError as error:
        return max(far(twice, 2 * once) for once, twice in zip(*found)), str(error)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", (WAYS[2], *OVERLAPPED[1:]))
def test_a_second_backward(worlds, way):
    """Must catch: tokens of the first backward used again when they are gone; a second gradient of
    the loss computed from the first; weight gradients that a backward has put off, and the next one
    makes; rows that drop what a second backward needs."""
    for difference, message in worlds(2).run(second_backward, way):
        assert difference < CLOSE and "modified by an inplace operation" in message


def changed_in_place(way):
    config = gpt_2(dist.get_world_size(), dropout=0.0)
    tokens, _ = batch_of(config, dist.get_world_size())
    model = apply_tensor_parallel(drawn_gpt(config, seed=1), plan_of(config, way))
    inner = []
    model.blocks[0].mlp.up.register_forward_hook(lambda *found: inner.append(found[2]))
    scores = model(tokens)
    with torch.no_grad():
        inner[0].add_(1)
    return said_by(scores.sum().backward, RuntimeError)


@pytest.mark.parametrize("way", (WAYS[2], *OVERLAPPED[1::2]))
def test_what_was_changed_in_place(worlds, way):
    """Must catch: hooks around the layers that lose autograd's own check of versions."""
    assert all("modified by an inplace" in said for said in worlds(2).run(changed_in_place, way))


# --- the loss -------------------------------------------------------------------------------------


def losses(vocabulary, scale, dtype, masked=False):
    """On a rank: (difference of the loss, of its gradient, messages) of scores of this size."""
    me, n = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(1)
    scores = (scale * torch.randn(3, 4, vocabulary, generator=draw, dtype=torch.float64)).to(dtype)
    targets = torch.randint(vocabulary, (3, 4), generator=draw)
    targets[0, :2] = torch.tensor([0, vocabulary - 1])
    if masked:  # the first token of each rank's part
        firsts = torch.tensor([part[0] for part in torch.arange(vocabulary).tensor_split(n)])
        scores[1:, :, firsts], targets[1:] = -torch.inf, vocabulary - 1
    plain = scores.clone().requires_grad_()
    want = next_token_loss(plain, targets)
    want.backward()
    part = scores.tensor_split(n, -1)[me].clone().requires_grad_()
    with CommunicationLog() as log:
        loss = vocabulary_parallel_loss(part, targets, vocabulary)
        loss.backward()
    assert loss.dtype == want.dtype and part.grad.dtype == dtype
    return (
        (abs(loss - want) / want).item(),
        far(part.grad, plain.grad.tensor_split(n, -1)[me]),
        [(message.operation, message.nbytes) for message in log.messages],
    )


def test_the_loss(world):
    """Must catch: scores gathered; a maximum of one rank; a target on the border that two ranks
    have, or none; 16-bit sums; another rank's target that is a token of -infinity times 0."""
    for vocabulary in (world.world_size, 7, 100, 101):
        for scale in (1, 2000):
            for loss, gradient, messages in world.run(losses, vocabulary, scale, torch.float64):
                assert loss < CLOSE and gradient < CLOSE
                assert messages == [("all_reduce", 12 * 8), ("all_reduce", 2 * 12 * 8)]
    for loss, gradient, _ in world.run(losses, 101, 3, torch.float64, masked=True):
        assert loss < CLOSE and gradient < CLOSE
    for loss, gradient, _ in world.run(losses, 101, 3, torch.bfloat16):
        assert loss < 1e-5 and gradient < 0.01


# --- states ---------------------------------------------------------------------------------------


def states(config, way):
    """On a rank: (whether the head is tied, whether states are the plain model's)"""
    plain = drawn_gpt(config, seed=100)
    want, me = plain.state_dict(), dist.get_rank()
    model = apply_tensor_parallel(drawn_gpt(config, seed=100 + me), plan_of(config, way))
    found = whole_state_dict(model)
    assert list(found) == list(want)
    return found["head.scores.weight"] is found["embedding.tokens.weight"], all(
        torch.equal(found[name], want[name]) for name in want
    )


def test_states_are_the_plain_models(world):
    """Must catch: parts joined in another order than they were cut, or along another dim."""
    n = world.world_size
    assert world.run(states, gpt_2(n), "tensor") == [(True, True)] * n
    assert world.run(states, llama(n), "sequence") == [(False, True)] * n


def saved_and_loaded(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def filled_anew(model):
    """From the meta device, with the values of the model."""
    twin = copy.deepcopy(model).to("meta").to_empty(device="cpu")
    twin.load_state_dict(model.state_dict())
    return twin


def clipped_steps(model, config, way, group):
    """On a rank: (norms of two clipped steps, parameters afterwards)."""
    tokens, targets = batch_of(config, dist.get_world_size())
    optimizer, norms = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        torch.manual_seed(5)
        scores = model(tokens)
        vocabulary_parallel_loss(scores, targets, config.vocabulary, group).backward()
        if own_tokens(way):
            sum_gradients(optimizer, group)
        norms.append(clip_gradients(optimizer, 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms, list(model.parameters())


def assigned(model):
    states = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = copy.deepcopy(model)
    twin.load_state_dict(states, assign=True)
    return twin


def copied(config, way, how, in_a_group):
    """On a rank: whether a copy trains as the original does; or what it says instead."""
    torch.set_default_dtype(torch.float64)
    group = dist.new_group() if in_a_group else None
    model = apply_tensor_parallel(drawn_gpt(config, seed=1), plan_of(config, way), group)
    try:
        twin = how(model)
    except TypeError as error:
        return str(error)
    norms, parameters = clipped_steps(twin, config, way, group)
    want, originals = clipped_steps(model, config, way, group)
    return norms == want and all(map(torch.equal, parameters, originals))


@pytest.mark.parametrize("way", [OVERLAPPED[-1], *at_night(*WAYS, *OVERLAPPED[:-1])])
def test_copies(worlds, way):
    """Must catch: parts of a copy that are taken for whole, so that clipping counts one rank's and
    sum_gradients adds different tokens' rows; memory or forward of the original; PyTorch's own
    words about a C++ object."""
    two = worlds(2)
    for how in (copy.deepcopy, saved_and_loaded):
        assert two.run(copied, gpt_2(2), way, how, False) == [True, True], how
    for how in (copy.deepcopy, assigned, filled_anew):
        assert two.run(copied, llama(2), way, how, True) == [True, True], how
    for sentence in two.run(copied, llama(2), way, saved_and_loaded, True):
        assert "has a process group of its own, which is not pickled: save whole" in sentence


# --- models of the reader's own -------------------------------------------------------------------


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 11), nn.Linear(11, 6)

    def forward(self, x):
        return self.down(torch.tanh_(self.up(x)))  # in place


class Small(nn.Module):
    """An embedding with a row for padding, PyTorch's dropout, and a pair of linear layers."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, 6, padding_idx=7)
        self.drop = nn.Dropout(0.4)
        self.inner = Inner()

    def forward(self, tokens):
        return self.inner(self.drop(self.tokens(tokens)))


SMALL = {
    "tokens": Tokens(),
    "drop": Whole(),
    "inner": Around(),
    "inner.up": Columns(11),
    "inner.down": Rows(11),
}


def small():
    torch.manual_seed(4)
    return Small().double()


def trained_small(way):
    """On a rank: how far outputs and gradients are from the plain model's, and outputs in eval."""
    n, me = dist.get_world_size(), dist.get_rank()
    plan = as_said(SMALL, way)
    tokens = torch.arange(2 * 2 * n).view(2, 2 * n) % 11
    found = {}
    for training in (True, False):
        plain, model = small().train(training), small().train(training)
        apply_tensor_parallel(model, plan)
        torch.manual_seed(5)
        y = plain(tokens)
        torch.manual_seed(5)
        ours = model(tokens)
        weights = torch.randn_like(y)
        own = slice(2 * me, 2 * me + 2) if own_tokens(way) else slice(None)
        (y * weights).sum().backward()
        (ours * weights[:, own]).sum().backward()
        if own_tokens(way):
            sum_gradients(torch.optim.SGD(model.parameters(), lr=0.1))
        found[f"y, {training = }"] = far(ours.detach(), y[:, own].detach())
        found |= {f"{name}, {training = }": error for name, error in all_far(model, plain).items()}
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", WAYS + OVERLAPPED)
def test_a_small_model(worlds, way):
    """Must catch: a gradient of the row for padding; the mask of the first tokens for those of all
    ranks; parts that drop elements because they are new, and new modules train."""
    assert all(map(close, worlds(3).run(trained_small, way)))


def penalized(way):
    """On a rank: how far the gradients of a penalty on gradients are from the plain model's; what
    the loss says of such a penalty."""
    n, me = dist.get_world_size(), dist.get_rank()
    plan = as_said(SMALL, way)
    plain, model = small().eval(), small().eval()
    apply_tensor_parallel(model, plan)
    tokens, own = torch.arange(2 * 2 * n).view(2, 2 * n) % 11, slice(2 * me, 2 * me + 2)
    for net in (plain, model):
        vectors = []
        net.tokens.register_forward_hook(lambda _module, _inputs, x, v=vectors: v.append(x))
        y = net(tokens)
        y = y * weights_of(slice(0, 2 * n) if y.shape[1] == 2 * n else own)
        (gradient,) = torch.autograd.grad(y.pow(2).sum(), vectors, create_graph=True)
        gradient.pow(2).sum().backward()
    if own_tokens(way):
        sum_gradients(torch.optim.SGD(model.parameters(), lr=0.1))
    scores = torch.ones(1, 2, 2, requires_grad=True)
    try:
        loss = vocabulary_parallel_loss(scores, tokens[:1, :2], 2 * n)
        torch.autograd.grad(loss, scores, create_graph=True)
    except NoSecondGradient as error:
        return all_far(model, plain), str(error)


def weights_of(own):
    """A weight for each of these tokens."""
    return torch.arange(float(own.start), float(own.stop))[:, None]


@pytest.mark.parametrize("way", WAYS + OVERLAPPED)
def test_gradients_of_gradients(worlds, way):
    """Must catch: sums over ranks that autograd does not see within backward; a loss whose gradient
    it takes for a constant."""
    for found, said in worlds(3).run(penalized, way):
        assert close(found) and said.startswith("create_graph=True: vocabulary_parallel_loss keeps")


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_hook(register):
    register(lambda *_: None)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@from_told("change, message")
def test_modules_that_a_part_cannot_replace(change, message):
    """Must catch: each of these lost without a word, where a plain layer takes the module's place,
    or the first of its places."""
    model, plan = small(), dict(SMALL)
    change(model)
    if hasattr(model.drop, "again"):
        plan["drop.again"] = plan.pop("inner.up")
    with pytest.raises(CannotSplit, match=re.escape(message)):
        check_plan(model, plan, 2)


# --- what is sent ---------------------------------------------------------------------------------


def sent(config, way, tokens):
    """On a rank: bytes that it sends by this book's ring, and brings to all-reduces, in a step."""
    model = apply_tensor_parallel(drawn_gpt(config, seed=1), plan_of(config, way))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with CommunicationLog() as log:
        vocabulary_parallel_loss(model(tokens), tokens, config.vocabulary).backward()
        if own_tokens(way):
            sum_gradients(optimizer)
    totals = log.totals()
    return totals["send"].nbytes if "send" in totals else 0, totals["all_reduce"].nbytes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("one_each", [False, True])
@pytest.mark.parametrize("way", WAYS + OVERLAPPED)
def test_bytes_on_the_wire(world, way, one_each):
    """Must catch: a ring that sends a whole instead of a part; a fake group whose messages differ
    from those of real ranks; gathered tokens that a product copies, so that the copy is kept
    instead of own tokens."""
    n = world.world_size
    config = gpt_2(n)
    tokens, _ = batch_of(config, n)
    tokens = tokens[:, :n] if one_each else tokens
    given = dict(
        **config.quantities(),
        sequence_parallel=int(own_tokens(way)),
        regather=int("again" in way),
        microbatch=tokens.shape[0],
        sequence=tokens.shape[1],
        compute_element_bytes=8,
        gradient_element_bytes=8,
        tensor_parallel=n,
    )
    names = ["tensor_message_bytes", "tensor_all_reduces", "tensor_summed_bytes"]
    one, sums, whole_bytes = evaluate(names, allow_unused=True, **given).values()
    passes = evaluate(["tensor_gatherings", "tensor_reduce_scatters"], allow_unused=True, **given)
    reduced = sums * one + 3 * 8 * tokens.numel() + whole_bytes  # the loss in float64 here
    ring = sum(passes.values()) * one * (n - 1) // n
    assert world.run(sent, config, way, tokens) == [(ring, reduced)] * n


# --- what is refused ------------------------------------------------------------------------------


@from_told("ranks, config, change, message")
def test_what_is_refused(ranks, config, change, message):
    """Must catch: a plan of another model, a module forgotten, a head cut through, a tie that
    cutting would untie, columns whose input nobody enters."""
    config = gpt_2(2, **config)
    plan = {name: entry for name, entry in {**gpt_plan(config), **change}.items() if entry}
    with torch.device("meta"):
        model = GPT(config)
    check_plan(model, gpt_plan(config), 1)
    with pytest.raises(CannotSplit, match=re.escape(message)):
        check_plan(model, plan, ranks)


def test_more_ranks_than_a_node_has():
    """Must catch: silence, or a warning where all is well."""
    with torch.device("meta"):
        model = GPT(gpt_2(8))
    with pytest.warns(CrossesNodes, match="16 ranks on nodes of 8: .* 7.5 vectors of the hidden"):
        check_plan(model, gpt_plan(gpt_2(8)), 16, ranks_per_node=8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_plan(model, gpt_plan(gpt_2(8)), 8, ranks_per_node=8)


def refused_on_ranks(case):
    """On a rank: what it says of a model or of tokens that cannot be."""
    me, n = dist.get_rank(), dist.get_world_size()
    config = gpt_2(n, vocabulary=101 + me * (case == "models"))
    plan = plan_of(config, WAYS[1])
    if case == "plans" and me == 1:
        del plan["head.norm"]
    model, tokens = drawn_gpt(config, seed=1), torch.zeros(1, 2 * n, dtype=torch.long)
    try:
        apply_tensor_parallel(model, plan)
        model(tokens[:, :-1] if case == "odd" else tokens + 200 if case == "unknown" else tokens)
    except (ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


@from_told("case, message")
def test_what_ranks_refuse_together(worlds, case, message):
    """Must catch: an error on one rank alone; a token of no rank that becomes zeros."""
    said = worlds(3).run(refused_on_ranks, case)
    assert all(text and text.startswith(message) for text in said), said


class KeepsZeros(torch.optim.SGD):
    """Its gradients are the same tensors in each step."""

    def zero_grad(self):
        super().zero_grad(set_to_none=False)


def sharded(model, stage):
    group = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    return zero.shard(model, torch.optim.SGD, stage=stage, group=group, lr=0.1)


SGD = partial(torch.optim.SGD, lr=0.1)
MASTERS = partial(MasterWeights, of=torch.optim.SGD, lr=0.1)
MADE = {
    "keeps zeros": lambda model: (model, KeepsZeros(model.parameters(), lr=0.1)),
    "plain": lambda model: (model, SGD(model.parameters())),
    "whole alone": lambda model: (
        model,
        SGD([p for p in model.parameters() if p.dim() == 1 and not groups_of(p)]),
    ),
    "masters": lambda model: (model.bfloat16(), MASTERS(list(model.parameters()))),
    **{f"stage {stage}": partial(sharded, stage=stage) for stage in (1, 2, 3)},
}


def last_of(calls, kind, plan):
    """On a rank: what the last of these calls says."""
    model, optimizer = MADE[kind](apply_tensor_parallel(small(), plan))
    does = {
        "backward": lambda: model(torch.arange(4).view(1, 4)).sum().backward(),
        "sum": lambda: sum_gradients(optimizer),
        "clip": lambda: clip_gradients(optimizer, 0.1),
        "step": optimizer.step,
        "zero": optimizer.zero_grad,
    }
    *before, last = calls.split()
    for call in before:
        does[call]()
    return said_by(does[last], CannotSplit)


@pytest.mark.parametrize("between", ["", "clip", "backward"])
@pytest.mark.parametrize("kind", ["plain", "keeps zeros"])
def test_gradients_summed_twice(worlds, kind, between):
    """Must catch: gradients of biases that are too large by the number of ranks, also where a
    script sums after each microbatch; a refusal in the next step."""
    calls = "zero backward backward sum clip step " * 2 + f"zero backward sum {between} sum"
    for said in worlds(2).run(last_of, calls, kind, sequence_parallel(SMALL)):
        assert said.startswith("sum_gradients a second time since the last zero_grad()")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", MADE)
def test_a_step_without_the_sum(worlds, kind):
    """Must catch: copies of what is whole that drift apart; a sum of the step before that counts
    for this one."""
    calls = "backward sum step zero backward step"
    for said in worlds(2).run(last_of, calls, kind, sequence_parallel(SMALL)):
        assert re.match(
            r"step\(\) with a gradient of shape \[\d+\] that is of this rank's tok", said
        )


def test_gradients_that_are_whole_already(worlds):
    """Must catch: gradients of norms and biases too large by the number of ranks, where a training
    script has lost its sequence_parallel."""
    for said in worlds(2).run(last_of, "backward sum", "plain", SMALL):
        assert "every rank of this group sees all tokens" in said


def padded_losses():
    """On a rank: (loss, gradient of its scores) of each of two microbatches, padded unlike each
    other, as parts of the mean over both."""
    rank, n = dist.get_rank(), dist.get_world_size()
    found = []
    for scores, targets, count in padded_batch():
        own = scores.tensor_split(n, -1)[rank].clone().requires_grad_()
        loss = vocabulary_parallel_loss(own, targets, scores.shape[-1], count=count)
        loss.backward()
        found.append((loss.detach(), own.grad))
    return found


def padded_batch():
    draw = torch.Generator().manual_seed(2)
    targets = torch.randint(7, (2, 3, 5), generator=draw)
    targets[0, :, 2:], targets[1, 0] = -100, -100
    count = (targets != -100).sum()
    scores = torch.randn(2, 3, 5, 7, generator=draw, dtype=torch.float64)
    return [(part, target, count) for part, target in zip(scores, targets)]


def test_padded_targets(worlds):
    """Must catch: a padded target that counts in the loss or has a gradient; a mean over each
    microbatch alone."""
    for rank, found in enumerate(worlds(3).run(padded_losses)):
        for (loss, gradient), (scores, targets, count) in zip(found, padded_batch()):
            scores.requires_grad_()
            want = next_token_loss(scores, targets, count)
            want.backward()
            torch.testing.assert_close(loss, want.detach(), rtol=1e-12, atol=0)
            own = scores.grad.tensor_split(3, -1)[rank]
            torch.testing.assert_close(gradient, own, rtol=1e-12, atol=1e-15)


# --- what ranks have alike ------------------------------------------------------------------------


def apart(case, way):
    """On a rank: what two forwards with gradients say, of ranks that differ so."""
    me, n = dist.get_rank(), dist.get_world_size()
    config = gpt_2(n, dropout=0.0 if case == "no dropout" else 0.1)
    model = apply_tensor_parallel(drawn_gpt(config, seed=1), plan_of(config, way))
    tokens, _ = batch_of(config, n)
    if case in ("seeds", "no dropout", "evaluation"):
        torch.manual_seed(100 + me)
    if case == "one draws" and me:
        torch.rand(1)
    if case == "one evaluates" and me:
        model.eval()
    if case == "rates":
        model.blocks[0].dropout.p = 0.1 + me / 10
    if case == "batches":
        tokens = tokens.roll(me, -1)
    for parameter in model.parameters() if case == "drawn anew" else ():
        torch.manual_seed(5)
        nn.init.normal_(parameter)
    if case == "evaluation":
        model.eval()
        model(tokens)
        with torch.no_grad():
            model.train()(tokens)
    said = []
    for _ in range(2):
        try:
            model(tokens).sum().backward()
            said.append("")
        except CannotSplit as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("way", WAYS[:2])
@from_told("case, first, second")
def test_what_ranks_have_alike(worlds, case, way, first, second):
    """Must catch: a comparison that only ranks with dropout make, so that they wait for the others;
    one that a refusal, or an evaluation, ends; a refusal of seeds that nothing is drawn from."""
    for every in worlds(2).run(apart, case, way):
        for said in every:
            assert said.removeprefix("rank 0 has ").startswith(first) and second in said, said
            assert bool(said) == bool(first)


def compared():
    """On a rank: all-gathers that a log has, and those that are made, in each of two steps."""
    from ranklab.ranks.calls import listening  # here: at the top, every test would start ranks

    config = gpt_2(dist.get_world_size())
    tokens, _ = batch_of(config, dist.get_world_size())
    model = apply_tensor_parallel(drawn_gpt(config, seed=1), gpt_plan(config))
    made, found = [], []
    for _ in range(2):
        made.clear()
        with CommunicationLog() as log, listening(lambda call: made.append(call.name)):
            model(tokens).sum().backward()
        logged = [message.operation for message in log.messages]
        found.append((logged.count("all_gather"), made.count("all_gather")))
    return found


def test_ranks_compare_once(worlds):
    """Sizes and facts, sizes and parts: four all-gathers, which no log of a step has.

    Must catch: a comparison in each step, for which a GPU's host would wait."""
    assert worlds(2).run(compared) == [[(0, 4), (0, 0)]] * 2


# --- the gradient of an input that somebody else has as well --------------------------------------


class Watched(nn.Module):
    """Its input is looked at by a hook, used without a weight, too, or added to what was computed
    before, so that one gradient is that of both."""

    def __init__(self, how, before):
        super().__init__()
        self.up, self.gate = (nn.Linear(4, 6) for _ in "ug")
        self.how, self.before = how, before

    def forward(self, x):
        if self.how == "hooked":
            x.register_hook(lambda gradient: 3 * gradient)
        if self.how == "added to another":
            x = x + self.before
        y = self.up(x) * self.gate(x)
        if self.how == "added beside weights":
            y = y * (x + self.before).square().mean()
        return y * x.mean() if self.how == "without a weight" else y


def gradients_watched(how, sequence, chunks):
    """Gradients of own tokens, of two sequences, of what was computed before, and of the
    columns."""
    torch.manual_seed(0)
    before = torch.ones(2, 3 * (dist.get_world_size() if sequence else 1), 4, dtype=torch.float64)
    before.requires_grad_()
    model = nn.Sequential(Watched(how, 3 * before)).double()
    plan = {"0": Around(), "0.up": Columns(6), "0.gate": Columns(6)}
    plan = sequence_parallel(plan, regather=False) if sequence else plan
    apply_tensor_parallel(model, overlapped(plan, chunks) if chunks else plan)
    x = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    model(x * 2).square().sum().backward()
    beside = [before.grad] if how in ADDED else []
    return [x.grad, *(p.grad for p in model.parameters()), *beside]


ADDED = ("added to another", "added beside weights")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("how", ["alone", "hooked", "without a weight", *ADDED])
def test_whoever_looks_at_the_gradient_of_an_input_sees_it(world, how, sequence):
    """Must catch: a gradient that no hook sees, as it is made where the message leaves; a part that
    does not come from a weight and is left out; two sequences in the order of one; a gradient that
    is summed in the memory of another path's, for want of `clone` or in `by_rank(other)`."""
    ways = (world.run(gradients_watched, how, sequence, chunks) for chunks in (0, 1))
    for plain, late in zip(*ways):
        assert len(plain) == len(late) == 5 + (how in ADDED)
        assert all(torch.allclose(*pair, rtol=CLOSE) for pair in zip(plain, late))


def peak_of_layers(model, sequences, regather, chunks):
    """Bytes of one sequence or more of as many tokens as a layer is wide, on the first of eight
    ranks. `regather` is None without sequence parallelism."""
    with fake_ranks(8), FakeTensorMode():
        config = model(8, hidden=256, heads=16, feed_forward=1024, max_sequence=256, dropout=0.0)
        net, plan = GPT(config), gpt_plan(config)
        plan = plan if regather is None else sequence_parallel(plan, regather)
        apply_tensor_parallel(net, overlapped(plan, chunks) if chunks else plan)
        tokens = torch.zeros(sequences, 256, dtype=torch.long)
        with Ledger(net) as ledger:
            vocabulary_parallel_loss(net(tokens), tokens, config.vocabulary).backward()
        return ledger.peak.bytes.total


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, sequences", [(gpt_2, 1), *at_night((gpt_2, 4), (llama, 1), (llama, 4))]
)
@pytest.mark.parametrize("regather", [True, *at_night(None, False)], ids=[*WAYS[:0:-1], "tensor"])
def test_peak_of_overlapped_layers(model, sequences, regather):
    """Must catch: a gradient that is copied to be summed or scattered; rows that keep their tokens
    while the gradient of the last is made; a sum of weight gradients beside its term; tokens that
    come again while every chunk is there; own tokens that die with the graph."""
    plain, *late = (peak_of_layers(model, sequences, regather, c) for c in (0, 1, 2, 4))
    bias, first_chunk = 4 * 128, 4 * 128 * 256 // 2
    is_over = (model, sequences, regather) == (gpt_2, 1, True)
    over = [bias, first_chunk, bias] if is_over else [0, 0, 0]
    assert [max(0, peak - plain) for peak in late] == over
