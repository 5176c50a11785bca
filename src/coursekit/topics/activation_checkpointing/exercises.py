"""Chapter 10: activation checkpointing."""

import itertools
import operator
from typing import NamedTuple

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from coursekit.exercises.answers import nine_digits
from coursekit.exercises.checker import Exercise, Failure, Misconception, is_blank
from shardlab.gpt import Dropout
from shardlab.measure.ledger import Ledger

# --- how many layers in a checkpoint --------------------------------------------------------------


def _needs(layers, vectors, n):
    return -(-layers // n) - 1 + n * vectors


def _best_every(layers, vectors):
    return min(range(1, layers + 1), key=lambda n: (_needs(layers, vectors, n), n))


def _root_of(size):
    def layers_in_a_checkpoint(layers, vectors):
        return max(1, round(size(layers, vectors) ** 0.5))

    return layers_in_a_checkpoint


best_every = Exercise(
    name="layers_in_a_checkpoint",
    reference=_best_every,
    cases=(
        dict(layers=36, vectors=1),
        dict(layers=24, vectors=16),
        dict(layers=48, vectors=16),
        dict(layers=400, vectors=16),
    ),
    misconceptions=(
        Misconception(
            _root_of(lambda layers, vectors: layers),
            "the root of L is right for layers that keep no more than their input. These keep more"
            " vectors, and n layers of them are there at a time: 24 layers with 4 in a checkpoint"
            " need 69 vectors, with 1 in each 39.",
        ),
        Misconception(
            _root_of(lambda layers, vectors: layers * vectors),
            "layers that keep more want fewer of them in a checkpoint, not more: divide.",
        ),
        Misconception(
            lambda layers, vectors: layers,
            "one checkpoint around all keeps least, one input. But all layers are there when it is"
            " computed again: the peak is what it was without.",
        ),
        Misconception(
            lambda layers, vectors: 1,
            "right for most transformers, but not for many layers or small ones: 36 layers of"
            " one vector need 36 with n = 1 and 11 with n = 6.",
        ),
    ),
    right="inputs of all checkpoints and the layers of one: near the root of L over the vectors.",
)


# --- what selective keeps -------------------------------------------------------------------------

_MLP = (("layer_norm", 1), ("addmm", 4), ("gelu", 4), ("addmm", 1), ("add", 1))
_ATTENTION = (
    ("layer_norm", 1),
    ("addmm", 3),
    ("attention", 1),
    ("addmm", 1),
    ("add", 1),
)

selective_kept = Exercise(
    name="kept_elements",
    reference=lambda operations, keep, of_input: (
        of_input + sum(elements for name, elements in operations if name in keep)
    ),
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
    misconceptions=(
        Misconception(
            lambda operations, keep, of_input: sum(
                elements for name, elements in operations if name in keep
            ),
            "the input is kept, too: the second run begins with it.",
        ),
        Misconception(
            lambda operations, keep, of_input: (
                of_input + sum(elements for name, elements in operations if name not in keep)
            ),
            "these are the ones that are computed again. The policy names what is kept: what is"
            " expensive.",
        ),
        Misconception(
            lambda operations, keep, of_input: (
                of_input + sum(dict(operations).get(name, 0) for name in keep)
            ),
            "an operator comes more than once: each of its outputs is kept.",
        ),
    ),
    right="the input, and each output of a kept operator: 10 vectors of a layer, 11 with"
    " attention.",
)


# --- nested checkpoints ---------------------------------------------------------------------------

nested_runs = Exercise(
    name="runs",
    reference=lambda depth: depth + 1,
    cases=(dict(depth=0), dict(depth=1), dict(depth=2), dict(depth=4)),
    misconceptions=(
        Misconception(
            lambda depth: 2 if depth else 1,
            "one level runs the layer twice. With two, the outer checkpoint is computed again;"
            " in that run the inner checkpoint forgets again, and is then computed again itself.",
        ),
        Misconception(
            lambda depth: 2**depth,
            "a level runs the level inside it once more, not twice: count levels, do not double.",
        ),
        Misconception(lambda depth: depth, "forward runs it once, before anything is made again."),
    ),
    right="once forward, and once for each level.",
)


# --- a function with side effects -----------------------------------------------------------------


def _running_mean(solution, values, recomputed):
    """The state after a forward of each value; some of them run a second time in backward."""
    state = {"mean": 0.0, "count": 0}
    outputs = []
    for value in values:
        outputs.append(solution(state, value, False))
        if recomputed:
            outputs.append(solution(state, value, True))
    if any(output is None or output is ... for output in outputs):
        return None
    return [round(state["mean"], 9), state["count"], [round(output, 9) for output in outputs]]


def _layer(when=lambda again: not again, result=lambda state, x: 2 * x):
    def forward(state, x, again):
        if when(again):
            state["count"] += 1
            state["mean"] += (x - state["mean"]) / state["count"]
        return result(state, x)

    return forward


counts_once = Exercise(
    name="forward",
    reference=_layer(),
    cases=(
        dict(values=[1.0, 4.0, 2.0], recomputed=False),
        dict(values=[1.0, 4.0, 2.0], recomputed=True),
    ),
    words=("three batches", "three batches, each recomputed; forward returns 2 x"),
    answer=_running_mean,
    misconceptions=(
        Misconception(
            _layer(when=lambda again: True),
            "each batch counts twice under a checkpoint. The mean is right here by luck and the"
            " count is not; a mean that forgets, as BatchNorm's does, is wrong as well.",
        ),
        Misconception(
            _layer(when=lambda again: again),
            "without a checkpoint nothing is counted. The first run is the one that counts.",
        ),
        Misconception(
            _layer(result=lambda state, x: 2 * (x - state["mean"])),
            "the output must not depend on what a run changes: the second run would find another"
            " mean, and the gradient is of another function.",
        ),
    ),
    right="what is beside the result happens once; the result is the same both times.",
)


# --- what offload needs of the link ---------------------------------------------------------------

_LLAMA = dict(kept_bytes=1_259_929_600, flops=3_590_592_102_400.0)

link_hides = Exercise(
    name="hides",
    reference=lambda kept_bytes, flops, flops_per_second, link: bool(
        kept_bytes / link <= flops / flops_per_second
    ),
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
    misconceptions=(
        Misconception(
            lambda kept_bytes, flops, flops_per_second, link: bool(
                kept_bytes / link <= 3 * flops / flops_per_second
            ),
            "out in forward, back in backward: each phase has copies of its own, and forward, with"
            " a third of the step, is the tighter one.",
        ),
        Misconception(
            lambda kept_bytes, flops, flops_per_second, link: bool(
                kept_bytes / link >= flops / flops_per_second
            ),
            "turned round: the copy hides if it takes no longer than the layer computes.",
        ),
        Misconception(
            lambda kept_bytes, flops, flops_per_second, link: bool(
                kept_bytes / link <= 2 * flops / flops_per_second
            ),
            "that is backward's time, twice forward's. The copy out has to hide behind forward.",
        ),
    ),
    right="a layer's bytes pass while a layer computes, forward: a faster GPU needs a faster link.",
)


# --- bug hunt: dropout without the state of the random numbers ------------------------------------


def _dropped(solution, p, after):
    """The gradient under the checkpoint and without it, and what is drawn afterwards."""
    if not (isinstance(solution, type) and issubclass(solution, torch.autograd.Function)):
        return "no class"
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
    return gradients[0] == gradients[1], drawn[0] == drawn[1]


def _checkpoint(keep=True, put_back=True, back_to=lambda ctx, now: now):
    class Checkpoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, x):
            ctx.function = function
            ctx.save_for_backward(x)
            ctx.state = torch.get_rng_state()
            with torch.no_grad():
                y = function(x)
            return y

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            now = torch.get_rng_state()
            if keep:
                torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                y = ctx.function(x)
            if put_back:
                torch.set_rng_state(back_to(ctx, now))
            y.backward(dy)
            return None, x.grad

    return Checkpoint


