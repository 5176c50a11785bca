"""32 bits remember: an optimizer on fp32 copies of 16-bit weights.

    model.half()
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)

A 16-bit weight loses an update that is smaller than half of its spacing, at every step anew. The
fp32 copy takes it, and the weight is the rounding of the copy.

Make MasterWeights after DistributedDataParallel and tensor parallelism. Stages 1 and 2 of ZeRO make
it of their shards: zero.shard(model, MasterWeights, stage=1, of=AdamW). In stage 3 the shards are
fp32 already.

MasterWeights stands alone beside the core's: it is a torch.optim.Optimizer with groups and a state,
and makes few gradients in fp32 at a time, so that it shares no method with the core.

Micikevicius et al. 2018.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...common.torch_internals import storage_key, version
from .. import core
from .optimizer_wrapper import (
    CannotCopy,
    OptimizerOfCopies,
    check_still_frozen,
    check_still_wide,
)


class MasterWeights(OptimizerOfCopies):
    """Any optimizer that updates one parameter after the other, on fp32 copies of 16-bit
    parameters.

    params          parameters, or groups of them, as torch.optim takes them
    of              torch.optim.AdamW, ...; **settings are its arguments
    at_once_bytes   so many bytes of fp32 gradients are made at a time; by default 8 MiB, on a GPU
                    128 MiB, and at most a third of all
    hardened        False gives the core's MasterWeights: of parameters alone, all at once

    If somebody else writes a parameter, as load_state_dict() does, its master takes the values. A
    write through `.data` or by a collective is found before the first step only: later, write to
    the parameter itself under torch.no_grad().

    A scaler or a norm that looks at all gradients finds them in fp32, and the 16-bit ones are
    gone. fp32 parameters are their own masters; frozen ones have none. The param_groups are those
    of the optimizer inside, which knows the masters alone."""

    def __new__(cls, params, of, *, at_once_bytes=None, hardened: bool = True, **settings):
        if hardened:
            return super().__new__(cls)
        params = list(params)
        named = not all(isinstance(each, Tensor) for each in params)
        if cls is not MasterWeights or named or at_once_bytes is not None:
            raise CannotCopy(
                f"{cls.__name__} with hardened=False: the core takes parameters, not groups or"
                " names of them, updates all at once and keeps their copies and moments in fp32;"
                " leave hardened=False out."
            )
        return core.MasterWeights(params, of, **settings)

    @torch.no_grad()
    def take_gradients(self):
        """The masters get all gradients, in fp32, and the parameters lose them. Called after each
        microbatch, it adds them up in fp32."""
        for parameter, master in self.copies:
            if parameter is not master and parameter.grad is not None:
                gradient, parameter.grad = self.in_fp32(parameter), None
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None):
        """PyTorch's optimizers skip a parameter without a gradient. So the inner optimizer updates
        one pile of masters after another, and few gradients exist twice at a time."""
        check_still_frozen(self.frozen)
        check_still_wide(self.copies)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        taken = {master: master.grad for _, master in self.copies}
        for master in taken:
            master.grad = None
        for pile in self.piles():
            for parameter, master in pile:
                self.before_update(parameter, master)
                master.grad = taken[master]
                if parameter is not master and parameter.grad is not None:  # came since then
                    late = self.in_fp32(parameter)
                    master.grad = late if master.grad is None else master.grad + late
            self.inner.step()
            for parameter, master in pile:
                self.after_update(parameter, master)
                master.grad = None
        for master, gradient in taken.items():
            master.grad = gradient
        return loss

    def in_fp32(self, parameter: nn.Parameter) -> Tensor:
        return parameter.grad.float()

    def copy_of(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype in (torch.float32, torch.float64):
            return parameter
        return nn.Parameter(parameter.detach().float())

    def before_update(self, parameter: nn.Parameter, master: nn.Parameter):
        """Somebody may have written into the parameter: a checkpoint, ranks that begin alike. Where
        it still is the rounding of its master, the master keeps what rounding takes away."""
        if parameter is not master and write_count(parameter) != self.versions.get(parameter):
            same = master.to(parameter.dtype) == parameter
            master.copy_(torch.where(same, master, parameter))

    def after_update(self, parameter: nn.Parameter, master: nn.Parameter):
        if parameter is not master:
            parameter.copy_(master)
        self.versions[parameter] = write_count(parameter)


def write_count(parameter: nn.Parameter) -> tuple[int, int]:
    """Other numbers after a write, but not after one through `.data` or by a collective."""
    return version(parameter), storage_key(parameter.untyped_storage())
