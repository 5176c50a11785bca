"""Where a kernel runs: by Triton on a GPU, by tiles.py elsewhere. And a function that launches
kernels, as one operator of PyTorch."""

import functools

import torch

from .tiles import run, with_language


def launch(kernel, grid: tuple[int, ...], *arguments, **constants) -> None:
    """Run a kernel where its tensors are. Tensors without memory, of torch.compile, are left
    alone."""
    tensor = next(value for value in arguments if isinstance(value, torch.Tensor))
    if tensor.device.type == "cuda":
        by_triton(kernel)[grid](*arguments, **{n: of_triton(v) for n, v in constants.items()})
    elif type(tensor) is torch.Tensor and tensor.device.type == "cpu":
        run(kernel, grid, *arguments, **constants)


@functools.cache
def by_triton(kernel):
    """The same source, compiled by Triton."""
    import triton
    import triton.language

    return triton.jit(with_language(kernel, triton.language))


def of_triton(value):
    """A type of PyTorch under Triton's name; other constants stay."""
    import triton.language

    if isinstance(value, torch.dtype):
        return getattr(triton.language, str(value).removeprefix("torch."))
    return value


def operator(function):
    """A function that launches kernels, as an operator of torch.library. What it allocates tells
    torch.compile the shapes."""
    made = torch.library.custom_op(f"shardlab::{function.__name__}", function, mutates_args=())
    made.register_fake(function)
    return made


def power_of_two(n: int) -> int:
    """The smallest block that holds n elements."""
    return 1 << (n - 1).bit_length()


def wide(dtype: torch.dtype) -> torch.dtype:
    """What to compute in: fp32 at least."""
    return torch.promote_types(dtype, torch.float32)
