"""Sequence parallelism: what tensor parallelism leaves whole is cut by tokens.

    plan = sequence_parallel(gpt_plan(config))
    apply_tensor_parallel(model, plan, group)
    ...
    loss.backward()
    sum_gradients(optimizer, group)        # once a step, before clipping
    optimizer.step()

The idea is core_sequence.py's, here as a change of any plan. Without `regather` autograd keeps the
gathered x [B, S, H] of each module; with it backward gathers once more.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...common.collective_wire import place
from ...common.outer_hooks import OuterHooks
from ...common.torch_internals import storage_key
from ...gpt import Dropout, PositionIds
from .checks import CannotSplit
from .layers import CutModule, OwnDropout, Parts
from .pairs import begin_gather, gather, in_order, reduce_scatter
from .plan import Around, InsideExperts, Rows, TensorPlan, Tokens, Whole


def sequence_parallel(plan: TensorPlan, regather: bool = True) -> dict[str, tuple[Whole, ...]]:
    """The plan with sequence parallelism: each rank has only its own tokens between the modules
    that are cut."""

    def own_tokens(entry: Whole) -> Whole:
        if isinstance(entry, InsideExperts):
            raise CannotSplit(
                "sequence parallelism gives each rank its own tokens, and experts that are cut by"
                " columns need those of all ranks: take gpt_plan(config) alone, or one rank of"
                " tensor parallelism and more that divide the experts."
            )
        if isinstance(entry, Around):
            return AroundGathered(regather)
        if isinstance(entry, Rows | Tokens):
            return replace(entry, join=reduce_scatter)
        return OwnTokens() if type(entry) is Whole else entry

    return {
        name: tuple(map(own_tokens, entry if isinstance(entry, tuple) else (entry,)))
        for name, entry in plan.items()
    }


class OwnTokens(Whole):
    """Computes with own tokens. Most modules need no change for it."""

    divides_tokens = True

    def split(self, module: nn.Module, parts: Parts) -> nn.Module:
        if isinstance(module, Dropout | nn.Dropout):
            return OwnDropout(module.p, 1, parts.group)  # of [B, S/t, H]
        return OwnRows(parts.group, module) if isinstance(module, PositionIds) else module


class OwnRows(CutModule):
    """gpt.PositionIds of a rank's own tokens, of those whose positions another one knows."""

    def __init__(self, group, rows: PositionIds):
        super().__init__(group, {})
        self.rows = rows

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        n, me = place(self.group)
        own = sequence // n
        return self.rows(table, sequence)[..., me * own : (me + 1) * own, :]


@dataclass(frozen=True)
class AroundGathered(Around):
    """A module that takes all tokens, among modules that have own ones."""

    divides_tokens = True
    regather: bool = True

    def run(self, module: nn.Module, compute: Callable, group, x: Tensor) -> Tensor:
        whole = gather(x, group)
        if not self.regather:
            return compute(whole)
        with Regathered(whole, x, group).hooks():
            return compute(whole)

    def beside(self, other, group):
        return other  # the gradients of what is whole are terms of sum_gradients()


class Regathered:
    """Own tokens between forward and backward, where autograd would keep all, or a view of them.
    All tokens from the first use in backward to the last: the MLP's gate and its other factor use
    them both. What else autograd keeps goes to outer hooks."""

    def __init__(self, whole: Tensor, own: Tensor, group):
        self.outer, self.group = OuterHooks(), group
        self.kept = self.outer.pack(own)
        # a key, as autograd keeps the hooks until backward
        self.memory = storage_key(whole.untyped_storage())
        self.uses = self.used = 0
        self.coming = self.now = None

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> tuple:
        if storage_key(tensor.untyped_storage()) == self.memory:
            self.uses += 1
            return None, (tensor.shape, tensor.stride(), tensor.storage_offset())
        return self.outer.pack(tensor)

    def unpack(self, packed: tuple) -> Tensor:
        other, about = packed
        return self.outer.unpack(packed) if other is not None else self.whole().as_strided(*about)

    def ask(self):
        """Begin to gather, if backward will use the tokens."""
        if self.uses and self.coming is None and self.now is None:
            self.coming = begin_gather(self.outer.unpack(self.kept, compared=False), self.group)

    def whole(self) -> Tensor:
        if self.now is None:
            self.ask()
            (parts, wait), self.coming = self.coming, None
            wait()
            self.now = in_order(parts)
        whole, self.used = self.now, self.used + 1
        if self.used == self.uses:
            self.now, self.used = None, 0
        return whole
