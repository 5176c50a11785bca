"""Activations on the host: how long the GPU has them."""

import pytest
import torch
from pretended.step import Step, watched

from shardlab.recompute.host_copies import HELD
from shardlab.recompute.offload import offload_activations


def activations_are_let_go() -> Step:
    """Backward gives the plain gradients. After forward the GPU has the output and what is held;
    memory is marked for no other stream, which would keep it until the GPU has caught up."""
    x = torch.randn(1000, device="cuda", requires_grad=True)
    y = x
    for _ in range(12):
        y = y.sin()
    y.sum().backward()
    plain, x.grad, y = x.grad, None, x
    before = torch.cuda.memory_allocated()
    with pytest.MonkeyPatch.context() as patch, watched() as step:
        patch.setattr(torch.Tensor, "record_stream", None)
        with offload_activations(0, ahead=2):
            for _ in range(12):
                y = y.sin()
        assert torch.cuda.memory_allocated() - before == (HELD + 1) * 4096
        y.sum().backward()
    assert torch.equal(x.grad, plain)
    del y
    assert torch.cuda.memory_allocated() - before == 4096  # the gradient
    return step
