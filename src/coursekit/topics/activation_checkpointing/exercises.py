"""Chapter 10: activation checkpointing."""

from functools import cache
from typing import NamedTuple

import torch
from torch import nn

from coursekit.exercises.answers import nine_digits
from coursekit.exercises.checker import Failure, is_blank
from coursekit.exercises.edits import Topic
from ranklab.measure.ledger import Ledger
from shardlab.gpt import Dropout

topic = Topic(__name__)


# --- how many layers in a checkpoint --------------------------------------------------------------


def _needs(layers, vectors, n):
    return -(-layers // n) - 1 + n * vectors


def layers_in_a_checkpoint(layers, vectors):
    return min(range(1, layers + 1), key=lambda n: (_needs(layers, vectors, n), n))


best_every = topic.exercise(
    "best_every",
    layers_in_a_checkpoint,
    cases=(
        dict(layers=36, vectors=1),
        dict(layers=24, vectors=16),
        dict(layers=48, vectors=16),
        dict(layers=400, vectors=16),
    ),
    right="inputs of all checkpoints and the layers of one: near the root of L over the vectors.",
)


# --- what selective keeps -------------------------------------------------------------------------

_MLP = (("layer_norm", 1), ("addmm", 4), ("gelu", 4), ("addmm", 1), ("add", 1))
_ATTENTION = (("layer_norm", 1), ("addmm", 3), ("attention", 1), ("addmm", 1), ("add", 1))


def kept_elements(operations, keep, of_input):
    return of_input + sum(elements for name, elements in operations if name in keep)


selective_kept = topic.exercise(
    "selective_kept",
    kept_elements,
    cases=(
        dict(operations=_ATTENTION + _MLP, keep=("addmm",), of_input=1),
        dict(operations=_ATTENTION + _MLP, keep=("addmm", "attention"), of_input=1),
        dict(operations=_MLP, keep=("bmm",), of_input=2),
    ),
    words=(
        "a layer, keep its products",
        "a layer, keep products and attention",
        "an MLP, and a kept operator that it does not have",
    ),
    right="the input, and each output of a kept operator: 10 vectors of a layer, 11 with"
    " attention.",
)


# --- nested checkpoints ---------------------------------------------------------------------------


def runs(depth):
    return depth + 1


nested_runs = topic.exercise(
    "nested_runs",
    runs,
    cases=(dict(depth=0), dict(depth=1), dict(depth=2), dict(depth=4)),
    right="once forward, and once for each level.",
)


# --- a function with side effects -----------------------------------------------------------------


class _State(NamedTuple):
    mean: float
    count: int
    outputs: list


def _running_mean(solution, values, recomputed):
    """The state after a forward of each value; some of them run a second time in backward."""
    state = {"mean": 0.0, "count": 0}
    outputs = []
    for value in values:
        outputs.append(solution(state, value, False))
        if recomputed:
            outputs.append(solution(state, value, True))
    if all(output is None or output is ... for output in outputs):
        return outputs[0]
    if any(not isinstance(output, (int, float)) for output in outputs):
        return "forward hands back 2 x every time, in the second run as well."
    return _State(round(state["mean"], 9), state["count"], [round(one, 9) for one in outputs])


def forward(state, x, again):
    if not again:
        state["count"] += 1
        state["mean"] += (x - state["mean"]) / state["count"]
    return 2 * x


counts_once = topic.exercise(
    "counts_once",
    forward,
    cases=(
        dict(values=[1.0, 4.0, 2.0], recomputed=False),
        dict(values=[1.0, 4.0, 2.0], recomputed=True),
    ),
    words=("three batches", "three batches, each recomputed; forward returns 2 x"),
    answer=_running_mean,
    right="what is beside the result happens once; the result is the same both times.",
)


# --- what offload needs of the link ---------------------------------------------------------------

_LLAMA = dict(kept_bytes=1_259_929_600, flops=3_590_592_102_400.0)


def hides(kept_bytes, flops, flops_per_second, link):
    return kept_bytes / link <= flops / flops_per_second


link_hides = topic.exercise(
    "link_hides",
    hides,
    cases=(
        dict(**_LLAMA, flops_per_second=125e12, link=31e9),
        dict(**_LLAMA, flops_per_second=125e12, link=63e9),
        dict(**_LLAMA, flops_per_second=400e12, link=63e9),
        dict(kept_bytes=67_108_864, flops=3_590_592_102_400.0, flops_per_second=400e12, link=31e9),
    ),
    words=(
        "all activations, 125 TFLOP/s, PCIe 4",
        "all activations, 125 TFLOP/s, PCIe 5",
        "all activations, 400 TFLOP/s, PCIe 5",
        "a checkpoint's input, 400 TFLOP/s, PCIe 4",
    ),
    right="a layer's bytes pass while a layer computes, forward: a faster GPU needs a faster link.",
)


# --- bug hunt: dropout without the state of the random numbers ------------------------------------


class _Dropped(NamedTuple):
    same_gradient: bool
    same_numbers_afterwards: bool


def _dropped(solution, p, after):
    """The gradient under the checkpoint and without it, and what is drawn afterwards."""
    if not (isinstance(solution, type) and issubclass(solution, torch.autograd.Function)):
        return "the check wants the class Forgetful, a torch.autograd.Function."
    torch.manual_seed(3)
    layer = nn.Sequential(nn.Linear(4, 6), Dropout(p), nn.Linear(6, 4)).double()
    x = torch.randn(5, 4, dtype=torch.double)
    gradients, drawn = [], []
    for checkpointed in (False, True):
        torch.manual_seed(8)
        torch.rand(3)  # so does what comes before: the state is not that of the seed any more
        own = x.clone().requires_grad_()
        y = solution.apply(layer, own) if checkpointed else layer(own)
        torch.rand(after)  # the rest of the model draws as well
        layer.zero_grad()
        (y * y).sum().backward()
        gradients.append(nine_digits(own.grad) + nine_digits(layer[0].weight.grad))
        drawn.append(torch.rand(1).item())
    return _Dropped(gradients[0] == gradients[1], drawn[0] == drawn[1])


forgetful_checkpoint = topic.exercise(
    "forgetful_checkpoint",
    cases=(dict(p=0.0, after=0), dict(p=0.5, after=0), dict(p=0.5, after=7)),
    words=("no dropout", "dropout", "dropout, and more that draws after it"),
    answer=_dropped,
    hint="The second run draws random numbers anew. Which state does it need, when is"
    " that read, and who draws after it?",
    right="the same mask both times, and the same numbers for whoever draws next.",
)
FORGETFUL = forgetful_checkpoint.misconceptions[0].solution  # as the bug hunt finds it


# --- build it: a checkpoint as an autograd function -----------------------------------------------


class _Counted(nn.Module):
    """A layer that counts how often it runs."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.runs = nn.Linear(4, 40), nn.Linear(40, 4), 0

    def forward(self, x):
        self.runs += 1
        return self.down(self.up(x).tanh())  # tanh saves its output, which knows its node


class _Stepped(NamedTuple):
    forwards: int
    inputs_alone_are_kept: bool
    gradients_before_the_layers_are_right: bool | str
    gradients_of_the_layers_are_right: bool | str
    memory_comes_back: bool


def _step(way, rows, layers):
    """A step of layers that add to their input, each called by `way`: (forwards, bytes that are
    kept, gradients of all, bytes that are left), the gradients of the first module before those of
    the layers."""
    torch.manual_seed(5)
    first = nn.Linear(4, 4).double()
    chain = nn.ModuleList(_Counted() for _ in range(layers)).double()
    tokens = torch.randn(rows, 4, dtype=torch.double)
    with Ledger(nn.ModuleList([first, chain])) as ledger:
        x = first(tokens)
        for layer in chain:
            x = x + way(layer, x)
        loss = x.pow(2).sum()
        kept = ledger.bytes.activations + ledger.bytes.temporaries
        loss.backward()
        del x, loss
        left = ledger.bytes.activations + ledger.bytes.temporaries
    gradients = [p.grad for module in (first, chain) for p in module.parameters()]
    return sum(layer.runs for layer in chain), kept, gradients, left


@cache  # beside it every answer is put
@torch.enable_grad()  # an answer may turn gradients off
def _plain_and_checkpointed(rows, layers):
    """_step() without a checkpoint, and with the one that is right."""
    ways = lambda layer, x: layer(x), own_checkpoint.reference.apply
    return [_step(way, rows, layers) for way in ways]


def _step_beside_plain(call, rows, layers):
    """A step of layers that add to their input, beside the plain one: (forwards, whether at most
    the inputs are kept, whether all gradients are those of the plain step, whether nothing is
    left)."""
    plain, checkpointed = _plain_and_checkpointed(rows, layers)
    (_, _, wanted, plain_left), (_, inputs, _, _) = plain, checkpointed
    runs, kept, gradients, left = _step(call, rows, layers)
    count = 2  # weight and bias of the first module
    return _Stepped(
        runs,
        kept <= inputs,
        _as_wanted(gradients[:count], wanted[:count]),
        _as_wanted(gradients[count:], wanted[count:]),
        left <= plain_left,
    )


def _as_wanted(found, wanted):
    """Whether gradients are those that are wanted, or "there are none"."""
    if all(mine is None for mine in found):
        return "there are none"
    return all(
        mine is not None and torch.allclose(mine, right) for mine, right in zip(found, wanted)
    )


def _step_of_a_function(solution, rows, layers):
    if not (isinstance(solution, type) and issubclass(solution, torch.autograd.Function)):
        return "the check wants the class RunTwice, a torch.autograd.Function."
    return _step_or_failure(solution.apply, rows, layers)


def _step_or_failure(solution, rows, layers):
    """Two solutions that fail alike are alike."""
    try:
        return _step_beside_plain(solution, rows, layers)
    except Exception as error:
        return ... if is_blank(error) else Failure.of(error)


own_checkpoint = topic.exercise(
    "own_checkpoint",
    cases=(dict(rows=3, layers=1), dict(rows=5, layers=3)),
    words=("one layer", "three layers"),
    answer=_step_of_a_function,
    hint="In forward, keep x alone. In backward: an x without a past, a run that is"
    " recorded, and a backward through it with the gradient that you are given.",
    right="x alone is kept, and backward makes the rest again, for the gradients of x and of the"
    " parameters.",
)


# --- build it: the same by hooks ------------------------------------------------------------------


own_hooks = topic.exercise(
    "own_hooks",
    cases=(dict(rows=3, layers=1), dict(rows=5, layers=3)),
    words=("one layer", "three layers"),
    answer=_step_or_failure,
    hint="What pack returns is what autograd keeps. For which activation does the"
    " function run again, and how does each find its own?",
    right="the graph is the plain one; autograd keeps numbers, and the first that is asked for"
    " makes the function run again.",
)


# --- build it: which blocks to recompute ----------------------------------------------------------


def peak_of_blocks(recomputed, layers, kept, kept_input, work, loss):
    """Most that is there at a time, if these of equal blocks are recomputed: at the loss beside all
    that is kept; in a block's backward beside what the blocks before it keep."""
    sizes = [kept_input if number in recomputed else kept for number in range(layers)]
    points = [sum(sizes[:number]) + work for number in range(layers)]
    return max(*points, sum(sizes) + loss)


def _plan_of(solution, layers, kept, kept_input, work, loss, budget):
    blocks = solution(layers, kept, kept_input, work, loss, budget)
    if blocks is None or blocks is ...:
        return blocks
    if isinstance(blocks, (int, float)) or any(isinstance(block, bool) for block in blocks):
        return "it is to return the numbers of the blocks to recompute, a list, counted from 0."
    blocks = sorted(set(blocks))
    if not set(blocks) <= set(range(layers)):
        wrong = max(blocks, key=lambda block: abs(block))
        return (
            f"there is no block {wrong}: the {layers} blocks are counted from 0. Recompute the"
            " first ones."
        )
    of = layers, kept, kept_input, work, loss
    right = blocks_for_a_budget.reference(*of, budget)
    as_good = len(blocks) == len(right) and peak_of_blocks(blocks, *of) <= budget
    return right if as_good else blocks


_BLOCK = dict(kept=16, kept_input=1)


blocks_for_a_budget = topic.exercise(
    "blocks_for_a_budget",
    cases=(
        dict(layers=8, **_BLOCK, work=26, loss=4, budget=100),
        dict(layers=8, **_BLOCK, work=26, loss=4, budget=45),
        dict(layers=6, **_BLOCK, work=20, loss=60, budget=110),
        dict(layers=6, kept=16, kept_input=6, work=26, loss=4, budget=97),
        dict(layers=4, **_BLOCK, work=26, loss=4, budget=500),
        dict(layers=8, **_BLOCK, work=26, loss=4, budget=93),
        dict(layers=4, **_BLOCK, work=20, loss=60, budget=70),
    ),
    words=(
        "8 blocks, 100 vectors",
        "8 blocks, 45 vectors",
        "6 blocks, a large loss, 110 vectors",
        "6 blocks with products kept, 97 vectors",
        "4 blocks, more than enough",
        "8 blocks, 93 vectors, which three of them fit exactly",
        "4 blocks, a large loss, 70 vectors, which only all four fit",
    ),
    answer=_plan_of,
    hint="Backward goes from the last block to the first. At each block, what do those"
    " before it keep, and what is at work? One more point is the loss.",
    right="no more blocks than the fullest point asks for, and not the last one, which spares"
    " nothing while backward is there.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


messages_of_two_ranks = topic.exercise(
    "messages_of_two_ranks",
    [[26, 2]] * 2,
    name="the list",
    cases=({},),
    answer=lambda found: [list(map(int, of_rank)) for of_rank in found()],
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Their run() wants a function that takes the"
    " step and returns two numbers; checkpoint_every has the argument for blocks in each"
    " checkpoint.",
    right="half as many checkpoints, half as many gathers, and one all-reduce more for each pair:"
    " only the last of a checkpoint is spared.",
)
