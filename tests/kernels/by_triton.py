"""Each shipped kernel in Triton's interpreter and in tiles, from the same numbers: prints the names
of those that differ in a bit. Run by test_triton.py, because the interpreter is chosen by a
variable of the environment before Triton is imported."""

import sys

import torch
from shipped import NAMES, launch_of

from shardlab.kernels.launch import of_triton
from shardlab.kernels.tiles import run


def both(name: str, dtype) -> list[tuple]:
    """The tensors after a run by tiles, and after one by Triton."""
    here, there = launch_of(name, dtype=dtype), launch_of(name, dtype=dtype)
    run(here.kernel, here.grid, *here.arguments, **here.constants)
    compiled, named = of_triton(there.kernel)
    constants = {key: named(value) for key, value in there.constants.items()}
    compiled[there.grid](*there.arguments, **constants)
    pairs = zip(here.arguments, there.arguments)
    return [pair for pair in pairs if isinstance(pair[0], torch.Tensor)]


if __name__ == "__main__":
    dtype = getattr(torch, sys.argv[1])
    for name in NAMES:
        off = [
            (mine.double() - theirs.double()).abs().max().item()
            for mine, theirs in both(name, dtype)
            if not torch.equal(mine, theirs)
        ]
        print(f"{name}: {'equal' if not off else f'{len(off)} tensors differ, by {max(off)}'}")
