"""Activation checkpointing: keep the input of a function, and compute the rest again in backward.

    y = checkpoint(block, x)                # y = block(x), of which only x is kept
    y = checkpoint_by_function(block, x)    # the same idea as an autograd function

Autograd keeps for each operation the tensors that its backward needs, the activations. A checkpoint
keeps none of them. When backward asks for the first one, the function runs a second time, and now
its activations are kept until backward has used them. The price is one more forward.

Both versions give the bits of the plain function, dropout included. Their difference is a lesson:

    checkpoint               tells autograd how to keep a tensor (saved_tensors_hooks). The graph is
                             the plain function's. Any arguments, any outputs, retain_graph,
                             create_graph and autograd.grad. The second run stops at the last tensor
                             that backward needs.
    checkpoint_by_function   hides the function's graph behind one node, whose backward makes a new
                             graph and runs a backward within the backward. Older and easier to see
                             through; tensors or tuples of tensors, and backward() only.

layers.py puts the layers of a model into checkpoints.

Sources: Griewank and Walther 2000; Chen et al. 2016; torch.utils.checkpoint has both.
"""

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ...common.torch_internals import tree_leaves, tree_map
from .determinism import (
    ActivationTraits,
    CheckpointError,
    InANode,
    Surroundings,
    differs,
    needs_no_gradient,
    refuse_all_but_backward,
    refuse_hidden_inputs,
    refuse_hidden_outputs,
    with_a_gradient,
)

A_TENSOR = object()  # where a tensor was among arguments

# --- by hooks -------------------------------------------------------------------------------------


def checkpoint(function: Callable, *args, same: bool = False, **named):
    """function(*args, **named), whose activations are computed again in backward.

    same    compare each activation with that of the first run, which costs time and the rest of
            the second run

    Raises CheckpointError: at once if no output requires a gradient, and in backward if the second
    run differs from the first.
    """
    return Recomputation(function, same).first_run(args, named)


class Enough(Exception):
    """Ends the second run, once it has made all that backward needs."""


class Recomputation:
    """One call of a function, and how to repeat it. Activations are known by their number: both
    runs save the same ones in the same order."""

    def __init__(self, function: Callable, same: bool = False):
        self.function, self.same = function, same
        self.first: list[ActivationTraits] = []  # what each activation was like in the first run
        self.again: dict[int, Tensor] = {}  # activations of the second run that nobody took yet

    def first_run(self, args: tuple, named: dict):
        if not torch.is_grad_enabled():
            return self.function(*args, **named)
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        self.keep_inputs(tensors)
        # the arguments without their tensors
        self.arguments = tree_map(
            lambda leaf: A_TENSOR if isinstance(leaf, Tensor) else leaf, (args, named)
        )
        self.surroundings = Surroundings(tensors)
        with saved_tensors_hooks(self.pack, self.unpack):
            output = self.function(*args, **named)
        if all(map(needs_no_gradient, tree_leaves(output))):
            raise CheckpointError(
                "nothing that checkpoint() was given or used requires a gradient, so there is"
                " nothing to recompute; call the function itself, or under torch.no_grad()."
            )
        return output

    def keep_inputs(self, tensors: list[Tensor]):
        self.inputs = InANode(*tensors)

    def kept_inputs(self) -> list[Tensor]:
        return [alike(tensor) for tensor in self.inputs.tensors]

    def pack(self, activation: Tensor) -> int:
        self.first.append(ActivationTraits.of(activation, self.same))
        return len(self.first) - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.again:
            self.run_again()
        return self.again.pop(number)

    def run_again(self):
        self.again, second = {}, []

        def keep(activation: Tensor) -> Tensor:
            activation = activation.detach()  # with its graph, it would keep itself alive
            self.again[len(second)] = activation
            second.append(ActivationTraits.of(activation, self.same))
            if len(second) == len(self.first) and not self.same:
                raise Enough
            return activation

        args, named = self.arguments_again()
        with (
            suppress(Enough),
            self.surroundings.again(),
            torch.enable_grad(),
            saved_tensors_hooks(keep, lambda activation: activation),
        ):
            self.function(*args, **named)
        if sentence := differs(self.first, second):
            raise CheckpointError(sentence)

    def arguments_again(self) -> tuple[tuple, dict]:
        tensors = iter(self.kept_inputs())
        return tree_map(lambda leaf: next(tensors) if leaf is A_TENSOR else leaf, self.arguments)


def alike(tensor: Tensor) -> Tensor:
    """Tensors of the same elements at the beginning of a graph of their own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


# --- by an autograd function ----------------------------------------------------------------------


def checkpoint_by_function(function: Callable, *args):
    """function(*args), whose activations are computed again in backward. The function returns a
    tensor or a tuple of tensors.

    Raises CheckpointError: at once if a list or a dict hides a tensor from autograd; in backward
    if no output requires a gradient, or if the backward is autograd.grad() or has
    create_graph=True.
    """
    # parameters get gradients even if no argument requires one: something must
    return RunTwice.apply(function, torch.empty(0, requires_grad=True), *args)


class RunTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, _, *args):  # autograd records nothing in here
        refuse_hidden_inputs(args)
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.function, ctx.surroundings = function, Surroundings(tensors)
        ctx.args = [A_TENSOR if isinstance(arg, Tensor) else arg for arg in args]
        outputs = function(*args)
        refuse_hidden_outputs(outputs)
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        refuse_all_but_backward()
        tensors = iter(ctx.saved_tensors)
        args = [alike(next(tensors)) if arg is A_TENSOR else arg for arg in ctx.args]
        with ctx.surroundings.again(), torch.enable_grad():
            outputs = ctx.function(*args)
        torch.autograd.backward(*with_a_gradient(outputs, gradients))
        return None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args)