class _seeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        torch.manual_seed(0)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        now = torch.get_rng_state()
        torch.manual_seed(0)
        with torch.enable_grad():
            y = ctx.function(x)
        torch.set_rng_state(now)
        y.backward(dy)
        return None, x.grad


FORGETFUL = _checkpoint(keep=False, put_back=False)  # as the bug hunt finds it

# what PyTorch says of an autograd function, and what it means there
_ERRORS_OF_A_FUNCTION = (
    (
        "can only save variables",
        "save_for_backward takes tensors. The function is not a tensor: ctx.function = function.",
    ),
    ("got tuple", "autograd.grad() returns a tuple, and y.backward(gradient) fills x.grad."),
    (
        "different than None at position|incorrect number",
        "A backward returns a gradient for each argument of forward, in the order of the"
        " arguments: None for the function, then x.grad.",
    ),
    (
        "has no attribute 'function'",
        "backward needs the function, which forward is given: keep it there, ctx.function ="
        " function.",
    ),
    (
        "has no attribute 'random'|has no attribute 'state'",
        "The state is read in forward, with torch.get_rng_state(), and kept in ctx.",
    ),
    (
        "not enough values to unpack|out of range",
        "Nothing was saved: forward keeps its input with ctx.save_for_backward(x).",
    ),
    (
        "'tuple' object",
        "ctx.saved_tensors is a tuple, of one tensor here: (x,) = ctx.saved_tensors.",
    ),
    (
        "implicitly created only",
        "backward needs the gradient of y, and it is given: y.backward(gradient).",
    ),
)


