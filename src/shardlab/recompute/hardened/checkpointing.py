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
from torch import Tensor, nn

from ...common.torch_internals import tree_leaves, tree_map
from .. import core
from ..core import Surroundings, alike
from .determinism import (
    ActivationTraits,
    CheckpointError,
    InANode,
    check_versions,
    differs,
    needs_no_gradient,
    refuse_all_but_backward,
    refuse_hidden_inputs,
    refuse_outputs,
    versions_of,
)

A_TENSOR = object()  # where a tensor was among arguments

# --- by hooks -------------------------------------------------------------------------------------


def checkpoint(function: Callable, *args, same: bool = False, hardened: bool = True, **named):
    """function(*args, **named), whose activations are computed again in backward.

    same        compare each activation with that of the first run, which costs time and the rest of
                the second run
    hardened    False gives the core's checkpoint, which compares nothing and takes no nested
                arguments

    Raises CheckpointError: at once if no output requires a gradient, and in backward if the second
    run differs from the first, or if a parameter was written after the first.
    """
    if hardened:
        return Recomputation(function, same).first_run(args, named)
    if same:
        raise CheckpointError(
            "same=True and hardened=False: the core compares nothing; leave one of them out."
        )
    return core.checkpoint(function, *args, **named)


class Enough(Exception):
    """Ends the second run, once it has made all that backward needs."""


class Recomputation(core.Recomputation):
    """A call with any arguments and outputs, which stops its second run at the last activation, and
    compares the runs."""

    def __init__(self, function: Callable, same: bool = False):
        super().__init__(function)
        self.same = same
        self.first: list[ActivationTraits] = []  # what each activation was like in the first run
        self.versions: list[tuple[nn.Parameter, int]] = []

    def first_run(self, args: tuple, named: dict):
        if not torch.is_grad_enabled():
            return self.function(*args, **named)
        output = super().first_run(args, named)
        self.versions = versions_of(self.first)
        if all(map(needs_no_gradient, tree_leaves(output))):
            raise CheckpointError(
                "nothing that checkpoint() was given or used requires a gradient, so there is"
                " nothing to recompute; call the function itself, or under torch.no_grad()."
            )
        return output

    def remember(self, args: tuple, named: dict):
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        self.keep_inputs(tensors)
        # the arguments without their tensors
        self.arguments = tree_map(
            lambda leaf: A_TENSOR if isinstance(leaf, Tensor) else leaf, (args, named)
        )
        self.surroundings = Surroundings(tensors)

    def keep_inputs(self, tensors: list[Tensor]):
        self.inputs = InANode(*tensors)

    def kept_inputs(self) -> list[Tensor]:
        return [alike(tensor) for tensor in self.inputs.tensors]

    def arguments_again(self) -> tuple[tuple, dict]:
        tensors = iter(self.kept_inputs())
        return tree_map(lambda leaf: next(tensors) if leaf is A_TENSOR else leaf, self.arguments)

    def pack(self, activation: Tensor) -> int:
        self.first.append(ActivationTraits.of(activation, self.same))
        return super().pack(activation)

    def run_again(self):
        check_versions(self.versions)
        self.second: list[ActivationTraits] = []
        with suppress(Enough):
            super().run_again()
        self.versions = versions_of(self.first)  # a function may write a parameter itself
        if sentence := differs(self.first, self.second):
            raise CheckpointError(sentence)

    def pack_again(self, activation: Tensor) -> Tensor:
        self.second.append(ActivationTraits.of(activation, self.same))
        kept = super().pack_again(activation)
        if len(self.second) == len(self.first) and not self.same:
            raise Enough
        return kept


# --- by an autograd function ----------------------------------------------------------------------


def checkpoint_by_function(function: Callable, *args, hardened: bool = True):
    """function(*args), whose activations are computed again in backward. The function returns a
    tensor or a tuple of tensors. `hardened=False` gives the core's, which refuses nothing.

    The runs are not compared, because the first one records nothing: call backward() before eval()
    and before parameters are written. A parameter that several checkpoints use gets its gradient in
    parts, and its hooks run for each part.

    Raises CheckpointError: at once if a list or a dict hides a tensor from autograd; in backward
    if no output requires a gradient, or if the backward is autograd.grad() or has
    create_graph=True.
    """
    if not hardened:
        return core.checkpoint_by_function(function, *args)
    refuse_hidden_inputs(args)

    def checked(*args):
        outputs = function(*args)
        refuse_outputs(outputs)
        return outputs

    # parameters get gradients even if no argument requires one: something must
    return RunTwice.apply(checked, torch.empty(0, requires_grad=True), *args)


class RunTwice(core.RunTwice):
    @staticmethod
    def backward(ctx, *gradients):
        refuse_all_but_backward()
        return core.RunTwice.backward(ctx, *gradients)
