"""Functions of the lab on tensor parallelism: the reader's code is run beside the undivided thing,
and one small GPT is split, weighed, counted and trained with a fault.

All ranks see the same tokens. Functions that take a world start the work; `on_rank` ends the names
of those that a rank runs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from coursekit.exercises.going_on import must_be_right
from coursekit.formulas import RECIPES, evaluate
from coursekit.recordings.races import Weighed
from coursekit.show.tables import Table, in_words
from coursekit.topics.tensor_parallelism.exercises import (
    enter_columns,
    leave_rows,
    loss_of_cut_scores,
    mlp_on_ranks,
)
from coursekit.topics.tensor_parallelism.figures import shares_figure
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.tensor_parallel import (
    apply_tensor_parallel,
    gpt_plan,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.full_parameters import cuts_of
from shardlab.tensor_parallel.hardened.layers import TokenEmbedding
from shardlab.text import vocabulary_of_text, windows_of_text

SEQUENCES, TOKENS = 4, 32  # in a batch, in a sequence
SIZES = dict(layers=3, hidden=48, heads=8, max_sequence=TOKENS)
MLP_TOKENS, MLP_HIDDEN, MLP_INNER = 16, 32, 128
LOSS_TOKENS, LOSS_VOCABULARY = 128, 8192
FAULTY_STEPS, LAST_STEPS = 25, 5
PARTS_OF_PEAK = ("optimizer", "gradients", "activations", "temporaries")
COUNTER_BYTES = 4  # of PyTorch's AdamW, for each tensor that it updates


def sent_of(log: CommunicationLog) -> int:
    """Bytes that a rank sends of these messages, by rings."""
    return Weighed(0, log.totals(), 0).sent_bytes(dist.get_world_size())


def relative_difference(found: Tensor, wanted: Tensor) -> float:
    """The difference of two tensors, relative to the second."""
    return ((found - wanted).norm() / wanted.norm()).item()


# --- an MLP ---------------------------------------------------------------------------------------


class MlpOnRank(NamedTuple):
    weights_kept: int
    bytes_sent: int
    difference_from_plain: float


def run_mlp(world, mlp: Callable) -> list[MlpOnRank]:
    """The reader's forward on each rank, beside the undivided MLP."""
    must_be_right(mlp_on_ranks, mlp)
    return world.run(mlp_on_rank, mlp)