forgetful_checkpoint = Exercise(
    name="Forgetful",
    reference=_checkpoint(),
    cases=(dict(p=0.0, after=0), dict(p=0.5, after=0), dict(p=0.5, after=7)),
    words=("no dropout", "dropout", "dropout, and more that draws after it"),
    answer=_dropped,
    hint="The second run draws random numbers anew. Which state does it need, when is"
    " that read, and who draws after it?",
    misconceptions=(
        Misconception(
            FORGETFUL,
            "the second run draws another mask, so the gradient belongs to a forward that never"
            " ran, and later code draws other numbers, too. Keep the state in forward, set it in"
            " backward, and put back what was there.",
        ),
        Misconception(
            _checkpoint(keep=False),
            "what comes afterwards draws what it should, but the second run still has another"
            " mask: dropout has to draw from the state of forward, read before, not after the"
            " function has drawn.",
        ),
        Misconception(
            lambda *_: None, "the check wants the class Forgetful, a torch.autograd.Function."
        ),
        Misconception(
            _seeded,
            "the same seed for both runs is the same mask, and the same in every layer and every"
            " step; and what comes afterwards draws other numbers. Keep the state that was there.",
        ),
        Misconception(
            _checkpoint(back_to=lambda ctx, now: torch.get_rng_state()),
            "the gradient is right, and the next step draws the numbers of this one again: read"
            " the state before you set the one of forward, and put that back.",
        ),
        Misconception(
            _checkpoint(back_to=lambda ctx, now: ctx.state),
            "the gradient is right, and the next step draws the numbers of this one again: put"
            " back what was there before the second run, not the state of forward; and in forward"
            " put nothing back.",
        ),
    ),
    errors=_ERRORS_OF_A_FUNCTION,
    right="the same mask both times, and the same numbers for whoever draws next.",
)


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


