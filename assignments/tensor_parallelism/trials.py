"""Trials of the assignment: layers cut by width, and a transformer block made of them. README.md
beside this file says what a learner builds."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from coursekit.exercises.assignments import Assignment
from ranklab.measure.communication import CommunicationLog
from shardlab.gpt import Block, GPTConfig
from shardlab.tensor_parallel import apply_tensor_parallel, core, vocabulary_parallel_loss
from shardlab.tensor_parallel.hardened.layers import Cut, Parts
from shardlab.tensor_parallel.hardened.pairs import enter, leave
from shardlab.tensor_parallel.hardened.plan import Around, Columns, Drops, Rows, Tokens, Whole

from ..asking import (
    Here,
    Wrong,
    demand,
    expect,
    groups,
    race_of_two,
    refuses,
    sent_at_best,
)


def split_block(block: Block, group: dist.ProcessGroup | None = None) -> Block:
    """The reference's: what gpt_plan says of a block."""
    attention, mlp = block.attention, block.mlp
    size = (attention.queries_per_group + 2) * attention.head_size
    heads, inner = attention.qkv.out_features // size, mlp.up.out_features
    plan = {
        "attention_norm": Whole(),
        "attention": Around(),
        "attention.qkv": Columns(heads, "key_value_heads"),
        "attention.core.dropout": Drops(),
        "attention.output": Rows(heads, "key_value_heads"),
        "mlp_norm": Whole(),
        "mlp": Around(),
        "mlp.up": Columns(inner),
        "mlp.down": Rows(inner),
        "dropout": Whole(),
    }
    if mlp.gate is not None:
        plan["mlp.gate"] = Columns(inner)
    return apply_tensor_parallel(block, plan, group)


ASSIGNMENT = Assignment(
    "tensor_parallelism",
    reference={
        "enter": enter,
        "leave": leave,
        "ColumnLinear": lambda whole, group=None: Columns(whole.out_features).split(
            whole, Parts(group)
        ),
        "RowLinear": lambda whole, group=None: Rows(whole.in_features).split(whole, Parts(group)),
        "TokenEmbedding": lambda whole, group=None: Tokens().split(whole, Parts(group)),
        "vocabulary_parallel_loss": vocabulary_parallel_loss,
        "split_block": split_block,
    },
    core={
        "enter": core.enter,
        "leave": core.leave,
        "ColumnLinear": core.ColumnLinear,
        "RowLinear": core.RowLinear,
        "TokenEmbedding": core.TokenEmbedding,
        "vocabulary_parallel_loss": core.vocabulary_parallel_loss,
        "split_block": core.split_block,
    },
    forbidden=(
        "torch.distributed.tensor",
        "torch.distributed._tensor",
        "torch.distributed._functional_collectives",
        "torch.distributed.nn",
    ),
    may_import=("shardlab.gpt",),
)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def filled(module: nn.Module, seed: int = 1) -> nn.Module:
    """The module in float64, with random biases too: zeros would hide a bias that is added on each
    rank."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data.normal_(generator=generator)
    return module


def part_of(whole: Tensor, dim: int, here: Here) -> Tensor:
    """This rank's part: the first ranks have one more where n does not divide."""
    return Cut(dim, whole.shape[dim]).part(whole, here.me, here.n)


ENTER, LEAVE, COLUMNS, ROWS = "enter", "leave", "ColumnLinear", "RowLinear"
TOKENS, LOSS = "TokenEmbedding", "vocabulary_parallel_loss"
VOCABULARY = 11


def _sum(here: Here, *shape: int) -> Tensor:
    return sum(random(*shape, seed=rank) for rank in range(here.n))


# --- parity ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("parity", ENTER)
def entered(mine):
    """forward the same, backward the sum over 2, 3 and 4 ranks"""
    for here in groups(4, 3, 2):
        x, other = random(3, 5).requires_grad_(), random(3, 5, seed=9).requires_grad_()
        beside = other * 1  # its backward comes after that of enter
        y = mine.enter(x, here.group)
        what = f"on rank {here.me} of {here.n}"
        expect(f"enter(x) {what}", y, x.detach(), close=0)
        own = random(3, 5, seed=here.me)
        (y + beside).backward(own.clone())
        expect(
            f"the gradient of x before enter(x) {what}",
            x.grad,
            _sum(here, 3, 5),
            {
                "That is this rank's part: all ranks have used x, so its gradient is a sum over"
                " them.": own
            },
        )
        expect(
            f"the gradient of another tensor, added to enter(x), {what}",
            other.grad,
            own,
            {"backward wrote into a gradient that others use too: sum a copy.": _sum(here, 3, 5)},
        )