def drawn_mlp() -> list[Tensor]:
    """x, up and down in float64, the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    shapes = (MLP_TOKENS, MLP_HIDDEN), (MLP_INNER, MLP_HIDDEN), (MLP_HIDDEN, MLP_INNER)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def figure_of_shares(on_ranks: Sequence[MlpOnRank]):
    """Bytes that a rank keeps of the MLP's weights and sends in its forward, by the number of
    ranks, by formula; and what was measured on these ranks."""
    x, up, down = drawn_mlp()
    counts = (1, 2, 4, 8, 16)
    sent = [
        evaluate(
            ["ring_all_reduce_sent_bytes"],
            ranks=count,
            rank=0,
            message_elements=x.numel(),
            message_element_bytes=x.itemsize,
        )["ring_all_reduce_sent_bytes"]
        for count in counts
    ]
    kept = [(up.nbytes + down.nbytes) // count for count in counts]
    measured = on_ranks[0].weights_kept * x.itemsize, on_ranks[0].bytes_sent
    lines = {"weights that a rank keeps": kept, "what a rank sends": sent}
    return shares_figure("One MLP on more and more ranks", counts, lines, len(on_ranks), measured)


def plain_mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.gelu(x @ up.T) @ down.T


def mlp_on_rank(mlp: Callable) -> MlpOnRank:
    rank, n = dist.get_rank(), dist.get_world_size()
    x, up, down = drawn_mlp()

    def leave(term):
        term = term.clone()
        dist.all_reduce(term)
        return term

    with CommunicationLog() as log:
        y = mlp(x, up, down, leave, rank, n)
    kept = up.tensor_split(n)[rank].numel() + down.tensor_split(n, 1)[rank].numel()
    return MlpOnRank(kept, sent_of(log), relative_difference(y, plain_mlp(x, up, down)))


class MlpGradients(NamedTuple):
    output: float
    gradient_of_x: float
    gradient_of_up: float
    gradient_of_down: float
    messages: int


def gradients_of_mlp(world, enter: type, leave: type) -> Table:
    """How far output and gradients are from those of the undivided MLP: with the reader's pair,
    without the one, and with an all-reduce in both directions instead of the other."""
    must_be_right(enter_columns, enter)
    must_be_right(leave_rows, leave)
    ways = {
        "Enter and Leave": (enter, leave),
        "without Enter": (PassOn, leave),
        "Leave sums backward, too": (enter, SumBothWays),
    }
    found = {words: world.run(mlp_gradients_on_rank, *pair)[0] for words, pair in ways.items()}
    heads = [field.replace("_", " ") for field in MlpGradients._fields]
    rows = [[words, *in_words(of_rank_0)] for words, of_rank_0 in found.items()]
    return Table(["relative difference on rank 0", *heads], rows)


class PassOn(torch.autograd.Function):
    """Nothing, in both directions."""

    @staticmethod
    def forward(ctx, x, dist):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SumBothWays(torch.autograd.Function):
    """An all-reduce in both directions."""

    @staticmethod
    def forward(ctx, x, dist):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient, None


def mlp_gradients_on_rank(enter: type, leave: type) -> MlpGradients:
    rank, n = dist.get_rank(), dist.get_world_size()
    whole = [tensor.requires_grad_() for tensor in drawn_mlp()]
    x, up, down = drawn_mlp()
    own = [x, up.tensor_split(n)[rank].clone(), down.tensor_split(n, 1)[rank].clone()]
    x, up, down = (tensor.requires_grad_() for tensor in own)
    with CommunicationLog() as log:
        y = leave.apply(plain_mlp(enter.apply(x, dist), up, down), dist)
        y.pow(2).sum().backward()
    wanted = plain_mlp(*whole)
    wanted.pow(2).sum().backward()
    parts = whole[0].grad, whole[1].grad.tensor_split(n)[rank], whole[2].grad.tensor_split(n, 1)
    return MlpGradients(
        relative_difference(y, wanted),
        relative_difference(x.grad, parts[0]),
        relative_difference(up.grad, parts[1]),
        relative_difference(down.grad, parts[2][rank]),
        len(log.messages),
    )


# --- a loss ---------------------------------------------------------------------------------------


class LossOnRank(NamedTuple):
    bytes_sent: int
    if_scores_were_gathered: int
    difference_from_plain: float


def run_loss(world, loss: Callable) -> list[LossOnRank]:
    """The reader's loss on each rank, in fp32, beside that of all scores."""
    must_be_right(loss_of_cut_scores, loss)
    return world.run(loss_on_rank, loss)


def loss_on_rank(loss: Callable) -> LossOnRank:
    rank, n = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(LOSS_TOKENS, LOSS_VOCABULARY, generator=generator)
    targets = torch.randint(LOSS_VOCABULARY, (LOSS_TOKENS,), generator=generator)
    own = scores.tensor_split(n, 1)[rank].clone()
    with CommunicationLog() as log:
        found = loss(own, targets, rank * LOSS_VOCABULARY // n, dist)
    gathered = (n - 1) * scores.numel() * scores.element_size() // n
    return LossOnRank(
        sent_of(log), gathered, relative_difference(found, F.cross_entropy(scores, targets))
    )


# --- a GPT ----------------------------------------------------------------------------------------


class TensorLayout(NamedTuple):
    """How the GPT is split among all ranks."""

    own_tokens: bool = False  # sequence parallelism
    regather: bool = False

    def apply(self, model: GPT) -> GPT:
        plan = gpt_plan(model.config)
        plan = sequence_parallel(plan, self.regather) if self.own_tokens else plan
        return apply_tensor_parallel(model, plan)

    def finish_backward(self, optimizer: torch.optim.Optimizer):
        if self.own_tokens:
            sum_gradients(optimizer)


TENSOR = "tensor parallel"
LAYOUTS = {
    TENSOR: TensorLayout(),
    "and sequence parallel": TensorLayout(own_tokens=True),
    "gathered again in backward": TensorLayout(own_tokens=True, regather=True),
}


def build_model(dtype: torch.dtype = torch.float32, dropout: float = 0.0) -> GPT:
    """One GPT of three blocks on every rank, for the characters of the book's text."""
    torch.manual_seed(0)
    config = GPTConfig(**SIZES, vocabulary=vocabulary_of_text(), dropout=dropout)
    model = GPT(config).to(dtype)
    for parameter in model.parameters():
        if parameter.ndim == 1:  # biases begin at zero, which would hide what they do
            nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.02)
    return model