def _step_beside_plain(call, rows, layers):
    """A step of layers that add to their input, beside the plain one: (forwards, whether at most
    the inputs are kept, whether all gradients are those of the plain step, whether nothing is
    left)."""
    torch.manual_seed(5)
    first = nn.Linear(4, 4).double()
    chain = nn.ModuleList(_Counted() for _ in range(layers)).double()
    tokens = torch.randn(rows, 4, dtype=torch.double)
    found = []
    for way in (lambda layer, x: layer(x), _plain_checkpoint().apply, call):
        first.zero_grad()
        chain.zero_grad()
        for layer in chain:
            layer.runs = 0
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
        found.append((sum(layer.runs for layer in chain), kept, gradients, left))
    (_, _, wanted, plain_left), (_, inputs, _, _), (runs, kept, gradients, left) = found
    count = len(list(first.parameters()))
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
        mine is not None and torch.allclose(mine, theirs) for mine, theirs in zip(found, wanted)
    )


def _step_of_a_function(solution, rows, layers):
    if not (isinstance(solution, type) and issubclass(solution, torch.autograd.Function)):
        return "no class"
    return _step_or_failure(solution.apply, rows, layers)


def _step_or_failure(solution, rows, layers):
    """Two solutions that fail alike are alike."""
    try:
        return _step_beside_plain(solution, rows, layers)
    except Exception as error:
        return ... if is_blank(error) else Failure.of(error)


def _plain_checkpoint(
    cut=True,
    records=True,
    keeps_graph=False,
    whole=True,
    back=lambda x, dy: x.grad if x.is_leaf else None,
    gradient_of_y=lambda dy: dy,
    goes_back=True,
    extra=0,
    copies=0,
    first=True,
):
    """A checkpoint without random numbers, and what readers make of one."""

    class Checkpoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, x):
            ctx.function = function
            if keeps_graph:
                ctx.x = x.detach().requires_grad_()
                with torch.enable_grad():
                    ctx.y = function(ctx.x)
                return ctx.y.detach()
            ctx.save_for_backward(x)
            ctx.copies = [x.detach().clone() for _ in range(copies)]
            return function(x) if first else x.clone()

        @staticmethod
        def backward(ctx, gradient):
            if keeps_graph:
                ctx.y.backward(gradient)
                return None, ctx.x.grad
            (x,) = ctx.saved_tensors
            if cut:
                x = x.detach().requires_grad_()
            with torch.set_grad_enabled(records):
                for _ in range(extra):
                    ctx.function(x)
                y = ctx.function(x)
            if not whole:
                return None, torch.autograd.grad(y, x, gradient)[0]
            if goes_back:
                y.backward(gradient_of_y(gradient))
            return None, back(x, gradient)

    return Checkpoint


own_checkpoint = Exercise(
    name="RunTwice",
    reference=_plain_checkpoint(),
    cases=(dict(rows=3, layers=1), dict(rows=5, layers=3)),
    words=("one layer", "three layers"),
    answer=_step_of_a_function,
    hint="In forward, keep x alone. In backward: an x without a past, a run that is"
    " recorded, and a backward through it with the gradient that you are given.",
    misconceptions=(
        Misconception(
            _plain_checkpoint(keeps_graph=True),
            "the gradients are right, and nothing is saved: forward has recorded the function, and"
            " ctx keeps its graph with all activations. Keep x, and run the function a second time"
            " in backward.",
        ),
        Misconception(
            _plain_checkpoint(records=False),
            "autograd records nothing in a backward either, so what you call backward on has no"
            " graph. Run the function inside torch.enable_grad(), and call y.backward(gradient) on"
            " its result, not on a sum made outside.",
        ),
        Misconception(
            _plain_checkpoint(cut=False),
            "x still has its past: the backward within backward goes on through all layers before"
            " this one, and the outer backward finds their graph gone. Begin with"
            " x.detach().requires_grad_().",
        ),
        Misconception(
            _plain_checkpoint(whole=False),
            "x gets its gradient and the function's parameters get none: autograd.grad() computes"
            " what it is asked for. y.backward(gradient) fills both.",
        ),
        Misconception(
            _plain_checkpoint(back=lambda x, gradient: gradient),
            "that is not the gradient of x, but that of y, say, or none at all. Layers before this"
            " one want that of x, which the second backward leaves in x.grad, if x is"
            " x.detach().requires_grad_().",
        ),
        Misconception(
            lambda *_: None, "the check wants the class RunTwice, a torch.autograd.Function."
        ),
        Misconception(
            _plain_checkpoint(gradient_of_y=torch.ones_like),
            "that takes ones for the gradient of y, as backward of a sum does: y's gradient is"
            " what backward was given, gradient.",
        ),
        Misconception(
            _plain_checkpoint(goes_back=False),
            "no backward went through the second run: y.backward(gradient) fills x.grad and"
            " the gradients of the parameters.",
        ),
        Misconception(
            _plain_checkpoint(extra=1),
            "the function runs more often than needed: once in forward, once in backward.",
        ),
        Misconception(
            _plain_checkpoint(copies=40),
            "the gradients are right, and ctx keeps more than x: its output or a copy, say. Keep x"
            " itself, and nothing else.",
        ),
        Misconception(
            _plain_checkpoint(first=False),
            "forward does not run the function: it returns function(x).",
        ),
    ),
    errors=_ERRORS_OF_A_FUNCTION,
    right="x alone is kept, and backward makes the rest again, for the gradients of x and of the"
    " parameters.",
)


