"""Where a kernel runs: on a GPU by Triton, elsewhere by tiles.py. And a function that launches
kernels, as an operator of PyTorch."""

import functools

import torch

from ..common.torch_internals import is_fake
from .tiles import run, with_language


def launch(kernel, grid: tuple[int, ...], *arguments, **constants) -> None:
    """Run a kernel where its tensors are. Where they have no memory, there is nothing to do."""
    tensor = next(value for value in arguments if isinstance(value, torch.Tensor))
    if is_fake(tensor) or tensor.device.type == "meta" or 0 in grid:
        return
    if tensor.device.type == "cuda":
        compiled, named = of_triton(kernel)
        compiled[grid](*arguments, **{name: named(value) for name, value in constants.items()})
    else:
        run(kernel, grid, *arguments, **constants)


@functools.cache
def of_triton(kernel):
    """(the same source for Triton, a function that gives a type of PyTorch Triton's name)"""
    import triton
    import triton.language as language

    def named(value):
        is_type = isinstance(value, torch.dtype)
        return getattr(language, str(value).removeprefix("torch.")) if is_type else value

    return triton.jit(with_language(kernel, language)), named


def operator(function):
    """The function as an operator of torch.library. Shapes come from the tensors that it makes, so
    torch.compile calls the function too, with tensors that have no memory."""
    made = torch.library.custom_op(f"shardlab::{function.__name__}", function, mutates_args=())
    made.register_fake(function)
    return made


def block_for(n: int) -> int:
    """The smallest block that holds n elements: a power of two."""
    return 1 << (n - 1).bit_length()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that a kernel computes in: fp32 at least."""
    return torch.promote_types(dtype, torch.float32)