@ASSIGNMENT.trial("parity", LEAVE)
def left(mine):
    """forward the sum over 2, 3 and 4 ranks, backward the same"""
    for here in groups(4, 3, 2):
        x = random(3, 5, seed=here.me).requires_grad_()
        y = mine.leave(x * 1, here.group)
        what = f"on rank {here.me} of {here.n}"
        expect(
            f"leave(x) {what}",
            y,
            _sum(here, 3, 5),
            {"That is this rank's part: nothing was summed.": x.detach()},
        )
        demand(
            y.requires_grad,
            "leave(x) has no graph: write an autograd.Function, because autograd does not see"
            " dist.all_reduce.",
        )
        y.backward(random(3, 5, seed=7))
        right = random(3, 5, seed=7)
        expect(
            f"the gradient of x before leave(x) {what}",
            x.grad,
            right,
            {
                f"That is the sum over {here.n} ranks: the gradient of a sum is that of each part,"
                " and all ranks have it already.": here.n * right
            },
        )


@ASSIGNMENT.trial("parity", COLUMNS)
def columns(mine):
    """some outputs of a linear layer, and gradients of its part, with 7 and 8 outputs"""
    for here in groups(4, 3, 2):
        for outputs, bias in ((8, True), (7, True), (7, False)):
            linear = filled(nn.Linear(5, outputs, bias))
            whole = filled(nn.Linear(5, outputs, bias))
            layer = mine.ColumnLinear(linear, here.group)
            x = random(2, 3, 5)
            what = f"ColumnLinear of {outputs} outputs, rank {here.me} of {here.n}"
            y, right = layer(x), whole(x)
            expect(f"the output of {what}", y, part_of(right, 2, here).detach())
            right.square().sum().backward()
            y.square().sum().backward()
            for name, parameter in whole.named_parameters():
                _compare_part(f"{what}: {name}", layer, name, parameter, 0, here)


def _compare_part(what: str, layer, name: str, whole: nn.Parameter, dim: int | None, here: Here):
    found = dict(layer.named_parameters())
    demand(name in found, f"{what} should be a parameter, with its name in nn.Linear.")
    for kind, got, right in (
        ("", found[name], whole.detach()),
        ("the gradient of ", found[name].grad, whole.grad),
    ):
        wanted = right if dim is None else part_of(right, dim, here)
        expect(
            f"{kind}{what}",
            got,
            wanted,
            {f"It is {here.n} times too large.": here.n * wanted},
        )


@ASSIGNMENT.trial("parity", ROWS)
def rows(mine):
    """a linear layer of which each rank has some inputs, and its bias once"""
    for here in groups(4, 3, 2):
        for inputs, bias in ((8, True), (7, True), (7, False)):
            linear = filled(nn.Linear(inputs, 5, bias))
            whole = filled(nn.Linear(inputs, 5, bias))
            layer = mine.RowLinear(linear, here.group)
            x = random(2, 3, inputs)
            what = f"RowLinear of {inputs} inputs, rank {here.me} of {here.n}"
            y, right = layer(part_of(x, 2, here)), whole(x)
            instead = {}
            if bias:
                more = (here.n - 1) * whole.bias.detach()
                instead["The bias is added on each rank: add it once, after the sum."] = (
                    right.detach() + more
                )
                instead["The bias is missing."] = right.detach() - whole.bias.detach()
            expect(f"the output of {what}", y, right.detach(), instead)
            right.square().sum().backward()
            y.square().sum().backward()
            for name, parameter in whole.named_parameters():
                dim = 1 if name == "weight" else None
                _compare_part(f"{what}: {name}", layer, name, parameter, dim, here)


@ASSIGNMENT.trial("parity", TOKENS)
def tokens(mine):
    """vectors of 11 tokens, of which each rank has some, and their gradients"""
    for here in groups(4, 3, 2):
        embedding = filled(nn.Embedding(VOCABULARY, 5))
        whole = filled(nn.Embedding(VOCABULARY, 5))
        layer = mine.TokenEmbedding(embedding, here.group)
        ids = torch.arange(2 * VOCABULARY).view(2, -1) % VOCABULARY
        what = f"TokenEmbedding of {VOCABULARY} tokens, rank {here.me} of {here.n}"
        y, right = layer(ids), whole(ids)
        expect(f"the output of {what}", y, right.detach())
        right.square().sum().backward()
        y.square().sum().backward()
        _compare_part(f"{what}: weight", layer, "weight", whole.weight, 0, here)


