"""Which layers of a model are in a checkpoint, and how many in each.

    model.blocks = checkpoint_every(model.blocks, 2)

The model's loop over its blocks stays as it is: it now meets one callable for every two blocks.
"""

from collections.abc import Callable, Iterator

from torch import nn

from .recompute import checkpoint


def checkpoint_every(layers: nn.ModuleList | nn.Sequential, n: int) -> nn.ModuleList:
    """The same layers under the same names. A loop over them meets one callable for every n layers,
    which runs them in a checkpoint, so only the input of the first is kept.

    Raises ValueError unless n is a whole number of at least 1, TypeError for another container.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n = {n!r}: a checkpoint has a whole number of layers, at least 1.")
    if type(layers) not in CHECKPOINTED:
        raise TypeError(
            f"layers are a {type(layers).__name__}: only the layers of a ModuleList or a Sequential"
            " run one after the other for certain; put those of another module into checkpoints"
            " with checkpoint()."
        )
    checkpointed = CHECKPOINTED[type(layers)].__new__(CHECKPOINTED[type(layers)])
    checkpointed.__dict__.update(layers.__dict__, every=n)
    return checkpointed


class LayersTogether:
    """Layers that run one after the other in one checkpoint."""

    def __init__(self, layers: list[nn.Module]):
        self.layers = layers

    def __call__(self, x, *others, **named):
        return checkpoint(self.run, x, *others, **named)

    def run(self, x, *others, **named):
        for layer in self.layers:
            x = layer(x, *others, **named)
        return x


class InGroups:
    def __iter__(self) -> Iterator[Callable]:
        layers = list(self._modules.values())
        for first in range(0, len(layers), self.every):
            yield LayersTogether(layers[first : first + self.every])


class CheckpointedList(InGroups, nn.ModuleList):
    """Made by checkpoint_every."""


class CheckpointedSequential(InGroups, nn.Sequential):
    """Made by checkpoint_every."""


CHECKPOINTED = {
    nn.ModuleList: CheckpointedList,
    CheckpointedList: CheckpointedList,
    nn.Sequential: CheckpointedSequential,
    CheckpointedSequential: CheckpointedSequential,
}