# --- build it: the same by hooks ------------------------------------------------------------------


def _forgetting(number=True, once=True, cut=True, records=True, kept_as=None):
    """A function and x to function(x) whose activations are made again, and what readers make of
    it."""

    def forget(function, x):
        again, count = [], itertools.count()

        def keep(activation):
            again.append(activation.detach() if cut else activation)
            return again[-1]

        def pack(activation):
            if kept_as:
                return kept_as(activation)
            return next(count) if number else activation

        def unpack(kept):
            if not number and not kept_as:
                return kept
            if not (once and again):
                again.clear()
                with torch.set_grad_enabled(records), saved_tensors_hooks(keep, lambda own: own):
                    function(x)
            return kept if kept_as else again[kept]

        with saved_tensors_hooks(pack, unpack):
            return function(x)

    return forget


own_hooks = Exercise(
    name="forget",
    reference=_forgetting(),
    cases=(dict(rows=3, layers=1), dict(rows=5, layers=3)),
    words=("one layer", "three layers"),
    answer=_step_or_failure,
    hint="What pack returns is what autograd keeps. For which activation does the"
    " function run again, and how does each find its own?",
    misconceptions=(
        Misconception(
            _forgetting(number=False),
            "whatever pack returns is what autograd keeps: here the activation itself, so nothing"
            " is forgotten. Return its number.",
        ),
        Misconception(
            _forgetting(once=False),
            "the function runs again for each activation that backward asks for. Run it for the"
            " first one, and keep what it makes for the others.",
        ),
        Misconception(
            _forgetting(cut=False),
            "the gradients are right, and after backward the memory does not come back: an"
            " activation with its graph keeps itself alive. keep wants activation.detach(), and"
            " does not return the activation: what it returns is kept, too.",
        ),
        Misconception(
            _forgetting(records=False),
            "again is empty after the second run, or shorter than the number: either keep puts"
            " nothing there, or autograd has recorded nothing, which in a backward it does only"
            " inside torch.enable_grad(); or x was detached and needs no gradient any more; or pack"
            " returns no number of its own, counted from 0.",
        ),
        Misconception(
            _forgetting(kept_as=lambda activation: activation.detach()),
            "whatever pack returns is what autograd keeps: here the activation, so nothing is"
            " forgotten, and the function runs again for nothing. Return its number.",
        ),
    ),
    errors=(
        (
            "invalid gradient|shapes cannot be multiplied|size mismatch",
            "One activation came back instead of another. Each activation has a number of its"
            " own, and again[number] finds it: backward asks from the last to the first, not in"
            " the order of a pop.",
        ),
        (
            "expected to be a Tensor",
            "unpack returns the activation, a tensor: return again[number].",
        ),
        (
            "list index out of range",
            "again is empty after the second run, or shorter than the number: the numbers are"
            " counted from 0, one for each that pack is given; keep puts activations into again;"
            " and the second run is inside torch.enable_grad().",
        ),
        (
            "pop index out of range",
            "Backward asks from the last number to the first, so a pop moves the places of the"
            " others: again[number].",
        ),
        (
            "only integer tensors",
            "unpack was given an activation instead of its number: pack returns next(numbers), and"
            " in saved_tensors_hooks pack comes before unpack.",
        ),
        (
            "list indices must be integers or slices, not NoneType",
            "pack returns nothing: return next(numbers).",
        ),
        (
            "list indices must be integers",
            "That is the iterator itself: next(numbers) is the next number.",
        ),
    ),
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


def _blocks(
    order=range,
    every=None,
    peak=peak_of_blocks,
    fits=operator.le,
    given=lambda blocks, layers: blocks,
):
    """The fewest blocks of an order that fit by some idea of the peak."""

    def blocks_to_recompute(layers, kept, kept_input, work, loss, budget):
        counts = range(layers + 1) if every is None else (0, layers)
        for count in counts:
            blocks = list(order(layers))[:count]
            if fits(peak(blocks, layers, kept, kept_input, work, loss), budget):
                return given(blocks, layers)
        return list(range(layers))

    return blocks_to_recompute


class _Plan(NamedTuple):
    blocks_to_recompute: int
    within_the_budget: bool


def _plan_of(solution, layers, kept, kept_input, work, loss, budget):
    blocks = solution(layers, kept, kept_input, work, loss, budget)
    if blocks is None or blocks is ...:
        return blocks
    if isinstance(blocks, (int, float)) or any(isinstance(block, bool) for block in blocks):
        return "it is to return the numbers of the blocks to recompute, a list, counted from 0."
    blocks = set(blocks)
    if not blocks <= set(range(layers)):
        wrong = max(blocks, key=lambda block: abs(block))
        return (
            f"there is no block {wrong}: the {layers} blocks are counted from 0. Recompute the"
            " first ones."
        )
    peak = peak_of_blocks(blocks, layers, kept, kept_input, work, loss)
    return _Plan(len(blocks), peak <= budget)


_BLOCK = dict(kept=16, kept_input=1)


def _points(together, inputs=True):
    """The points that readers take for the peak of all points."""

    def peak(recomputed, layers, kept, kept_input, work, loss):
        own = kept_input if inputs else 0
        sizes = [own if number in recomputed else kept for number in range(layers)]
        return together([*[sum(sizes[:n]) + work for n in range(layers)], sum(sizes) + loss])

    return peak


blocks_for_a_budget = Exercise(
    name="blocks_to_recompute",
    reference=_blocks(),
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
    misconceptions=(
        Misconception(
            _blocks(order=lambda layers: range(layers)[::-1]),
            "these fit, but are one more than needed: when backward is at the last block, the"
            " blocks before it still hold all that they keep. Recompute the first ones.",
        ),
        Misconception(
            _blocks(given=lambda blocks, layers: list(range(layers))[layers - len(blocks) :]),
            "as many as are needed, but from the wrong end, so they do not fit: when backward is"
            " at the last block, the blocks before it still hold all that they keep. Recompute"
            " the first ones.",
        ),
        Misconception(
            _blocks(every=True),
            "all or nothing: these fit, and most of them are recomputed for nothing.",
        ),
        Misconception(
            _blocks(
                peak=lambda blocks, layers, kept, kept_input, work, loss: peak_of_blocks(
                    blocks, layers, kept, kept_input, work, 0
                )
            ),
            "in the middle of backward these fit. When it begins, everything is kept and the loss"
            " is at work: count that point, too.",
        ),
        Misconception(
            _blocks(
                peak=lambda blocks, layers, kept, kept_input, work, loss: (
                    len(blocks) * kept_input + (layers - len(blocks)) * kept + max(work, loss)
                )
            ),
            "that counts what all blocks keep beside one at work. The block at work is one of them,"
            " and those after it are gone: block i has only the ones before it beside it.",
        ),
        Misconception(
            _blocks(fits=operator.lt),
            "as few as fit, and what takes exactly the budget fits: <=, not <.",
        ),
        Misconception(
            _blocks(given=lambda blocks, layers: blocks[:-1]),
            "one block too few, so they do not fit: range(count) has count numbers already.",
        ),
        Misconception(
            _blocks(given=lambda blocks, layers: [block + 1 for block in blocks]),
            "blocks are counted from 0: the first is block 0.",
        ),
        Misconception(
            _blocks(given=lambda blocks, layers: list(range(len(blocks), layers))),
            "those are the blocks to keep; return the blocks to recompute.",
        ),
        Misconception(
            _blocks(peak=_points(max, inputs=False)),
            "a block that is recomputed keeps its input still, kept_input.",
        ),
        Misconception(
            _blocks(
                peak=lambda blocks, layers, kept, kept_input, work, loss: peak_of_blocks(
                    blocks, layers, kept, kept_input, 0, loss
                )
            ),
            "in the middle of backward count work, too: the block at work needs it beside what the"
            " blocks before it keep.",
        ),
        Misconception(
            _blocks(
                peak=lambda blocks, layers, kept, kept_input, work, loss: (
                    len(blocks) * kept_input + (layers - len(blocks)) * kept + loss + work
                )
            ),
            "work and loss are never there together: the loss is over when the first block's"
            " backward is at work. The peak is the larger of the two points.",
        ),
        Misconception(
            _blocks(peak=_points(lambda points: sum(points) / len(points))),
            "that is the mean of the points. What fits is decided by the fullest point: max.",
        ),
        Misconception(
            lambda layers, *_: range(layers),
            "all or nothing: these fit, where they can, and many of them are recomputed for"
            " nothing.",
        ),
        Misconception(
            lambda layers, *_: [],
            "nothing is recomputed: that fits only where there is more than enough. The fullest"
            " point decides, not the emptiest: max.",
        ),
    ),
    right="no more blocks than the fullest point asks for, and not the last one, which spares"
    " nothing while backward is there.",
)


# --- two ranks of one's own -----------------------------------------------------------------------


def _messages(all_reduces, all_gathers, ranks=2):
    return lambda: [[all_reduces, all_gathers]] * ranks


messages_of_two_ranks = Exercise(
    name="the list",
    reference=_messages(26, 2),
    cases=({},),
    answer=lambda found: [list(map(int, of_rank)) for of_rank in found()],
    of_a_value=True,
    hint="ranks(2) starts two ranks, in a with block. Their run() wants a function that takes the"
    " step and returns two numbers; checkpoint_every has the argument for blocks in each"
    " checkpoint.",
    misconceptions=(
        Misconception(
            _messages(24, 4),
            "those are the messages of one block in each checkpoint: n=2 puts two into each.",
        ),
        Misconception(
            _messages(26, 0),
            "nothing was gathered, so each rank kept whole inputs: partition them, in_parts.",
        ),
        Misconception(
            _messages(24, 0),
            "one block in each checkpoint, and whole inputs: the step wants in_parts and n=2.",
        ),
        Misconception(
            _messages(20, 0),
            "nothing was recomputed: the step wants a checkpoint, in_parts, and n=2.",
        ),
        Misconception(
            _messages(26, 2, ranks=1),
            "that is one rank. run() hands back a list with the result of each: hand over all of"
            " it.",
        ),
        Misconception(
            _messages(2, 26), "the other way round: first the all-reduces, then the all-gathers."
        ),
    ),
    errors=(
        (
            "not iterable",
            "A list for each rank is wanted, [[all-reduces, all-gathers], ...], as run() hands it"
            " back.",
        ),
    ),
    right="half as many checkpoints, half as many gathers, and one all-reduce more for each pair:"
    " only the last of a checkpoint is spared.",
)
