"""An MLP cut among ranks, in plain PyTorch: the smallest program that has it all.

torchrun --nproc-per-node 2 smallest.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Use(torch.autograd.Function):
    """Forward sends nothing: all ranks have x, and different weights. Backward makes a sum."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class AddUp(torch.autograd.Function):
    """Forward sums the ranks' terms. Backward sends nothing: each term has the sum's gradient."""

    @staticmethod
    def forward(ctx, term):
        total = term.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def mlp_of_ranks(x, up, down, bias):  # [T, h], [f/t, h], [h, f/t], [h]
    inner = F.gelu(F.linear(Use.apply(x), up))  # [T, f/t]
    return AddUp.apply(F.linear(inner, down)) + bias  # [T, h]


def main():
    dist.init_process_group("gloo")
    rank, t = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same numbers on all ranks
    x, up, down, bias = (
        torch.randn(size, dtype=torch.float64, requires_grad=True)
        for size in ((5, 6), (8 * t, 6), (6, 8 * t), (6,))
    )
    plain = F.linear(F.gelu(F.linear(x, up)), down, bias)
    (want,) = torch.autograd.grad(plain.square().sum(), x)
    y = mlp_of_ranks(x, up.chunk(t)[rank], down.chunk(t, dim=1)[rank], bias)
    (found,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close((y, found), (plain, want))
    print(f"rank {rank} of {t}: output and gradient are the plain MLP's")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
