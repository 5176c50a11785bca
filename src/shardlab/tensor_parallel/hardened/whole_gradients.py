"""Gradients of what stays whole, and is a sum over ranks.

Sequence parallelism: each rank has those of its own tokens.

    loss.backward()
    sum_gradients(optimizer, group)        # once a step, before clipping
    optimizer.step()

Without it each rank sees all tokens, and these gradients are whole already, but for what computes
with parts: WholeParameters adds them up within backward, and looks at the others once.
"""

from collections.abc import Callable, Iterable
from functools import cache, partial, update_wrapper

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakTensorKeyDictionary

from ...common.agreement import unlogged
from ...common.shards import groups_of, of_own_tokens, updated_by
from ...common.torch_internals import active_fake_mode, disable_modes, never_compiled, version
from ..core import leave
from ..core_sequence import Paired
from .checks import CannotSplit
from .layers import AmongRanks

summed_versions = WeakTensorKeyDictionary()  # gradient -> its version after it was summed


@torch.no_grad()
def sum_gradients(optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None):
    """Add up, over the group, the gradients of the parameters that are whole in the group: each
    rank has the gradients of its own tokens. There is one all-reduce for each dtype.

    Call it once a step, after the last backward and before clipping, on all ranks. The
    optimizer may also be one of shards: ZeRO's gradients are summed as shards. A step without it
    is refused: copies would drift apart. Raises CannotSplit for another group than the one over
    which the model was cut, for a plan without sequence_parallel, and for gradients that were
    summed already, as after each microbatch."""
    group, updated = group or dist.group.WORLD, updated_by(optimizer)
    check_own_tokens(group, updated)
    flats: dict[torch.dtype, list[Tensor]] = {}
    for parameter in updated:
        if parameter.grad is not None and group not in groups_of(parameter):
            flats.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    check_first(flats)
    for gradients in flats.values():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(part.view(gradient.shape))
    for gradients in flats.values():
        summed_versions.update({gradient: version(gradient) for gradient in gradients})


def check_first(flats: dict[torch.dtype, list[Tensor]]):
    """Raise CannotSplit if a gradient was summed and not made anew: zeros and a backward write into
    it twice, clipping or a further microbatch once."""
    for gradients in flats.values():
        if any(version(g) - summed_versions.get(g, -2) < 2 for g in gradients):
            raise CannotSplit(
                "sum_gradients a second time since the last zero_grad(): gradients of what is whole"
                " would be too large by the number of ranks; call it once a step, after the last"
                " backward, and zero_grad() after the step."
            )


def watch_sums(parameters: Iterable[Tensor], group: dist.ProcessGroup | None):
    """No optimizer steps with these parameters of a model whose ranks have own tokens before their
    gradients are summed."""
    for parameter in parameters:
        of_own_tokens[parameter] = group or dist.group.WORLD
    watch_steps_of_own_tokens()


@cache
def watch_steps_of_own_tokens():
    register_optimizer_step_pre_hook(check_summed)
    register_optimizer_step_post_hook(forget_sum)


def check_summed(optimizer: torch.optim.Optimizer, *_):
    """Raise CannotSplit if sum_gradients has not been called since the step before."""
    whole = first_of_own_tokens(optimizer)
    if whole is not None and whole.grad not in summed_versions:
        raise CannotSplit(
            f"step() with a gradient of shape {list(whole.shape)} that is of this rank's tokens"
            " alone, so copies of one parameter would drift apart: call sum_gradients(optimizer,"
            " group) once a step, after the last backward."
        )


def forget_sum(optimizer: torch.optim.Optimizer, *_):
    if (whole := first_of_own_tokens(optimizer)) is not None:
        summed_versions.pop(whole.grad, None)


