"""The loss scaler of mixed_precision.py, faster: PyTorch's own kernel looks at a gradient and
unscales it in one pass, and the host asks each device once.

    scaler = mixed_precision_fast.LossScaler()

The kernel is the one of torch.amp.GradScaler, and private. Results are the same bits. Both are
raced in `python -m bench precision`.
"""

import torch
from torch import Tensor

from . import mixed_precision
from .torch_internals import unscale_in_one_pass


class LossScaler(mixed_precision.LossScaler):
    """See there."""

    def multiply(self, gradients: list[Tensor], inverse: Tensor) -> bool:
        alike: dict[tuple, list[Tensor]] = {}
        for gradient in gradients:
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        flags = []
        for (device, _), pile in alike.items():
            flags.append(torch.zeros(1, device=device))
            unscale_in_one_pass(pile, flags[-1], inverse.to(device))
        return any(flag.item() for flag in flags)
