"""Selective checkpointing: keep what is expensive to compute, and compute the rest again.

    y = checkpoint_selective(block, x, keep=EXPENSIVE)

An operator's name decides. The first run puts the outputs of the operators in `keep` aside, and the
second run takes them instead of computing: an operator that is skipped costs nothing, and what
comes after it gets the same bits. What Megatron-LM calls selective is checkpoint_modules(model,
CoreAttention).

Source: PyTorch's create_selective_checkpoint_contexts does the same.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from ..common.torch_internals import (
    FUSED_ATTENTION,
    TorchDispatchMode,
    argument_names,
    changes_arguments,
    storage_key,
    tree_leaves,
    tree_map,
)
from .core import KeptInputs
from .hardened.checkpointing import CheckpointError, checkpoint

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)  # linear layers
EXPENSIVE = PRODUCTS + FUSED_ATTENTION
KINDS_OF_OPERATORS = type(torch.ops.aten.mm), type(torch.ops.aten.mm.default)


def checkpoint_selective(function: Callable, *args, keep: Collection = EXPENSIVE, **named):
    """checkpoint(function, *args, **named) that keeps the outputs of the operators in `keep`:
    torch.ops.aten.mm, or one overload of it, torch.ops.aten.mm.default.

    Raises ValueError for a policy that names no operator, and what checkpoint() raises."""
    selective = Selective(function, check_policy(keep))
    output = checkpoint(selective, *args, **named)
    selective.keep_outputs()
    return output


def check_policy(keep: Collection) -> set:
    wrong = [each for each in keep if not isinstance(each, KINDS_OF_OPERATORS)]
    if wrong:
        raise ValueError(
            f"keep has {wrong[0]!r}: a policy names operators of PyTorch, such as"
            " torch.ops.aten.mm."
        )
    if not keep:
        raise ValueError(
            "keep is empty: a policy names at least one operator whose outputs are kept; without"
            " any, take checkpoint()."
        )
    return set(keep)


class Selective:
    """The first run numbers the calls of the kept operators, and the second run counts along."""

    def __init__(self, function: Callable, keep: set):
        self.function, self.keep = function, keep
        self.aside: PutAside | None = None  # None before the first run
        self.outputs: dict | None = None  # in nodes, by the number of the call; None until its end

    def keep_outputs(self):
        """Outside of the checkpoint, whose hooks would drop them."""
        self.outputs = {number: in_nodes(each) for number, each in self.aside.outputs.items()}
        self.aside.outputs = {}

    def __call__(self, *args, **named):
        if self.aside is None:
            with PutAside(self.keep) as self.aside:
                return self.function(*args, **named)
        if self.outputs is None:  # the second run would count on in the first
            raise CheckpointError(
                "the function goes backward itself, as by autograd.grad(), for which"
                " checkpoint_selective() would run it again within its first run: take"
                " checkpoint()."
            )
        # All at once and before the mode is on: what an outer checkpoint dropped, it makes now.
        outputs = {number: out_of_nodes(kept) for number, kept in self.outputs.items()}
        self.outputs = {}
        with TakeInstead(self.keep, outputs):
            return self.function(*args, **named)


def in_nodes(outputs: Tensor | tuple):
    """The results of an operator, each tensor in a node of autograd, where outer hooks see it. The
    node's empty result stands for it, without which PyTorch 2.8 frees what the node keeps."""
    anchor = torch.empty(0, requires_grad=True)
    keep = lambda tensor: KeptInputs.apply(anchor, tensor.detach())
    return tree_map(lambda one: keep(one) if isinstance(one, Tensor) else one, outputs)


def out_of_nodes(kept) -> Tensor | tuple:
    take = lambda result: result.grad_fn.saved_tensors[0].detach()
    return tree_map(lambda one: take(one) if isinstance(one, Tensor) else one, kept)


def memory_of(tree) -> set[int]:
    """The storages of all tensors in nested arguments or outputs."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return {storage_key(tensor.untyped_storage()) for tensor in tensors}


class CountsCalls(TorchDispatchMode):
    """Sees every operator under autograd, and numbers the calls of those that are kept."""

    def __init__(self, keep: set):
        super().__init__()
        self.keep, self.calls = keep, 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        named = kwargs or {}
        kept = operator in self.keep or operator.overloadpacket in self.keep
        in_place = changes_arguments(operator) and "out" not in named
        if not kept or in_place or draws(operator, args, named):
            return self.of_another(operator, args, named)
        self.calls += 1
        return self.of_a_kept_one(operator, args, named)

    def of_another(self, operator, args: tuple, named: dict):
        return operator(*args, **named)


def draws(operator, args: tuple, named: dict) -> bool:
    """Whether the operator drops elements: skipped, it would not move the random numbers on."""
    given = {**dict(zip(argument_names(operator), args)), **named}
    return given.get("dropout_p", 0) > 0


class PutAside(CountsCalls):
    """The mode of the first run. An output that is changed in place afterwards is not kept: the
    second run makes it, and changes it, again."""

    def __init__(self, keep: set):
        super().__init__(keep)
        self.outputs: dict[int, Tensor | tuple] = {}
        self.lies_in: dict[int, set[int]] = {}  # call -> storages

    def of_a_kept_one(self, operator, args: tuple, named: dict):
        outputs = self.of_another(operator, args, named)  # which may write over another one's
        self.outputs[self.calls], self.lies_in[self.calls] = outputs, memory_of(outputs)
        return outputs

    def of_another(self, operator, args: tuple, named: dict):
        if changes_arguments(operator) or operator.namespace == "c10d":  # collectives do not tell
            changed = memory_of((args, named))
            for number in [n for n, memory in self.lies_in.items() if memory & changed]:
                del self.outputs[number], self.lies_in[number]
        return operator(*args, **named)


class TakeInstead(CountsCalls):
    """The mode of the second run. An output is kept until it is taken; a third run computes it. An
    operator with `out` writes what was kept there: overlapped layers go on with that tensor."""

    def __init__(self, keep: set, outputs: dict[int, Tensor | tuple]):
        super().__init__(keep)
        self.outputs = outputs

    def of_a_kept_one(self, operator, args: tuple, named: dict):
        if self.calls in self.outputs:
            kept = self.outputs.pop(self.calls)
            return named["out"].copy_(kept) if "out" in named else kept
        return operator(*args, **named)
