"""An optimizer's moments in bf16 or in 8 bits between updates, in fp32 during one.

    optimizer = Bf16Moments(model.parameters(), torch.optim.AdamW, lr=1e-3)      # 2 + 2 bytes
    optimizer = EightBitMoments(model.parameters(), torch.optim.AdamW, lr=1e-3)  # 1 + 1, and scales

Both have master weights where the parameters have 16 bits, so a recipe may be bf16 throughout but
for the master copy.

Eight bits for a moment: a scale for each block of elements, and levels that are dense near zero,
at the squares of equal steps. Evenly spaced levels of Adam's second moment end in NaN: small ones
become zero, and the update divides by them. A moment that is not negative is therefore rounded up,
so that no divisor becomes zero that was not zero.

Dettmers et al. 2022, whose levels come from a table instead.
"""

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.torch_internals import step_without_hooks
from .hardened.master_weights import MasterWeights

BLOCK = 256  # elements that share a scale


class EightBits(NamedTuple):
    """A tensor in 8 bits: element i is (levels[i] / most) ** 2 * scales[i // block], with its
    sign."""

    levels: Tensor  # [E], int8 if elements can be negative, else uint8
    scales: Tensor  # [ceil(E / block)], fp32: the largest size in the block
    shape: torch.Size

    @classmethod
    def of(cls, tensor: Tensor, signed: bool) -> "EightBits":
        flat = tensor.detach().reshape(-1)
        blocks = F.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
        scales = blocks.abs().amax(1)
        parts = blocks / scales.clamp(min=torch.finfo(torch.float32).smallest_normal)[:, None]
        roots = parts.abs().sqrt()
        if signed:
            levels = (roots * 127).round().mul(parts.sign()).to(torch.int8)
        else:
            levels = (roots * 255).ceil().clamp(max=255)
            below = (levels - 1).clamp(min=0)  # of which the root may be just above a level
            enough = value_of(below, 255, scales[:, None]) >= blocks
            levels = torch.where(enough, below, levels).to(torch.uint8)
        return cls(levels.view(-1)[: flat.numel()].clone(), scales, tensor.shape)

    def tensor(self) -> Tensor:
        """fp32, in the shape that was packed. Packed again, it has the same levels."""
        most = 127 if self.levels.dtype is torch.int8 else 255
        scales = self.scales.repeat_interleave(BLOCK)[: self.levels.numel()]
        return value_of(self.levels.float(), most, scales).view(self.shape)


def value_of(levels: Tensor, most: int, scales: Tensor) -> Tensor:
    parts = levels / most
    return parts * parts.abs() * scales


class SmallMoments(MasterWeights):
    """A subclass defines kept(name, moment), the moment between updates, and moment(kept), which is
    fp32 again."""

    def before_update(self, parameter: nn.Parameter, master: nn.Parameter):
        super().before_update(parameter, master)
        for name, kept in self.moments_of(master):
            self.inner.state[master][name] = self.moment(kept)

    def after_update(self, parameter: nn.Parameter, master: nn.Parameter):
        super().after_update(parameter, master)
        for name, moment in self.moments_of(master):
            self.inner.state[master][name] = self.kept(name, moment)

    def moments_of(self, master: nn.Parameter) -> list[tuple[str, object]]:
        """The tensors that the optimizer keeps for each element: not its step counter."""
        states = self.inner.state[master].items() if master in self.inner.state else ()
        return [
            (name, kept) for name, kept in states if kept.shape == master.shape and name != "step"
        ]

    def state_dict(self) -> dict:
        """The states with moments in fp32, as any optimizer of this kind has them."""
        states = super().state_dict()
        for number, (_, master) in enumerate(self.copies):
            for name, kept in self.moments_of(master):
                states["state"][number] = {**states["state"][number], name: self.moment(kept)}
        return states

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict):
        super().load_state_dict(state_dict)
        for _, master in self.copies:
            for name, moment in self.moments_of(master):
                self.inner.state[master][name] = self.kept(name, moment)


class Bf16Moments(SmallMoments):
    """Moments in bf16: 8 bits of each number, over the range of fp32."""

    def kept(self, name: str, moment: Tensor) -> Tensor:
        return moment.bfloat16()

    def moment(self, kept: Tensor) -> Tensor:
        return kept.float()


class EightBitMoments(SmallMoments):
    """Moments in 8 bits with a scale for each block."""

    @cached_property
    def never_negative(self) -> set[str]:
        """The moments without a sign, by two trial steps of a positive and a negative weight with
        such gradients. To look at the moments themselves, the host would wait for the GPU."""
        found: dict[str, bool] = {}
        for param_group in self.inner.param_groups:
            trial = nn.Parameter(torch.tensor([1.0, -1.0], device=self.copies[0][1].device))
            optimizer = self.of([{**param_group, "params": [trial]}], **self.settings)
            for _ in range(2):
                trial.grad = trial.detach().clone()
                step_without_hooks(optimizer)
            for name, moment in optimizer.state[trial].items():
                if getattr(moment, "shape", None) == trial.shape:
                    found[name] = found.get(name, True) and bool((moment >= 0).all())
        return {name for name, positive in found.items() if positive}

    def kept(self, name: str, moment: Tensor) -> EightBits:
        return EightBits.of(moment, signed=name not in self.never_negative)

    def moment(self, kept: EightBits) -> Tensor:
        return kept.tensor()