def first_of_own_tokens(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The first parameter whose gradient has to be summed. It speaks for all: they are summed
    together."""
    parameters = [p for param_group in optimizer.param_groups for p in param_group["params"]]
    group = next((of_own_tokens[p] for p in parameters if p in of_own_tokens), None)
    if group is None or dist.get_world_size(group) == 1:
        return None
    whole = (p for p in parameters if p.grad is not None and group not in groups_of(p))
    return next(whole, None)


def check_own_tokens(group: dist.ProcessGroup, updated: list[Tensor]):
    """Raise CannotSplit unless this optimizer's model was cut over the group, whose ranks have own
    tokens. ZeRO cuts a part once more: its group is a later one."""
    known = {of_own_tokens[p] for p in updated if p in of_own_tokens}
    if not known and any(groups_of(p)[:1] == (group,) for p in updated):
        raise CannotSplit(
            "every rank of this group sees all tokens, so gradients of what is whole are whole, and"
            " a sum would be too large by the number of ranks: leave sum_gradients out, or cut by"
            " sequence_parallel(plan)."
        )
    if known != {group}:
        ranks = dist.get_process_group_ranks(group)
        raise CannotSplit(
            f"no tensor parallelism cut this model over the ranks {ranks} of this group: give"
            " sum_gradients the group that apply_tensor_parallel had, such as mesh.tp.group."
        )


# --- within backward ------------------------------------------------------------------------------


class WholeParameters(AmongRanks):
    """The own parameters of a module, which are whole on all ranks. A gradient is a sum over them
    where the module computes with parts, as the first gradient that is not zero shows. It `may_sum`
    inside of Around, where there may be parts."""

    def __init__(self, name: str, module: nn.Module, group, may_sum: bool):
        self.name, self.group, self.may_sum = name, group, may_sum
        own = (key for key, _ in module.named_parameters(recurse=False))
        self.is_sum: dict[str, bool | None] = dict.fromkeys(own)
        run = partial(self.forward, module, module.forward)
        module.forward = update_wrapper(run, module.forward)

    def forward(self, module: nn.Module, compute: Callable, *given, **named):
        if not torch.is_grad_enabled() or all(known is False for known in self.is_sum.values()):
            return compute(*given, **named)
        return self.watched(module, compute, given, named)

    @never_compiled
    def watched(self, module: nn.Module, compute: Callable, given: tuple, named: dict):
        """In forward the attributes are views, whose gradients come by here."""
        before = dict(vars(module))
        watched = [key for key, known in self.is_sum.items() if known is not False]
        view_of = lambda parameter, _: parameter.view_as(parameter)
        views = {
            key: Paired.apply(getattr(module, key), self.group, view_of, partial(self.summed, key))
            for key in watched
        }
        vars(module).update(views)
        try:
            return compute(*given, **named)
        finally:
            for key in watched:
                del vars(module)[key]
            vars(module).update({key: before[key] for key in watched if key in before})

    def summed(self, key: str, gradient: Tensor, group) -> Tensor:
        if self.is_sum[key] is None and active_fake_mode() is None:
            self.look(key, gradient)
        return leave(gradient, group) if self.is_sum[key] else gradient

    def look(self, key: str, gradient: Tensor):
        """Learn whether the ranks' gradients differ: then |sum|^2 < n sum of |.|^2."""
        some = gradient.detach().flatten()[:: 1 + gradient.numel() // LOOKED_AT].double()
        with disable_modes(), unlogged(), torch.no_grad():
            sums = torch.cat([some, some.square().sum().view(1)])
            dist.all_reduce(sums, group=self.group)
            apart = 1 - sums[:-1].square().sum() / (sums[-1] * dist.get_world_size(self.group))
            apart = apart.item()  # nan for zeros, and for what is not finite: look again
        if apart > ALIKE_WITHIN and not self.may_sum:
            raise CannotSplit(
                f"{self.name}.{key} is whole, and the ranks' gradients of it differ: if its module"
                " computes with parts, as between Columns and Rows, name a module around it"
                " Around(); if not, ranks compute with other data."
            )
        if apart == apart:
            self.is_sum[key] = apart > ALIKE_WITHIN


LOOKED_AT = 1 << 16  # elements of a gradient
ALIKE_WITHIN = 1e-8  # the square of a relative difference