@ASSIGNMENT.trial("parity", LOSS)
def losses(mine):
    """the mean cross-entropy and its gradient, also of scores around 1,000"""
    for here in groups(4, 3, 2):
        for shift in (0.0, 1000.0):
            whole = (3 * random(2, 3, VOCABULARY) + shift).requires_grad_()
            targets = torch.tensor([[0, 10, 5], [3, 7, 0]])
            own = part_of(whole.detach(), 2, here).clone().requires_grad_()
            loss = mine.vocabulary_parallel_loss(own, targets, VOCABULARY, here.group)
            right = F.cross_entropy(whole.flatten(0, 1), targets.flatten())
            what = f"of scores around {shift:g}, rank {here.me} of {here.n}"
            demand(
                bool(loss.isfinite()),
                f"the loss {what} is {float(loss):g}: subtract the largest score of all ranks"
                " before exp.",
            )
            local = own.detach() - own.detach().amax(-1, keepdim=True)
            alone = local.exp().sum(-1).log().mean()
            expect(
                f"the loss {what}",
                loss,
                right.detach(),
                {
                    "It is the sum over tokens: divide by their number.": 6 * right.detach(),
                    "The target's score is missing.": whole.detach().logsumexp(-1).mean(),
                    "The sum of exponentials is this rank's alone.": alone,
                },
            )
            (2 * right).backward()
            (2 * loss).backward()
            wanted = part_of(whole.grad, 2, here)
            softmax = torch.softmax(whole.detach(), -1)
            expect(
                f"the gradient of 2 times the loss {what}",
                own.grad,
                wanted,
                {
                    "It is that of the loss: multiply by the gradient that arrives.": wanted / 2,
                    "It is the softmax: subtract 1 at the target.": part_of(softmax / 3, 2, here),
                },
            )


# --- bytes ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("bytes", ENTER)
def messages_of_a_pair(mine):
    """enter sends in backward alone, leave in forward alone: one all-reduce each"""
    for here in groups(4):
        counts = []
        for function in (mine.enter, mine.leave):
            x = random(3, 5).requires_grad_()
            with CommunicationLog() as log:
                y = function(x * 1, here.group)
                forward = len(log.messages)
                y.sum().backward()
                counts.append((forward, len(log.messages) - forward))
            most = 2 * 3 / 4 * x.nbytes
            demand(
                sent_at_best(log) <= most,
                f"{function.__name__} and its backward send {sent_at_best(log):,.0f} bytes, and one"
                f" all-reduce of {x.nbytes} bytes is {most:,.0f}.",
            )
        demand(
            counts == [(0, 1), (1, 0)],
            f"enter sends {counts[0][0]} messages forward and {counts[0][1]} backward, leave"
            f" {counts[1][0]} and {counts[1][1]}: each is the other's backward, 0 and 1, 1 and 0.",
        )


@ASSIGNMENT.trial("bytes", LOSS)
def numbers_of_a_token(mine):
    """scores are not gathered: three numbers of each token travel"""
    for here in groups(4):
        scores = part_of(random(2, 50, 400), 2, here).clone().requires_grad_()
        targets = torch.arange(100).view(2, 50)
        with CommunicationLog() as log:
            mine.vocabulary_parallel_loss(scores, targets, 400, here.group).backward()
        sent, each = sent_at_best(log), 8 * 2 * 3 / 4
        demand(
            sent <= 3 * 100 * each,
            f"the loss of 100 tokens sends {sent:,.0f} bytes, {sent / 100 / each:.1f} summed"
            " numbers of each token: its largest score, the sum of its exponentials and its"
            " target's score are three. Backward needs none.",
        )


# --- faults ---------------------------------------------------------------------------------------


@ASSIGNMENT.trial("faults", ENTER)
def strides_and_no_graph(mine):
    """gradients that are not contiguous, inputs that need none, no_grad"""
    for here in groups(3):
        x = random(3, 5).requires_grad_()
        (mine.enter(x, here.group).t() * random(5, 3, seed=here.me)).sum().backward()
        right = sum(random(5, 3, seed=rank) for rank in range(here.n)).t()
        expect("the gradient of x before enter(x).t()", x.grad, right)
        data = random(3, 5)
        demand(
            not mine.enter(data, here.group).requires_grad,
            "enter(x) requires a gradient where x does not: data has none.",
        )
        with torch.no_grad():
            found = mine.leave(random(5, 3, seed=here.me).t(), here.group)
        expect("leave(x.t()) under no_grad", found, right)