def text_batches():
    """Endless (inputs, targets), both [4, 32], the same on every rank."""
    return windows_of_text(SEQUENCES, TOKENS)


def split_loss(model: GPT, inputs: Tensor, targets: Tensor) -> Tensor:
    return vocabulary_parallel_loss(model(inputs), targets, model.config.vocabulary)


def table_of_plan() -> Table:
    """Which module of the GPT becomes what; modules without anything to cut are left out."""
    words = {
        "Tokens": "cut along the vocabulary; then leave",
        "Around": "enter, once for all that is inside",
        "Columns": "cut by columns",
        "Rows": "cut by rows; then leave, then the bias",
        "Drops": "the mask is drawn whole, and cut",
        "Whole": "whole, on every rank",
    }
    rows = []
    for name, entry in gpt_plan(build_model().config).items():
        entries = entry if isinstance(entry, tuple) else (entry,)
        if not name.endswith("position_ids"):
            rows.append([name, "; ".join(words[type(each).__name__] for each in entries)])
    return Table(["module", "what becomes of it"], rows)


def parts_of(model: GPT, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's parts of the plain model's tensors, by the names of parameters."""
    cuts = {name: cut for name, cut, _ in cuts_of(model)}
    rank, n = dist.get_rank(), dist.get_world_size()
    return {
        name: cuts[name].part(tensor, rank, n) if name in cuts else tensor
        for name, tensor in tensors.items()
    }


def gradient_differences(model: GPT, plain: GPT) -> dict[str, float]:
    """The difference of each parameter's gradient, relative to this rank's part of the plain
    model's gradient."""
    wanted = parts_of(model, {name: p.grad for name, p in plain.named_parameters()})
    found = dict(model.named_parameters())
    return {name: relative_difference(found[name].grad, wanted[name]) for name in wanted}


class BesidePlain(NamedTuple):
    """A step on this rank, in float64, beside the plain model's."""

    loss_differs_by: float
    gradients: int
    worst_gradient_differs_by: float
    all_reduces: int


def beside_plain(world, layout: TensorLayout) -> list[BesidePlain]:
    return world.run(split_step_on_rank, layout)


def split_step_on_rank(layout: TensorLayout) -> BesidePlain:
    inputs, targets = next(text_batches())
    plain, model = build_model(torch.float64), layout.apply(build_model(torch.float64))
    wanted = next_token_loss(plain(inputs), targets)
    wanted.backward()
    with CommunicationLog() as log:
        loss = split_loss(model, inputs, targets)
        loss.backward()
        layout.finish_backward(torch.optim.SGD(model.parameters()))
    differences = gradient_differences(model, plain)
    all_reduces = log.totals()["all_reduce"].messages
    return BesidePlain(
        relative_difference(loss, wanted), len(differences), max(differences.values()), all_reduces
    )


# --- what a rank keeps and sends ------------------------------------------------------------------


class KeptAndSent(NamedTuple):
    """Bytes of a rank: model states after a step of AdamW in fp32, what forward keeps for backward,
    what a step sends."""

    states: int
    activations: int
    sent: int


class WeighedLayouts(NamedTuple):
    """Layout -> what each rank keeps and sends."""

    layouts: dict[str, list[KeptAndSent]]

    def by_prediction(self) -> dict[str, float]:
        """Activations of rank 0 in percent of those of a rank that has the model to itself, by the
        names of the predictions."""
        alone = by_formula(TensorLayout(), 1)[0].activations
        return {
            f"{name}, percent kept": round(100 * on_ranks[0].activations / alone, 1)
            for name, on_ranks in self.layouts.items()
        }

    def table(self) -> Table:
        """A table of rank 0, beside a rank that has the model to itself."""
        rows = [["one rank, by formula", *by_formula(TensorLayout(), 1)[0]]]
        rows += [[words, *on_ranks[0]] for words, on_ranks in self.layouts.items()]
        heads = ["model states", "kept for backward", "sent in a step"]
        return Table(["bytes of rank 0", *heads], rows)


def weigh_layouts(world) -> WeighedLayouts:
    """All of LAYOUTS. Raises AssertionError if a rank differs from the formulas by one byte."""
    weighed = {name: world.run(weigh_on_rank, layout) for name, layout in LAYOUTS.items()}
    for name, layout in LAYOUTS.items():
        assert weighed[name] == by_formula(layout, world.world_size), name
    return WeighedLayouts(weighed)


def weigh_on_rank(layout: TensorLayout) -> KeptAndSent:
    inputs, targets = next(text_batches())
    model = layout.apply(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with Ledger(model, optimizer) as ledger, CommunicationLog() as log:
        loss = split_loss(model, inputs, targets)
        activations = ledger.bytes.activations
        loss.backward()
        layout.finish_backward(optimizer)
        optimizer.step()
    kept = ledger.bytes
    counters = COUNTER_BYTES * len(list(model.parameters()))
    states = kept.parameters + kept.gradients + kept.optimizer - counters
    return KeptAndSent(states, activations, sent_of(log))


def given_to_formulas(layout: TensorLayout, ranks: int, rank: int = 0) -> dict:
    """The quantities that the formulas and the explorer are given."""
    config = build_model().config
    return dict(
        **RECIPES["fp32 Adam"].quantities,
        **config.quantities(),
        dropout=config.dropout,
        fused_attention=int(config.fused_attention),
        sequence_parallel=int(layout.own_tokens),
        regather=int(layout.regather),
        microbatch=SEQUENCES,
        sequence=TOKENS,
        accumulation_steps=1,
        tensor_parallel=ranks,
        tensor_rank=rank,
    )


def by_formula(layout: TensorLayout, ranks: int) -> list[KeptAndSent]:
    """The bytes of each rank by formula, without running anything."""
    names = ["tensor_states_bytes", "tensor_activation_bytes", "tensor_sent_bytes"]
    found = [
        evaluate(names, allow_unused=True, **given_to_formulas(layout, ranks, rank))
        for rank in range(ranks)
    ]
    return [KeptAndSent(*(each[name] for name in names)) for each in found]


def given_to_explorer(world) -> dict:
    """The GPT, its batch and its ranks, and what the ledger finds at rank 0's peak."""
    layout = LAYOUTS[TENSOR]
    given = given_to_formulas(layout, world.world_size)
    for name in RECIPES["fp32 Adam"].quantities:
        given.pop(name)
    return dict(measured=peak_of_rank_0(world, layout), recipe="fp32 Adam", **given)


def peak_of_rank_0(world, layout: TensorLayout) -> dict[str, int]:
    """The bytes that the explorer draws as measured: the parts of rank 0's peak in a second
    step."""
    peak = world.run(peak_on_rank, layout)[0]
    return {f"{part}_at_tensor_peak_bytes": getattr(peak, part) for part in PARTS_OF_PEAK} | {
        "tensor_parameter_bytes": peak.parameters
    }


def peak_on_rank(layout: TensorLayout):
    model = layout.apply(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with Ledger(model, optimizer) as ledger:
        for _ in range(2):
            begin = len(ledger.timeline)
            split_step(layout, model, optimizer)
    points = [point.bytes for point in ledger.timeline[begin:]]
    return max(points, key=lambda counted: counted.total)


def split_step(layout: TensorLayout, model: GPT, optimizer: torch.optim.Optimizer):
    split_loss(model, *next(text_batches())).backward()
    layout.finish_backward(optimizer)
    optimizer.step()
    optimizer.zero_grad()


# --- faults that raise nothing --------------------------------------------------------------------


class Fault(NamedTuple):
    """A change of a split model after its first forward, in which shardlab compares ranks, and
    whether the sums of the gradients of own tokens are used."""

    layout: TensorLayout = TensorLayout()
    spoil: Callable[[GPT], object] = lambda model: None
    sums: bool = True


def end_one_early(model: GPT):
    """Each rank forgets the last token of its part."""
    for module in model.modules():
        if isinstance(module, TokenEmbedding):
            module.end -= 1


def draw_apart(model: GPT):
    """Each rank draws dropout masks of its own."""
    torch.manual_seed(100 + dist.get_rank())


NO_FAULT = "no fault"
FAULTS = {
    NO_FAULT: Fault(),
    "norms: own gradients": Fault(TensorLayout(own_tokens=True), sums=False),
    "mask one too short": Fault(spoil=end_one_early),
    "dropout of its own": Fault(spoil=draw_apart),
}


class Spoiled(NamedTuple):
    first_loss: float
    last_loss: float  # the mean of the last five steps
    copies_apart: float  # the largest difference between ranks of what every rank has whole
    worst_gradient: float  # in the first step, relative to the plain model's


def train_with_faults(world) -> dict[str, Spoiled]:
    """Twenty-five steps of AdamW on the book's text, with dropout, in float64."""
    return {words: world.run(train_on_rank, fault)[0] for words, fault in FAULTS.items()}


def train_on_rank(fault: Fault) -> Spoiled:
    plain = build_model(torch.float64, dropout=0.1)
    model = fault.layout.apply(build_model(torch.float64, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data, losses = text_batches(), []
    first = next(data)
    torch.manual_seed(1)
    next_token_loss(plain(first[0]), first[1]).backward()
    split_loss(model, *first)
    torch.manual_seed(1)
    fault.spoil(model)
    for step in range(FAULTY_STEPS):
        loss = split_loss(model, *(next(data) if step else first))
        loss.backward()
        own = [p.grad.clone() for p in model.parameters()]
        fault.layout.finish_backward(optimizer)
        if not fault.sums:  # a step without a sum is refused, so each rank puts its own back
            for parameter, gradient in zip(model.parameters(), own):
                parameter.grad.copy_(gradient)
        if step == 0:
            worst = torch.tensor(max(gradient_differences(model, plain).values()))
            dist.all_reduce(worst, dist.ReduceOp.MAX)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    last = sum(losses[-LAST_STEPS:]) / LAST_STEPS
    return Spoiled(losses[0], last, copies_apart(model), worst.item())


@torch.no_grad()
def copies_apart(model: GPT) -> float:
    cut = {name for name, *_ in cuts_of(model)}
    whole = [p.flatten() for name, p in model.named_parameters() if name not in cut]
    largest, least = (sign * torch.cat(whole) for sign in (1, -1))
    for bound in (largest, least):
        dist.all_reduce(bound, dist.ReduceOp.MAX)
    return (largest + least).max().item()


def change_percent(found: Mapping[str, Spoiled]) -> dict[str, float]:
    """The change of the loss at the end, by each fault."""
    without = found[NO_FAULT].last_loss
    return {words: 100 * (own.last_loss / without - 1) for words, own in found.items()}


def worst_change_percent(found: Mapping[str, Spoiled]) -> float:
    """Up or down."""
    return round(max(map(abs, change_percent(found).values())), 2)


def table_of_faults(found: Mapping[str, Spoiled]) -> Table:
    change = change_percent(found)
    rows = [
        [
            words,
            f"{own.first_loss:.4f}",
            f"{own.last_loss:.4f}",
            f"{change[words]:+.2f} %",
            f"{own.copies_apart:.0e}",
            f"{own.worst_gradient:.0e}",
        ]
        for words, own in found.items()
    ]
    heads = ["loss, step 1", "at the end", "change", "copies apart", "worst gradient"]
    return Table(["", *heads], rows)


def warm_up() -> float:
    """A step of no other use: it lets PyTorch load what it needs."""
    return split_step_on_rank(LAYOUTS["gathered again in backward"]).loss_differs_by
