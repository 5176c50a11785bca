"""Chapter 10: activation checkpointing."""

import torch
from torch import nn

from shardlab.exercises.checker import Exercise, Misconception
from shardlab.gpt import Dropout


def _digits(tensor):
    return [round(value, 9) for value in tensor.detach().flatten().tolist()]


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
            "right for most transformers, and not for many layers or small ones: 36 layers of one"
            " vector need 36 with n = 1 and 11 with n = 6.",
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
        "an MLP, keep what it has not",
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
            "one level runs it twice. With two, the outer one is made again, in which the inner"
            " forgets again, and is then made again itself.",
        ),
        Misconception(
            lambda depth: 2**depth,
            "a level makes the one inside it again once, not twice: count levels, do not double.",
        ),
        Misconception(lambda depth: depth, "forward runs it once, before anything is made again."),
    ),
    right="once forward, and once for each level.",
)


# --- a function with side effects -----------------------------------------------------------------


def _running_mean(solution, values, recomputed):
    """The state after a forward of each value, of which some run a second time in backward."""
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
        "all activations, an A100 at 40%, PCIe 4",
        "all activations, an A100 at 40%, PCIe 5",
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
        own = x.clone().requires_grad_()
        y = solution.apply(layer, own) if checkpointed else layer(own)
        torch.rand(after)  # the rest of the model draws as well
        layer.zero_grad()
        (y * y).sum().backward()
        gradients.append(_digits(own.grad) + _digits(layer[0].weight.grad))
        drawn.append(torch.rand(1).item())
    return gradients[0] == gradients[1], drawn[0] == drawn[1]


def _checkpoint(keep=True, put_back=True):
    class Checkpoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, x):
            ctx.function = function
            ctx.save_for_backward(x)
            ctx.state = torch.get_rng_state()
            with torch.no_grad():
                return function(x)

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
                torch.set_rng_state(now)
            y.backward(dy)
            return None, x.grad

    return Checkpoint


forgetful_checkpoint = Exercise(
    name="Checkpoint",
    reference=_checkpoint(),
    cases=(dict(p=0.0, after=0), dict(p=0.5, after=0), dict(p=0.5, after=7)),
    words=("no dropout", "dropout", "dropout, and more that draws after it"),
    answer=_dropped,
    misconceptions=(
        Misconception(
            _checkpoint(keep=False, put_back=False),
            "the second run draws another mask, so the gradient is of a forward that never was, and"
            " what comes afterwards draws other numbers. Keep the state in forward, set it in"
            " backward, and put back what was there.",
        ),
        Misconception(
            _checkpoint(keep=False),
            "what comes afterwards draws what it should, but the second run still has another"
            " mask.",
        ),
        Misconception(
            _checkpoint(put_back=False),
            "the gradient is right, and the next step draws the numbers of this one again: put the"
            " state back that was there before the second run.",
        ),
        Misconception(
            lambda *_: None, "the check wants the class Checkpoint, a torch.autograd.Function."
        ),
    ),
    right="the same mask both times, and the same numbers for whoever draws next.",
)