@ASSIGNMENT.trial("faults", TOKENS)
def unknown_tokens(mine):
    """a token outside of the vocabulary is refused, though no rank has its vector"""
    for here in groups(3):
        layer = mine.TokenEmbedding(filled(nn.Embedding(VOCABULARY, 5)), here.group)
        for token in (VOCABULARY, -1):
            ids = torch.tensor([[0, token]])
            what = f"token {token}, of {VOCABULARY} tokens,"
            refuses(what, layer, ids, errors=(IndexError, ValueError))


@ASSIGNMENT.trial("faults", LOSS)
def wrong_scores(mine):
    """scores of another part, targets that are no tokens; bf16 scores give a loss in fp32"""
    for here in groups(3):
        own = part_of(random(2, 3, VOCABULARY), 2, here)
        call = partial(mine.vocabulary_parallel_loss, vocabulary=VOCABULARY, group=here.group)
        targets = torch.zeros(2, 3, dtype=torch.long)
        wide = torch.cat([own, own], -1)
        what = f"scores of {wide.shape[-1]} of {VOCABULARY} tokens on rank {here.me} of 3"
        refuses(what, call, wide, targets, errors=(ValueError,))
        for target in (VOCABULARY, -1):
            errors = (IndexError, ValueError)
            refuses(f"target {target}", call, own, targets + target, errors=errors)
        low = own.bfloat16().requires_grad_()
        loss = call(low, targets)
        demand(
            loss.dtype is torch.float32,
            f"the loss of bf16 scores has {loss.dtype}: sums of exponentials need fp32.",
        )
        loss.backward()
        demand(
            low.grad is not None and low.grad.dtype is torch.bfloat16,
            "the gradient of bf16 scores should be bf16.",
        )


@ASSIGNMENT.trial("faults", COLUMNS)
def fewer_outputs_than_ranks(mine):
    """a layer with fewer outputs than ranks is refused or has an empty part, and never hangs"""
    for here in groups(4):
        layer = None
        try:
            layer = mine.ColumnLinear(filled(nn.Linear(5, 3)), here.group)
        except ValueError:
            continue
        got = layer(random(2, 5))
        if got.shape[-1] != part_of(torch.empty(3), 0, here).numel():
            raise Wrong(f"of 3 outputs on 4 ranks, rank {here.me} has {got.shape[-1]}.")


# --- speed ----------------------------------------------------------------------------------------


@ASSIGNMENT.trial("speed", LOSS)
def seconds_of_a_loss(mine):
    """the loss of 512 tokens and its gradient, a vocabulary of 8,000 on 4 ranks"""
    scores = torch.randn(2, 256, 2000).requires_grad_()
    targets = torch.arange(512).view(2, 256)

    def step(loss):
        loss(scores, targets, 8000).backward()

    return race_of_two(
        partial(step, mine.vocabulary_parallel_loss), partial(step, ASSIGNMENT.reference[LOSS])
    )


# --- a block of the plain GPT, cut by heads and by the MLP's inner numbers ------------------------

BLOCK = "split_block"
SIZES = dict(layers=1, hidden=16, heads=8, vocabulary=11, max_sequence=6)
KINDS = {
    "GPT-2": GPTConfig(**SIZES, key_value_heads=8, feed_forward=12),
    "Llama": GPTConfig(
        **SIZES, key_value_heads=4, feed_forward=12, learned_positions=0, biases=0, gated_mlp=1
    ),
}
CUTS = {"qkv": 0, "up": 0, "gate": 0, "output": 1, "down": 1}  # dim of the weight


def _block(kind: str, seed: int = 1) -> Block:
    return filled(Block(KINDS[kind]), seed)


def _dim(name: str) -> int | None:
    """Along which dim a parameter is cut; None if it is whole."""
    module, _, own = name.rpartition(".")
    dim = CUTS.get(module.rpartition(".")[2])
    return None if own == "bias" and dim == 1 else dim


