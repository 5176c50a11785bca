"""LossScaler and MasterWeights in less time and fewer bytes.

    optimizer = fast.MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    scaler = fast.LossScaler()

PyTorch's own kernel looks at a gradient and unscales it in one pass, and the host asks each device
once. The kernel is the one of torch.amp.GradScaler, and private. Where nobody looks at gradients
between backward and step, the scaler looks at the fp16 ones, and the optimizer unscales pile by
pile: so the fp32 gradients are never there all at once, 4 bytes a parameter. With
`consume_gradients=True` a step also frees each 16-bit gradient once it has the fp32 one.

Results are the same bits. Both are raced in `python -m bench precision`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ...common.torch_internals import unscale_in_one_pass
from . import loss_scaler, master_weights
from . import scaler_checks as checks
from .optimizer_wrapper import CopiedPair


class MasterWeights(master_weights.MasterWeights):
    """See there.

    consume_gradients   step() takes the 16-bit gradients and leaves None, for loops in which
                        zero_grad() follows. The parameters with the largest tensors come last,
                        when the gradients of the others are gone, which lowers the peak.

    `inverse`: of the scale, while a step is under way whose gradients still have it."""

    inverse: Tensor | None = None

    def __init__(self, params, of: type, *, consume_gradients: bool = False, **named):
        self.consumes = consume_gradients
        super().__init__(params, of, **named)

    def piles(self) -> Iterator[list[CopiedPair]]:
        piles = super().piles()
        return iter(sorted(piles, key=largest)) if self.consumes else piles

    def in_fp32(self, parameter: nn.Parameter) -> Tensor:
        gradient = super().in_fp32(parameter)
        if self.consumes:
            parameter.grad = None
        return gradient if self.inverse is None else gradient.mul_(self.inverse)

    def waiting(self) -> list[Tensor] | None:
        """The gradients in fp16, all dense; None if not all of them are in fp16."""
        found = [tensor.grad for pair in self.pairs for tensor in pair if tensor.grad is not None]
        # CUDA's kernel takes no bf16, which needs no scale
        narrow = all(g.dtype is torch.float16 and g.layout is torch.strided for g in found)
        return found if narrow else None


def largest(pile: list[CopiedPair]) -> int:
    """Elements of the largest parameter in the pile."""
    return max(parameter.numel() for parameter, _ in pile)


class LossScaler(loss_scaler.LossScaler):
    """See there."""

    def multiply(self, gradients: list[Tensor], inverse: Tensor) -> bool:
        alike: dict[tuple, list[Tensor]] = {}
        for gradient in gradients:
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        flags = []
        for (device, _), pile in alike.items():
            flags.append(torch.zeros(1, device=device))
            # filled on the device: a copy from the host would make it wait
            unscale_in_one_pass(pile, flags[-1], torch.full((), inverse.item(), device=device))
        return any(flag.item() for flag in flags)

    def step(self, optimizer: torch.optim.Optimizer, *args, **named):
        """unscale_() and step() in one, if nobody has called the first. The fp16 gradients keep the
        scale then."""
        alone = isinstance(optimizer, MasterWeights) and not args and not named
        done = optimizer in self.overflown or optimizer in self.stepped
        # times an inverse above 1, a finite gradient may overflow
        gradients = optimizer.waiting() if alone and not done and self.factor >= 1 else None
        if gradients is None:
            return super().step(optimizer, *args, **named)
        with torch.no_grad():
            found = self.multiply([g for g in gradients if g.numel()], torch.ones(()))
        self.overflown[optimizer] = checks.agreed(self, found, gradients, "")
        del gradients  # the step may consume them
        optimizer.inverse = self.factor.double().reciprocal().float()
        try:
            return super().step(optimizer)
        finally:
            optimizer.inverse = None
