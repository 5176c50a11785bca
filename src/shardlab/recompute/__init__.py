"""Activation checkpointing: keep the input of a layer, and compute the rest again in backward.

    y = checkpoint(block, x)                            # y = block(x), of which only x is kept
    model.blocks = checkpoint_every(model.blocks, 2)    # two blocks in each checkpoint

    core.py             the idea on a page, twice: by an autograd function and by hooks
    hardened/           by hooks for any arguments and outputs, which this package gives:
    checkpointing.py    PyTorch's checkpoint, which here compares the parameters of both runs

    layers.py           which layers of a model are in a checkpoint, whole or a tile at a time
    budget.py           which of them to recompute, so that a step fits a budget and costs least

Three files keep something else than the whole input:

    selective.py        the outputs of expensive operators, too
    partitioned.py      a part of the input on each rank that has the same one
    offload.py          every activation, in the host's memory; host_copies.py copies

Chen et al. 2016; Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from .hardened.checkpointing import CheckpointError, checkpoint
