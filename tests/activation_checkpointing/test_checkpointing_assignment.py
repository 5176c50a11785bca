"""The assignment on activation checkpointing: the reference and a learner's solution are right, the
skeleton is a list of TODOs, and each misconception gets its sentence."""

import pytest
from graded import check_sentence, check_todos, results

pytestmark = pytest.mark.ranks
TOPIC = "activation_checkpointing"

SOLUTION = '''
from contextlib import contextmanager

import torch
from torch.autograd.graph import saved_tensors_hooks


class Around:
    """The random numbers and the autocast of the first run."""

    def __init__(self):
        self.state = torch.get_rng_state()
        self.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextmanager
    def again(self):
        found = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            with torch.autocast("cpu", self.autocast[1], enabled=self.autocast[0]):
                yield
        finally:
            torch.set_rng_state(found)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, anchor, *args):
        ctx.function, ctx.around = function, Around()
        ctx.tensors = [isinstance(arg, torch.Tensor) for arg in args]
        ctx.args = [None if t else arg for t, arg in zip(ctx.tensors, args)]
        ctx.save_for_backward(*(arg for t, arg in zip(ctx.tensors, args) if t))
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        saved = iter(ctx.saved_tensors)
        args = []
        for is_tensor, arg in zip(ctx.tensors, ctx.args):
            if is_tensor:
                tensor = next(saved)
                arg = tensor.detach().requires_grad_(tensor.requires_grad)
            args.append(arg)
        with torch.enable_grad(), ctx.around.again():
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(y, g) for y, g in zip(outputs, gradients) if y.requires_grad]
        torch.autograd.backward([y for y, _ in pairs], [g for _, g in pairs])
        return None, None, *(arg.grad if t else None for t, arg in zip(ctx.tensors, args))


def checkpoint_by_function(function, *args):
    return Twice.apply(function, torch.zeros(0, requires_grad=True), *args)


class Keep(torch.autograd.Function):
    """Keeps tensors as autograd does, and is in no graph."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError


def checkpoint(function, *args, **named):
    if not torch.is_grad_enabled():
        return function(*args, **named)
    around = Around()
    slots = list(range(len(args))) + list(named)
    values = [*args, *named.values()]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    # the output lives on: in PyTorch 2.6 what its node keeps goes with it
    keeper = Keep.apply(torch.zeros(0, requires_grad=True), *tensors)
    values = [None if isinstance(v, torch.Tensor) else v for v in values]
    is_tensor = [v is None for v in values]
    count, again = 0, {}

    def pack(tensor):
        nonlocal count
        count += 1
        return count - 1

    def unpack(number):
        if number not in again:
            run()
        return again.pop(number)

    def run():
        again.clear()
        saved = iter(keeper.grad_fn.saved_tensors)
        found = []
        for value, tensor in zip(values, is_tensor):
            if tensor:
                kept = next(saved)
                value = kept.detach().requires_grad_(kept.requires_grad)
            found.append(value)
        n = len(args)
        made = 0

        def keep(tensor):
            nonlocal made
            again[made] = tensor.detach()
            made += 1
            return tensor.detach()

        with torch.enable_grad(), around.again(), saved_tensors_hooks(keep, lambda t: t):
            function(*found[:n], **dict(zip(slots[n:], found[n:])))

    with saved_tensors_hooks(pack, unpack):
        return function(*args, **named)
'''


@pytest.mark.parametrize("source", [None, SOLUTION], ids=["the reference", "another solution"])
def test_what_is_right_passes(worlds, source):
    """Must catch: a trial that refuses a right solution, such as one that keeps a state that the
    reference does not."""
    found = results(worlds(1), TOPIC, source)
    assert [r for r in found if r.said != "right"] == []


def test_the_skeleton_is_a_list_of_todos(worlds):
    """Must catch: a skeleton that passes a trial, and one that raises a traceback."""
    check_todos(worlds(1), TOPIC, parts=2)


FUNCTION, HOOKS = "checkpoint_by_function", "checkpoint"
STATE = ("        torch.set_rng_state(self.state)\n", "")
WRONG = {
    "other masks, by function": (f"masks_of_{FUNCTION}", "parity", STATE, "Without dropout it is"),
    "other masks, by hooks": (f"masks_of_{HOOKS}", "parity", STATE, "Without dropout it is"),
    "random numbers not put back": (
        f"masks_of_{HOOKS}",
        "parity",
        ("            torch.set_rng_state(found)", "            pass"),
        "put back the state that you found",
    ),
    "no autocast": (
        f"lower_precision_of_{FUNCTION}",
        "parity",
        ("enabled=self.autocast[0]", "enabled=False"),
        "the second run needs the settings of the first",
    ),
    "the second run without a graph": (
        f"bits_of_{FUNCTION}",
        "parity",
        (
            "        with torch.enable_grad(), ctx.around.again():",
            "        with ctx.around.again():",
        ),
        "three blocks",
    ),
    "arguments without gradients": (
        f"bits_of_{FUNCTION}",
        "parity",
        ("arg = tensor.detach().requires_grad_(tensor.requires_grad)", "arg = tensor.detach()"),
        "the gradient of the argument is None",
    ),
    "the plain function": (
        f"kept_between_of_{HOOKS}",
        "bytes",
        ("    if not torch.is_grad_enabled():", "    if True:"),
        "The activations of the function live on.",
    ),
    "activations that stay": (
        f"kept_between_of_{HOOKS}",
        "bytes",
        (
            "class Around:",
            "KEPT = []\n\n\nclass Around:",
            "            again[made] = tensor.detach()\n",
            "            again[made] = tensor.detach()\n            KEPT.append(again[made])\n",
        ),
        "drop what the second run has made",
    ),
    "a run for each activation": (
        f"runs_of_the_function_of_{HOOKS}",
        "bytes",
        ("        if number not in again:\n            run()", "        run()"),
        "once is enough for all activations",
    ),
    "no anchor": (
        f"data_in_front_of_{FUNCTION}",
        "faults",
        ("Twice.apply(function, torch.zeros(0, requires_grad=True)", "Twice.apply(function, None"),
        "they would never be trained",
    ),
    "arguments kept by hand": (
        f"written_arguments_of_{FUNCTION}",
        "faults",
        (
            "ctx.save_for_backward(*(arg for t, arg in zip(ctx.tensors, args) if t))",
            "ctx.own = [arg for t, arg in zip(ctx.tensors, args) if t]",
            "iter(ctx.saved_tensors)",
            "iter(ctx.own)",
        ),
        "by save_for_backward",
    ),
    "no finally": (
        f"exceptions_of_{HOOKS}",
        "faults",
        (
            "        try:\n            with torch.autocast",
            "        if True:\n            with torch.autocast",
            "        finally:\n            torch.set_rng_state(found)",
            "        torch.set_rng_state(found)",
        ),
        "use try and finally, or fork_rng",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_misconception_gets_its_sentence(worlds, name):
    """Must catch: a trial that lets this wrong solution pass, or says no more than "wrong"."""
    check_sentence(worlds(1), TOPIC, SOLUTION, WRONG[name])
