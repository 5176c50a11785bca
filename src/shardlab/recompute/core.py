"""The core of activation checkpointing: keep the input of a function, and compute the rest again in
backward.

    y = checkpoint_by_function(block, x)    # y = block(x), of which only x is kept
    y = checkpoint(block, x)                # the same idea by hooks: any arguments, any outputs

Autograd keeps for each operation the tensors that its backward needs, the activations. A checkpoint
keeps none of them. When backward asks for the first one, the function runs a second time. The price
is one more forward. Griewank and Walther 2000; Chen et al. 2016.

The second run must be as the first: with the same random numbers, so that dropout has the same
masks, and under the same autocast.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Surroundings:
    """The random numbers and the autocast of the first run, on the CPU and on each GPU that has a
    tensor or is the current one."""

    def __init__(self, tensors: Iterable[Tensor]):
        gpus = {tensor.device.index for tensor in tensors if tensor.is_cuda}
        if torch.cuda.is_initialized():  # a function without tensors may draw there
            gpus.add(torch.cuda.current_device())
        self.gpus, self.random = sorted(gpus), torch.get_rng_state()
        self.random_of_gpus = [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]
        caches = torch.is_autocast_cache_enabled()
        self.autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), caches)
            for kind in ("cpu", "cuda")
            if kind == "cpu" or self.gpus
        ]

    @contextmanager
    def again(self):
        with ExitStack() as contexts:
            contexts.enter_context(torch.random.fork_rng(self.gpus))  # puts back what it finds
            for settings in self.autocast:
                contexts.enter_context(torch.autocast(*settings))
            torch.set_rng_state(self.random)
            for gpu, state in zip(self.gpus, self.random_of_gpus):
                torch.cuda.set_rng_state(state, gpu)
            yield


def alike(tensor: Tensor) -> Tensor:
    """A tensor with these elements, at the beginning of a graph of its own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


class Arguments:
    """The arguments of a call, without their tensors: autograd keeps those, and objects when
    somebody writes into them before backward."""

    def __init__(self, args: tuple, named: dict):
        self.names = list(named)
        values = [*args, *named.values()]
        self.tensors = [value for value in values if isinstance(value, Tensor)]
        self.is_tensor = [isinstance(value, Tensor) for value in values]
        self.values = [None if isinstance(value, Tensor) else value for value in values]

    def again(self, tensors: Iterable[Tensor]) -> tuple[list, dict]:
        tensors = iter(tensors)
        values = [
            alike(next(tensors)) if is_tensor else value
            for is_tensor, value in zip(self.is_tensor, self.values)
        ]
        count = len(values) - len(self.names)
        return values[:count], dict(zip(self.names, values[count:]))

    def drop_tensors(self) -> "Arguments":
        self.tensors = []
        return self


# --- by an autograd function ----------------------------------------------------------------------


class RunTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, _, *args):  # autograd records nothing in here
        arguments = Arguments(args, {})
        ctx.save_for_backward(*arguments.tensors)
        ctx.function, ctx.surroundings = function, Surroundings(arguments.tensors)
        ctx.arguments = arguments.drop_tensors()
        return function(*args)

    @staticmethod
    def backward(ctx, *gradients):
        args, _ = ctx.arguments.again(ctx.saved_tensors)
        with torch.enable_grad(), ctx.surroundings.again():
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(y, dy) for y, dy in zip(outputs, gradients) if y.requires_grad]
        torch.autograd.backward([y for y, _ in pairs], [dy for _, dy in pairs])
        return None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args)


def checkpoint_by_function(function: Callable, *args):
    """function(*args), a tensor or a tuple of tensors, whose activations are recomputed."""
    # parameters get gradients even if no argument requires one: something must
    return RunTwice.apply(function, torch.empty(0, requires_grad=True), *args)


# --- by hooks -------------------------------------------------------------------------------------


class KeptInputs(torch.autograd.Function):
    """A node that keeps tensors as autograd keeps activations. It is in no graph."""

    @staticmethod
    def forward(ctx, anchor, *tensors):
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError("no graph has this node")


class Recomputation:
    """One call of a function. Activations are known by their number: both runs make the same ones
    in the same order."""

    def __init__(self, function: Callable):
        self.function, self.packed = function, 0
        self.again: dict[int, Tensor] = {}  # activations of the second run that nobody took yet

    def first_run(self, args: tuple, named: dict):
        self.remember(args, named)
        with saved_tensors_hooks(self.pack, self.unpack):
            return self.function(*args, **named)

    def remember(self, args: tuple, named: dict):
        arguments = Arguments(args, named)
        self.surroundings = Surroundings(arguments.tensors)
        self.kept = KeptInputs.apply(torch.empty(0, requires_grad=True), *arguments.tensors)
        self.arguments = arguments.drop_tensors()

    def arguments_again(self) -> tuple[Iterable, dict]:
        return self.arguments.again(self.kept.grad_fn.saved_tensors)

    def pack(self, activation: Tensor) -> int:
        self.packed += 1
        return self.packed - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.again:
            self.run_again()
        return self.again.pop(number)

    def run_again(self):
        self.again, self.made = {}, 0
        args, named = self.arguments_again()
        hooks = saved_tensors_hooks(self.pack_again, lambda activation: activation)
        with torch.enable_grad(), self.surroundings.again(), hooks:
            self.function(*args, **named)

    def pack_again(self, activation: Tensor) -> Tensor:
        self.again[self.made] = activation.detach()  # with its graph, it would keep itself
        self.made += 1
        return activation.detach()


def checkpoint(function: Callable, *args, **named):
    """function(*args, **named), whose activations are recomputed in backward."""
    if not torch.is_grad_enabled():
        return function(*args, **named)
    return Recomputation(function).first_run(args, named)
