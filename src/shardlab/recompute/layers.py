"""Which layers of a model are in a checkpoint, and how many in each.

    model.blocks = checkpoint_every(model.blocks, 2)           # two blocks in each checkpoint
    model.blocks = checkpoint_some(model.blocks, [0, 1, 2])    # the first three, each in its own
    checkpoint_modules(model, CoreAttention)                   # the core of attention alone
    checkpoint_modules(model, MLP, partial(checkpoint_tiles, tokens=4096))      # a tile at a time

`by` is the checkpoint: checkpoint(), or one with options, such as

    partial(checkpoint_selective, keep=EXPENSIVE)

Megatron-LM calls the three "uniform", "block" and "selective".
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from .hardened.checkpointing import checkpoint


def checkpoint_every(
    layers: nn.ModuleList | nn.Sequential, n: int, by: Callable = checkpoint
) -> nn.ModuleList:
    """The layers under the same names, every n of them in a checkpoint. A loop over them meets one
    callable for every n layers, which runs them in a checkpoint, so only the input of the first is
    kept. All n get the same other arguments, so a loop that chooses a mask by the number of a layer
    needs n = 1. A slice is recomputed as the layers are.

    Raises ValueError unless n is a whole number of at least 1, TypeError for another container.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n = {n!r}: a checkpoint has a whole number of layers, at least 1.")
    groups = [range(first, min(first + n, len(layers))) for first in range(0, len(layers), n)]
    return in_groups(layers, groups, by)


def checkpoint_some(
    layers: nn.ModuleList | nn.Sequential, chosen: Iterable[int], by: Callable = checkpoint
) -> nn.ModuleList:
    """The layers, of which each chosen one is in a checkpoint of its own.

    Raises ValueError for a number that no layer has, TypeError for another container."""
    chosen = list(chosen)
    for number in chosen:
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"layer {number!r} is chosen: the number of a layer is a whole one.")
        if not 0 <= number < len(layers):
            raise ValueError(
                f"layer {number} is chosen: of {len(layers)}, the last is the {len(layers) - 1}."
            )
    return in_groups(layers, [range(number, number + 1) for number in sorted(set(chosen))], by)


def in_groups(layers, groups: list[range], by: Callable) -> nn.ModuleList:
    if type(layers) not in CHECKPOINTED:
        raise TypeError(
            f"layers are a {type(layers).__name__}: only the layers of a ModuleList or a Sequential"
            " run one after the other for certain; put those of another module into checkpoints"
            " with checkpoint()."
        )
    checkpointed = CHECKPOINTED[type(layers)].__new__(CHECKPOINTED[type(layers)])
    checkpointed.__dict__.update(layers.__dict__, groups=groups, by=by)
    return checkpointed


def one_after_another(layers: list[nn.Module], x, *others, **named):
    for layer in layers:
        x = layer(x, *others, **named)
    return x


class InGroups:
    groups: Sequence[Sequence[int]] = ()  # of a part, until the whole says which
    by: Callable = staticmethod(checkpoint)

    def __getitem__(self, chosen):
        """Layers of one checkpoint that stand side by side in a slice are in one there, too."""
        part = super().__getitem__(chosen)
        if isinstance(chosen, slice):
            at = {number: place for place, group in enumerate(self.groups) for number in group}
            numbers = [at.get(number) for number in range(len(self))[chosen]]
            runs = groupby(range(len(numbers)), key=numbers.__getitem__)
            part.groups = [[*run] for place, run in runs if place is not None]
            part.by = self.by
        return part

    def __reversed__(self) -> Iterator[Callable]:
        return iter(self[::-1])

    def __iter__(self) -> Iterator[Callable]:
        layers, begins = list(super().__iter__()), {group[0]: group for group in self.groups}
        number = 0
        while number < len(layers):
            group = layers[number : number + len(begins.get(number, ()))]  # fewer after a `del`
            together = partial(self.by, partial(one_after_another, group))
            yield together if group else layers[number]
            number += len(group) or 1


class CheckpointedList(InGroups, nn.ModuleList):
    """Made by checkpoint_every and checkpoint_some."""


class CheckpointedSequential(InGroups, nn.Sequential):
    """Made by checkpoint_every and checkpoint_some."""


CHECKPOINTED = {
    nn.ModuleList: CheckpointedList,
    CheckpointedList: CheckpointedList,
    nn.Sequential: CheckpointedSequential,
    CheckpointedSequential: CheckpointedSequential,
}


def checkpoint_modules(model: nn.Module, kind: type, by: Callable = checkpoint) -> nn.Module:
    """Every module of this class, wherever it is in the model, runs in a checkpoint of its own. In
    place; the names of parameters stay.

    Raises ValueError if the model has no such module."""
    found = [module for module in model.modules() if isinstance(module, kind)]
    if not found:
        raise ValueError(
            f"this {type(model).__name__} has no {kind.__name__}, so nothing would be recomputed;"
            " name the class of modules that it has."
        )
    for module in found:
        module.forward = partial(by, module.forward)
    return model


def checkpoint_tiles(function: Callable[[Tensor], Tensor], x: Tensor, tokens: int) -> Tensor:
    """function(x) of x [B, S, ...], of which each tile of so many tokens is in a checkpoint of its
    own: the inner activations of one tile are in memory, not those of the sequence. Attention looks
    at other tokens, so it is none of these functions. Bekman et al. 2025 (Arctic Long Sequence
    Training, arXiv 2506.13996); kernels/losses.py has the loss so, without a second forward."""
    return torch.cat([checkpoint(function, tile) for tile in x.split(tokens, 1)], 1)
