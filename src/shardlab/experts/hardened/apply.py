"""Experts divided among ranks, so that other techniques know them.

    axes = Mesh(dp=8).experts(4)                                 # on every rank
    apply_expert_parallel(model, axes)                           # in place
    net, optimizer = zero.shard(model, AdamW, stage=2, group=axes.everyone.group, lr=1e-3)

Order: tensor parallelism, experts, recompute, pipeline, then data parallelism or ZeRO, which
average and shard an expert among its replicas.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from ...common.agreement import agree, facts_of, hand_out
from ...common.backward import averaged
from ...common.before_step import holder_of, replaced, watch_steps
from ...common.collective_wire import Group, all_gather_single
from ...common.shards import Replicated, groups_of, groups_of_shards, replicated_experts, stages_of
from ...common.torch_internals import active_fake_mode, assert_without_wait, watch_fsdp
from ...mesh import ExpertAxes
from ...tensor_parallel.hardened.layers import Cut, CutModule
from ..core import Experts, mixtures
from ..core_parallel import ExpertParallel, count_everywhere
from .beside import forward_beside, travel_beside
from .split import SplitExperts, split_forward
from .torch_replicas import count_in_torch_shards


class CannotDivide(ValueError):
    """Why the experts of a model cannot be divided among ranks: one sentence."""


def apply_expert_parallel(model: nn.Module, axes: ExpertAxes, overlap: bool = False) -> nn.Module:
    """Divide the experts of all layers, in place; make the optimizer afterwards. All ranks begin
    with the parameters and buffers of the first of `everyone`. With `overlap`, shared experts
    compute while rows travel. Raises CannotDivide on all ranks or on none."""
    everyone = axes.everyone.group
    facts, rule = [f"ep = {axes.divide.size}", *facts_of(model)], "all ranks divide the same model"
    agree(facts, everyone, CannotDivide, rule, complaint_of_division(model, axes))
    hand_out([*model.parameters(), *model.buffers()], everyone)
    watch_steps()
    watch_fsdp(count_in_torch_shards)
    for layer in mixtures(model):
        whole = layer.experts
        layer.experts = DividedExperts(whole, axes)
        if overlap and layer.shared is not None:
            layer.forward = partial(forward_beside, layer)
        replaced(whole.parameters(), by="apply_expert_parallel")
    count_everywhere(model, everyone)
    return model


def complaint_of_division(model: nn.Module, axes: ExpertAxes) -> str:
    """The fault of this rank, in words; empty if there is none."""
    layers, ep, known = mixtures(model), axes.divide.size, averaged(model)
    if not layers:
        return f"this {type(model).__name__} has no experts: build it with GPTConfig(experts=...)."
    for name, p in model.named_parameters():
        if p in replicated_experts:
            return f"{name} is divided among ranks already: divide the plain model, once."
        if p in known or stages_of(p) or holder_of(p) is not None:
            return (
                f"{name} has replicas, a pipeline or an optimizer of shards already: divide the"
                " experts first, and make these of the result."
            )
    numbers = [len(layer.experts.up) for layer in layers]
    uneven = next((number for number in numbers if number % ep), None)
    return f"{uneven} experts on ep = {ep} ranks: each keeps as many." if uneven else ""


class DividedExperts(CutModule, ExpertParallel):
    """The core's. Its parameters are known as parts, of which replicas have the same. `meanwhile`
    is to be computed while rows travel, and then its result."""

    meanwhile = None

    def __init__(self, whole: Experts, axes: ExpertAxes):
        ExpertParallel.__init__(self, whole, axes.divide.group)
        self.axes, self.inside, self.tp = axes, [], None
        if isinstance(whole, SplitExperts):
            self.tp, self.inside = whole.group, [(*cut, whole.group) for cut in whole.cuts.items()]
        self.groups = {name: groups_of(p) for name, p in whole.named_parameters()}
        self.know_cuts(axes.divide.group, dict.fromkeys(self.groups, Cut(0, len(whole.up))))
        self.converted()

    def forward(self, rows: Tensor, counts: Tensor | None) -> Tensor:  # [R, H], [E]
        if counts is None:
            self.check_slots(rows)
        return ExpertParallel.forward(self, rows, counts)

    def check_slots(self, slots: Tensor):
        """Ranks whose messages have unequal sizes would wait for each other and never end. Raises
        CannotDivide on all of them; on a GPU, where the host does not wait, the kernel fails."""
        own = torch.full((1,), len(slots), device=slots.device)
        there = own.new_empty(self.ranks)
        all_gather_single(there, own, group=self.group)
        rule = "with a capacity, ranks that divide the experts have equally many tokens."
        if slots.is_cuda:
            assert_without_wait((there == own).all(), rule)
        elif active_fake_mode() is None and (there != own).any():
            raise CannotDivide(f"rows of capacity of each rank are {there.tolist()}: {rule}")

    def dispatch(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        if self.meanwhile is None:
            return super().dispatch(rows, sent, received)
        way = sent, received, self.group
        rows, self.meanwhile = travel_beside(rows, *way, self.meanwhile)
        return rows

    def local(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        if self.tp is None:
            return super().local(rows, counts)
        return split_forward(self, rows, counts, self.tp)

    def every_cut(self) -> Iterator[tuple[str, Cut, Group]]:
        yield from super().every_cut()
        yield from self.inside

    def converted(self):
        for name, part in self.named_parameters(recurse=False):
            if part not in replicated_experts:
                axes = self.axes
                groups_of_shards[part] = (*self.groups[name], axes.divide.group)
                replicated_experts[part] = Replicated(
                    axes.replicas.group, axes.everyone.group, axes.divide.group
                )

    def __deepcopy__(self, memo: dict):
        for kept in (self.axes, self.groups, self.inside, self.tp):
            memo[id(kept)] = kept
        return super().__deepcopy__(memo)
