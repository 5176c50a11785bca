"""Sequence parallelism: what tensor parallelism leaves whole is cut by tokens.

    plan = sequence_parallel(gpt_plan(config))
    apply_tensor_parallel(model, plan, group)
    ...
    loss.backward()
    sum_gradients(optimizer, group)        # once a step, before clipping
    optimizer.step()

Norms, residual additions, dropout and the bias of a row layer treat each token by itself, so a rank
needs S/t tokens of them. An all-reduce is a reduce-scatter and an all-gather: `leave` keeps the
first half, `enter` the second, and as much is sent as before.

What a gathered layer keeps. Backward of xW needs x, so autograd keeps the gathered x [B, S, H] on
every rank, and up to half of the saving is lost. With `regather` a rank keeps its own tokens,
and gathers again in backward: one message more, and everything that is kept is cut by t.

Parameters that are whole see own tokens only, so their gradients are parts of a sum. Korthikanti et
al. 2022, section 4.2.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from ..collective_wire import place
from ..gpt import Dropout, PositionIds
from ..shards import Groups, groups_of, groups_of_shards, ranks_in_both, updated_by
from ..torch_internals import hooks_of_saved_tensors, storage_key, version
from .checks import CannotSplit
from .layers import CutModule, OwnDropout, Parts
from .pairs import all_gathered, gather, reduce_scatter
from .plan import Around, Rows, TensorPlan, Tokens, Whole

own_tokens_of_the_sum = partial(reduce_scatter, dim=1)  # of [B, S, H]


def sequence_parallel(plan: TensorPlan, regather: bool = True) -> dict[str, tuple[Whole, ...]]:
    """The same plan, but each rank has only its own tokens between the modules that are cut."""

    def own_tokens(entry: Whole) -> Whole:
        if isinstance(entry, Around):
            return AroundGathered(regather)
        if isinstance(entry, Rows | Tokens):
            return replace(entry, join=own_tokens_of_the_sum)
        return OwnTokens() if type(entry) is Whole else entry

    return {
        name: tuple(own_tokens(each) for each in (entry if isinstance(entry, tuple) else (entry,)))
        for name, entry in plan.items()
    }


class OwnTokens(Whole):
    """Computes with own tokens. Most modules need no change for it."""

    def split(self, module: nn.Module, parts: Parts) -> nn.Module:
        if isinstance(module, Dropout | nn.Dropout):
            return OwnDropout(module.p, 1, parts.group)  # of [B, S/t, H]
        return OwnRows(parts.group) if isinstance(module, PositionIds) else module


class OwnRows(CutModule):
    """gpt.PositionIds of a rank's own tokens."""

    def __init__(self, group):
        super().__init__(group, {})

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        n, me = place(self.group)
        own = sequence // n
        return table[me * own : (me + 1) * own]


@dataclass(frozen=True)
class AroundGathered(Around):
    """A module that takes all tokens, among modules that have own ones."""

    regather: bool = True

    def run(self, compute: Callable, group, x: Tensor) -> Tensor:
        whole = gather(x, 1, group)
        if not self.regather:
            return compute(whole)
        with keeps_own_tokens(whole, x, group):
            return compute(whole)


@contextmanager
def keeps_own_tokens(whole: Tensor, own: Tensor, group) -> Iterator[None]:
    """Within, autograd keeps `own` where it would keep `whole`, or a view of it. What else it keeps
    goes to the hooks that are set around it, such as checkpoint's or the ledger's."""
    pack_other, unpack_other = hooks_of_saved_tensors() or (Tensor.detach, None)
    kept = Regathered(own, group, pack_other, unpack_other)
    memory = storage_key(whole.untyped_storage())  # a key: autograd keeps the hooks till backward

    def pack(tensor):
        if storage_key(tensor.untyped_storage()) == memory:
            kept.uses += 1
            return None, (tensor.shape, tensor.stride(), tensor.storage_offset())
        return pack_other(tensor), version(tensor)

    def unpack(packed):
        other, about = packed
        if other is None:
            return kept.whole().as_strided(*about)
        if unpack_other is not None:
            return unpack_other(other)
        if version(other) != about:  # with hooks, autograd leaves this to them
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an"
                f" inplace operation: a tensor of shape {list(other.shape)} is at version"
                f" {version(other)}, expected version {about}."
            )
        return other

    with saved_tensors_hooks(pack, unpack):
        yield


class Regathered:
    """Own tokens between forward and backward. All tokens from the first use in backward to the
    last: the MLP's gate and its other factor use them both."""

    def __init__(self, own: Tensor, group, pack: Callable, unpack: Callable | None):
        self.kept, self.unpack, self.group = pack(own), unpack or (lambda kept: kept), group
        self.uses = self.used = 0
        self.now = None

    def whole(self) -> Tensor:
        if self.now is None:
            self.now = all_gathered(self.unpack(self.kept), 1, self.group)
        whole, self.used = self.now, self.used + 1
        if self.used == self.uses:
            self.now, self.used = None, 0
        return whole


# --- gradients of what is whole -------------------------------------------------------------------

summed = WeakTensorKeyDictionary()  # gradient -> its version after it was summed


@torch.no_grad()
def sum_gradients(optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None):
    """Add up, over the group, the gradients of the parameters that are whole in the group:
    each rank has the gradients of its own tokens. There is one all-reduce for each dtype;
    one for each parameter would be mostly latency.

    Call it once a step, after the last backward and before clipping, on all ranks. The
    optimizer may also be one of shards: ZeRO's gradients are summed as shards. Left out, it leaves
    copies that drift apart, without a word. Raises CannotSplit for another group than the one over
    which the model was cut, and for gradients that were summed already."""
    group, updated = group or dist.group.WORLD, updated_by(optimizer)
    check_cut_over(group, set(map(groups_of, updated)))
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
        summed.update({gradient: version(gradient) for gradient in gradients})


def check_first(flats: dict[torch.dtype, list[Tensor]]):
    """Raise CannotSplit if nothing has changed a gradient since it was summed."""
    for gradients in flats.values():
        if any(summed.get(gradient) == version(gradient) for gradient in gradients):
            raise CannotSplit(
                "sum_gradients a second time since the last backward: gradients of what is whole"
                " would be too large by the number of ranks; call it once a step, and zero_grad()"
                " after the step."
            )


def check_cut_over(group: dist.ProcessGroup, cuts: set[Groups]):
    """Raise CannotSplit unless the group is the one over which a model was cut. ZeRO cuts a part
    once more: its group is a later one."""
    cut_over = {groups[0] for groups in cuts if groups}
    others = [other for other in cut_over - {group} if ranks_in_both(other, group)]
    known = group in cut_over or any(group in groups for groups in groups_of_shards.values())
    if others or not known or any(group in groups[1:] for groups in cuts):
        ranks = dist.get_process_group_ranks(group)
        raise CannotSplit(
            f"no tensor parallelism cut this model over the ranks {ranks} of this group: give"
            " sum_gradients the group that apply_tensor_parallel had, such as mesh.tp.group."
        )