def _joined(part: Tensor, dim: int | None, here: Here) -> Tensor:
    """The whole one, of the parts of all ranks."""
    if dim is None:
        return part
    parts: list = [None] * here.n
    dist.all_gather_object(parts, part.detach(), group=here.group)
    return torch.cat(parts, dim)


@ASSIGNMENT.trial("parity", BLOCK)
def blocks(mine):
    """outputs and all gradients of GPT-2's block and of Llama's, on 2 and 4 ranks"""
    for here in groups(4, 2):
        for kind in KINDS:
            plain, block = _block(kind), _block(kind)
            cut = mine.split_block(block, here.group)
            x, y = random(2, 6, 16).requires_grad_(), random(2, 6, 16).requires_grad_()
            right, got = plain(x), cut(y)
            what = f"{kind}'s block on rank {here.me} of {here.n}"
            expect(f"the output of {what}", got, right.detach())
            right.square().sum().backward()
            got.square().sum().backward()
            expect(
                f"the gradient of the input of {what}",
                y.grad,
                x.grad,
                close=1e-8,
            )
            found, wanted = dict(cut.named_parameters()), dict(plain.named_parameters())
            demand(
                set(found) == set(wanted),
                f"the parameters of {what} should have the names of the plain block's, and"
                f" {', '.join(sorted(set(found) ^ set(wanted)))} differ.",
            )
            for name, parameter in wanted.items():
                expect(
                    f"{what}: the gradient of {name}, of all ranks' parts one after the other",
                    _joined(found[name].grad, _dim(name), here),
                    parameter.grad,
                    close=1e-8,
                )


@ASSIGNMENT.trial("bytes", BLOCK)
def bytes_of_a_block(mine):
    """two all-reduces forward and two backward; each rank has its part of the weights"""
    for here in groups(4):
        for kind in KINDS:
            block, plain = mine.split_block(_block(kind), here.group), _block(kind)
            weights = sum(p.numel() for n, p in plain.named_parameters() if _dim(n) is not None)
            more = sum(p.numel() for n, p in plain.named_parameters() if _dim(n) is None)
            found = sum(p.numel() for p in block.parameters())
            what = f"{kind}'s block on rank {here.me} of 4"
            demand(
                found <= weights // 4 + more,
                f"{what} has {found:,} parameters: a quarter of {weights:,}, and {more:,} that stay"
                f" whole, are {weights // 4 + more:,}.",
            )
            x = random(2, 6, 16).requires_grad_()
            with CommunicationLog() as log:
                y = block(x)
                forward = sent_at_best(log)
                y.sum().backward()
            each = 2 * x.nbytes * 3 / 4
            demand(
                forward <= 2 * each,
                f"the forward of {what} sends {forward:,.0f} bytes: two all-reduces of the output"
                f" are {2 * each:,.0f}, one after attention, one after the MLP.",
            )
            backward = sent_at_best(log) - forward
            demand(
                backward <= 2 * each,
                f"the backward of {what} sends {backward:,.0f} bytes: two all-reduces are"
                f" {2 * each:,.0f}, one before attention, one before the MLP. Layers that take the"
                " same input enter once.",
            )


@ASSIGNMENT.trial("faults", BLOCK)
def heads_that_cannot_be_cut(mine):
    """heads that the ranks do not divide are refused: a head is not cut"""
    for here in groups(3):
        refuses(
            f"split_block of 8 heads on {here.n} ranks",
            mine.split_block,
            _block("GPT-2"),
            here.group,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )


@ASSIGNMENT.trial("faults", BLOCK)
def frozen_parts(mine):
    """what is frozen stays frozen"""
    for here in groups(2):
        block = _block("GPT-2")
        block.attention.requires_grad_(False)
        cut = mine.split_block(block, here.group)
        trained = [name for name, p in cut.attention.named_parameters() if p.requires_grad]
        demand(
            not trained,
            f"{', '.join(trained)} of a frozen attention is trained after split_block.",
        )


@ASSIGNMENT.trial("speed", BLOCK)
def seconds_of_a_block(mine):
    """forward and backward of a block of 256, 2 x 128 tokens, on 4 ranks"""
    config = GPTConfig(layers=1, hidden=256, heads=8, vocabulary=11, max_sequence=128)
    x = torch.randn(2, 128, 256, requires_grad=True)

    def stepper(split):
        block = split(Block(config), None)
        return lambda: block(x).sum().backward()

    return race_of_two(stepper(mine.split_block), stepper(ASSIGNMENT.reference[BLOCK]))
