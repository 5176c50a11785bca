"""Chapter 3: where does the memory go?"""

import weakref
from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.edits import Topic
from ranklab.measure.ledger import Ledger
from shardlab.gpt import GPT, GPTConfig, next_token_loss

topic = Topic(__name__)

# --- what autograd keeps --------------------------------------------------------------------------


class _FirstHalf(nn.Module):
    """A linear layer that reads half of its input: what it keeps is a view of the whole."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x):
        return self.linear(x[:, :2])


class _BothHalves(_FirstHalf):
    """It reads both halves: two views are kept of one storage."""

    def forward(self, x):
        return self.linear(x[:, :2]) + self.linear(x[:, 2:])


def _places(tensors):
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }


class TensorsNoted(NamedTuple):
    """The notes of a reader's hook."""

    tensors: int
    elements: int
    tensors_that_hold_their_graph: int
    results_that_are_never_freed: int
    x_itself_is_among_them: bool
    backward_gets_tensors: bool


def _noted(solution, module, x):
    results = []
    for layer in module:
        layer.register_forward_hook(lambda *given: results.append(weakref.ref(given[2])))
    kept = solution(module, x)
    if kept is None or kept is ...:
        return kept
    if isinstance(kept, torch.Tensor) or not hasattr(kept, "__iter__"):
        kept = [None]
    kept = list(kept)
    if not all(isinstance(tensor, torch.Tensor) for tensor in kept):
        raise TypeError(
            "it returned something other than a list of tensors: return the list of what you noted."
        )
    count, holding = len(kept), sum(tensor.grad_fn is not None for tensor in kept)
    elements = sum(tensor.numel() for tensor in kept)
    itself = x.untyped_storage().data_ptr() in _places(kept)
    del kept
    stay = sum(result() is not None for result in results)
    return TensorsNoted(
        count, elements, holding, stay, itself, _backward_gets_tensors(solution, module, x)
    )


def _backward_gets_tensors(solution, module, x):
    """Whether unpack gives backward tensors; where backward cannot run at all, nobody asks."""
    outputs = []
    module.register_forward_hook(lambda *given: outputs.append(given[2]))
    solution(module, x)
    try:
        outputs[-1].sum().backward()
    except TypeError:
        return False
    except (RuntimeError, IndexError):  # nothing recorded, gone back before, or never run
        pass
    return True


what_autograd_keeps = topic.exercise(
    "what_autograd_keeps",
    cases=(
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)), x=torch.zeros(3, 5)
        ),
        dict(module=nn.Sequential(nn.Linear(4, 6), nn.Softmax(-1)), x=torch.zeros(3, 4)),
    ),
    words=("linear 5 to 7, ReLU, linear 7 to 2", "linear 4 to 6, softmax"),
    answer=_noted,
    hint="saved_tensors_hooks(pack, unpack) is entered by with. autograd calls pack with every"
    " tensor that it wants to keep, while module(x) runs.",
    right="every tensor that autograd hands over in forward, each without its graph.",
)


kept_by = what_autograd_keeps.reference


saved_bytes_of_a_module = topic.exercise(
    "saved_bytes_of_a_module",
    cases=(
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2)), x=torch.zeros(3, 5)
        ),
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)), x=torch.zeros(3, 5)
        ),
        dict(module=_FirstHalf(), x=torch.zeros(3, 5)),
        dict(module=_BothHalves(), x=torch.zeros(3, 4)),
        dict(
            module=nn.Sequential(nn.Linear(5, 7), nn.GELU()).double(), x=torch.zeros(3, 5).double()
        ),
    ),
    words=(
        "linear 5 to 7, GELU, linear 7 to 2",
        "linear 5 to 7, ReLU, linear 7 to 2",
        "a linear layer on x[:, :2], x is 3 by 5",
        "a linear layer on x[:, :2] and on x[:, 2:], x is 3 by 4",
        "linear 5 to 7, GELU, in float64",
    ),
    hint="A dictionary, address of a storage -> its bytes, counts each storage once:"
    " tensor.untyped_storage() has .data_ptr() and .nbytes(). Which addresses are those of"
    " parameters?",
    unit="bytes",
    right="each storage once, as large as it is, and the parameters not at all.",
)


# --- one layer, and the loss ----------------------------------------------------------------------


