"""A context that knows what was cut, and a model that is compared between its ranks.

Four mistakes train silently on something else, so each of them raises: tokens that were not cut by
own(), ranks that cut different batches, walls between documents of which the context knows nothing,
and gradients that are averaged over data-parallel ranks alone.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...common.agreement import OF_TORCH, agree, batch_of, facts_of, fingerprint, hand_out, unlogged
from ...common.collective_wire import Group
from ...common.shards import cut_among
from ...common.torch_internals import active_fake_mode, disable_modes, local_tensor, never_compiled
from ...gpt import CoreAttention, PositionIds
from ...tensor_parallel.hardened.first_forward import DROPS
from ...tensor_parallel.hardened.layers import AmongRanks
from .. import core
from ..core_masks import Causal

REPLACED = CoreAttention, PositionIds
SOME = 64  # elements of each parameter that are compared


class Context(core.Context):
    """The core's, which compares the first batch that ranks cut. Copies of a model share it, so
    positions are those of the copies, too."""

    def __init__(self, group: Group = None, zigzag: bool = True, rule: Causal | None = None):
        super().__init__(group, zigzag, rule)
        self.length, self.compared = 0, False  # of the sequences that were cut last

    def __deepcopy__(self, memo: dict) -> "Context":
        return self

    def own(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens. Raises ValueError for a length that 2c does not divide, and the first
        time for ranks that cut different batches."""
        if not self.compared and is_real(self.group):
            rule = "the ranks of a context group cut the same sequences, so choose them by mesh.dp"
            with disable_modes(), unlogged():
                agree([batch_of(x)], self.group, ValueError, rule)
        self.compared, self.length = True, x.shape[dim]
        return super().own(x, dim)

    @never_compiled
    def forward(self, table: Tensor, sequence: int) -> Tensor:
        if sequence * self.ranks != self.length:
            raise ValueError(
                f"{sequence} tokens came to a model on {self.ranks} ranks, which have cut sequences"
                f" of {self.length}: give it what context.own() returns."
            )
        if self.positions is not None and self.positions.shape[-1] != self.length:
            raise ValueError(
                f"positions {list(self.positions.shape)} of sequences of {self.length}: give those"
                " of whole rows, which own() has not cut."
            )
        return super().forward(table, sequence)


def is_real(group: Group) -> bool:
    """Whether ranks and values exist that can be compared."""
    return active_fake_mode() is None and dist.get_backend(group) != "fake"


def context_parallel(model: nn.Module, context: core.Context, mix: type[core.Mix]) -> nn.Module:
    """Put a mix and this rank's positions wherever a model has attention and positions of gpt.py,
    in place. Before or after tensor parallelism, before recomputation, replicas and shards.
    Parameters stay as they are; ranks of the group begin with its rank 0's, where they are whole.

    Gradients are averaged over data and context: give replicas and shards the group
    mesh.line("dp", "cp").group. The first steps compare ranks' parameters. Raises ValueError, on
    all ranks or on none, for a model that cannot be cut, and in a forward for ranks that have
    drifted apart."""
    rule = "the ranks of a context group have the same model"
    facts = [fact for fact in facts_of(model) if not fact.endswith(OF_TORCH)]
    agree(facts, context.group, ValueError, rule, complaint_of(model))
    if is_real(context.group):
        whole = [p for p in model.parameters() if has_whole(p)]
        hand_out([*whole, *model.buffers()], context.group)
        FirstSteps(model, context.group)
    for name, module in [*model.named_modules()]:
        if type(module) is PositionIds:
            model.set_submodule(name, context)
        elif type(module) is CoreAttention:
            module.__class__ = mix  # whoever holds the module holds the mix
            module.context = context
    return model


def has_whole(parameter: Tensor) -> bool:
    """Whether ranks of a context group have all of the parameter, and values."""
    shard = local_tensor(parameter) is not parameter or cut_among(parameter)
    return not shard and not parameter.is_meta


def complaint_of(model: nn.Module) -> str:
    """Why a model cannot be cut; empty if it can."""
    modules = dict(model.named_modules())
    drops = {module.p for module in modules.values() if isinstance(module, DROPS)}
    if any(drops):
        return f"dropout = {max(drops)}: ranks would draw different masks: give it 0."
    for name, module in modules.items():
        kind = type(module)
        if isinstance(module, REPLACED) and kind not in REPLACED:
            return (
                f"{name} is a {kind.__name__} already: cut the plain model, once, and give the"
                " context the positions of packed rows."
            )
    if not any(type(module) is CoreAttention for module in modules.values()):
        return f"{type(model).__name__} has no CoreAttention of gpt.py: nothing would mix tokens."
    return ""


class FirstSteps(AmongRanks):
    """Compares parameters of the ranks before a few training forwards. Steps lie between them, so
    ranks that average among others have drifted apart by then."""

    at = 1, 3, 9

    def __init__(self, model: nn.Module, group: Group):
        self.group, self.calls = group, 0
        model.register_forward_pre_hook(self)

    @never_compiled
    def __call__(self, model: nn.Module, given: tuple):
        self.calls += torch.is_grad_enabled()
        if torch.is_grad_enabled() and self.calls in self.at and is_real(self.group):
            with torch.no_grad(), disable_modes(), unlogged():
                facts = [
                    f"{name} that begins with {fingerprint(p.flatten()[:SOME])}"
                    for name, p in model.named_parameters()
                    if has_whole(p)
                ]
                rule = "average gradients over the ranks of data and context parallelism together"
                agree(facts, self.group, ValueError, rule)
