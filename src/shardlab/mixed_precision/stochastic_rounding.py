"""bf16 without master weights: an update that is too small to move a weight moves some of them.

    optimizer = StochasticRounding(model.parameters(), torch.optim.AdamW, lr=1e-3)

An update u is rounded up with a probability of u / spacing, so the weight is right on average.

    saves    the fp32 copy: 4 bytes a parameter
    costs    noise, which is larger than the drift of T updates until T = spacing / u
    fails    where each rank draws numbers of its own: weights of replicas differ, unless their
             generators have the same seed. A shard of ZeRO has one owner

Gupta et al. 2015; Zamirai et al. 2020 for bf16.
"""

import torch
from torch import Tensor, nn

from .hardened.master_weights import CannotCopy, MasterWeights

LOW_BITS = 0xFFFF  # of an fp32: the bits that bf16 does not have


def round_stochastically(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """fp32 values as bf16, rounded up or down with the probabilities that make the mean right.

    A bf16 is the upper half of an fp32. A random number below one spacing is added to the lower
    half, which is then cut off: the larger the lower half, the more often the sum carries into the
    upper half. Where the sum is not finite, the value is rounded to the nearest bf16 instead."""
    if values.dtype is not torch.float32:
        raise TypeError(f"values are {values.dtype}: give fp32, whose bits are rounded.")
    noise = torch.empty_like(values, dtype=torch.int32).random_(LOW_BITS + 1, generator=generator)
    rounded = ((values.view(torch.int32) + noise) & ~LOW_BITS).view(torch.float32)
    return torch.where(rounded.isfinite(), rounded, values).bfloat16()


class StochasticRounding(MasterWeights):
    """MasterWeights whose copies are there during the update alone: of as many parameters at a time
    as `at_once_bytes` says. `generator` is of the parameters' device; shardlab.saving saves
    PyTorch's own, so give the state of another one to save as `extra`."""

    def __init__(self, params, of: type, *, generator: torch.Generator | None = None, **settings):
        self.generator = generator
        super().__init__(params, of, **settings)

    def copy_of(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype is not torch.bfloat16:
            raise TypeError(f"a parameter is {parameter.dtype}: stochastic rounding is for bf16.")
        master = super().copy_of(parameter)
        master.data = master.new_empty(0)
        return master

    def take_gradients(self):
        raise CannotCopy(
            "StochasticRounding has no copies between steps that could have fp32 gradients: clip"
            " and look at the gradients of the parameters, as torch.nn.utils.clip_grad_norm_ does."
        )

    def before_update(self, parameter: nn.Parameter, master: nn.Parameter):
        master.data = parameter.detach().float()

    def after_update(self, parameter: nn.Parameter, master: nn.Parameter):
        parameter.copy_(round_stochastically(master.detach(), self.generator))
        master.data = master.new_empty(0)