layer_bytes_of_gpt2 = topic.exercise(
    "layer_bytes_of_gpt2",
    cases=(
        dict(b=1, s=1, h=1, a=1),
        dict(b=2, s=256, h=256, a=4),
        dict(b=3, s=7, h=24, a=6),
        dict(b=1, s=2048, h=4096, a=32),
    ),
    hint="Count vectors of h for a token: what enters each norm, each linear layer and attention,"
    " and the inner ones, of 4 h, before and after GELU. None of them counts twice.",
    unit="bytes",
    right=(
        "for each token sixteen vectors of h, one number for each head, and two numbers for each of"
        " the two norms; 4 bytes for each number."
    ),
)


loss_bytes_at_the_peak = topic.exercise(
    "loss_bytes_at_the_peak",
    cases=(
        dict(b=1, s=1, vocabulary=1),
        dict(b=2, s=256, vocabulary=50_257),
        dict(b=3, s=5, vocabulary=70),
    ),
    hint="One tensor is kept by forward. Backward makes two more of the same size.",
    unit="bytes",
    right=(
        "three tensors of b x s x vocabulary numbers: the kept log-softmax, its gradient, and the"
        " gradient of the logits."
    ),
)


# --- bug hunt: memory that grows ------------------------------------------------------------------


class Left(NamedTuple):
    """The bytes that a training loop left behind, and the most it held, as the ledger counted."""

    losses: list
    bytes_left: int  # beyond parameters and optimizer states
    peak_kib: int  # whole KiB: the 4 bytes of a loss that has a name do no harm
    in_training_mode: bool


CONFIG = GPTConfig(layers=2, hidden=16, heads=2, vocabulary=31, max_sequence=8)
TRAIN, HELD_OUT = 2, 16  # windows: without gradients there is room for more, people think


def pairs(steps):
    """(training batch, held-out batch) for each step, each of tokens and targets."""
    for step in range(steps):
        yield tuple(
            (torch.full((n, 8), token), torch.full((n, 8), token + 1))
            for n, token in ((TRAIN, step), (HELD_OUT, step + 9))
        )


def watch_loop(train, steps) -> Left:
    """Run a loop train(model, optimizer, pairs) that returns its held-out losses, with a ledger
    watching."""
    torch.manual_seed(0)
    model, modes = GPT(CONFIG), []
    model.register_forward_pre_hook(lambda *_: modes.append(model.training))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with Ledger(model, optimizer) as ledger:
        losses = train(model, optimizer, pairs(steps))
        if not isinstance(losses, list):
            raise TypeError(
                f"it returned {losses!r}; it is to return a list with one loss for each step."
            )
        left = ledger.bytes.total - ledger.bytes.parameters - ledger.bytes.optimizer
    graphs = [one.grad_fn for one in losses if isinstance(one, torch.Tensor) and one.grad_fn]
    if graphs and not modes[1]:
        return (
            "eval() changes what dropout and batch norm do, and nothing else: autograd records as"
            " before, and each loss holds its graph. And switch the model back, with train()."
        )
    made_by = type(graphs[0]).__name__.partition("Backward")[0] if graphs else ""
    if graphs and made_by != "NllLoss":
        return (
            f"what you keep is made from the loss by {made_by}, and holds its graph as the loss"
            " does: keep a number."
        )
    values = [one.item() if isinstance(one, torch.Tensor) else float(one) for one in losses]
    values = [round(value, 4) for value in values]
    return Left(values, left, ledger.peak.bytes.total // 1024, model.training)


def _losses_of_a_loop(steps):
    """The losses of the training text, and those of the held-out text before each update."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    trained, before = [], []
    for batch, held_out in pairs(steps):
        with torch.no_grad():
            before.append(next_token_loss(model(held_out[0]), held_out[1]).item())
        loss = next_token_loss(model(batch[0]), batch[1])
        trained.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return trained, before


memory_that_grows = topic.exercise(
    "memory_that_grows",
    cases=(dict(steps=1), dict(steps=3)),
    words=("1 step", "3 steps"),
    answer=watch_loop,
    hint="What does a loss hold besides its number, and for which backward?",
    right="no graph where no backward comes, and a number kept instead of a tensor.",
)


# --- a step weighed alone -------------------------------------------------------------------------


def _to_ten_megabytes(found):
    """On a GPU its kernels decide what they keep, some kilobytes more or less."""
    return round(found() / 10**7)


peak_with_momentum = topic.exercise(
    "peak_with_momentum",
    472_186_888,
    name="the peak",
    cases=({},),
    answer=_to_ten_megabytes,
    of_a_value=True,
    hint="Make the model, then the optimizer of its parameters; weigh_step takes both. Which"
    " tensors does the first step make?",
    right="parameters, one momentum for each, activations and the loss: 64 million bytes fewer than"
    " with Adam.",
)
