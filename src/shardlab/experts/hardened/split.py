"""Tensor parallelism inside of experts: each rank has some inner columns of every one.

Ranks of tensor parallelism see the same tokens and choose alike, so the router stays whole. What
comes out of the experts is whole again before the gates weight it: so gates and router have whole
gradients. An all-reduce has 2R vectors of H elements where that of a dense MLP has 2T.
"""

from torch import Tensor, nn

from ...common.collective_wire import Group
from ...tensor_parallel.core import enter, leave
from ...tensor_parallel.hardened.layers import Cut, CutModule, Parts
from ..core import Experts, biased, product


class SplitExperts(CutModule, Experts):
    """Experts of a width F/t. The bias behind `down` is whole and added after the sum."""

    def __init__(self, whole: Experts, parts: Parts):
        nn.Module.__init__(self)
        inner = whole.up.shape[2]
        matrix, vector = Cut(2, inner), Cut(1, inner)
        cuts = dict(up=matrix, gate=matrix, up_bias=vector, gate_bias=vector, down=vector)
        for name in self.NAMES:
            p = getattr(whole, name)
            self.register_parameter(name, parts(p, cuts[name]) if name in cuts else p)
        there = {name: cut for name, cut in cuts.items() if getattr(whole, name) is not None}
        self.know_cuts(parts.group, there)

    def forward(self, rows: Tensor, counts: Tensor | None) -> Tensor:  # [R, H], [E]
        return split_forward(self, rows, counts, self.group)


def split_forward(experts: Experts, rows: Tensor, counts: Tensor | None, group: Group) -> Tensor:
    inner = experts.inner(enter(rows, group), counts)  # [R, F/t]
    made = leave(product(inner, experts.down, counts), group)  # [R, H]
    return biased(made, experts.down_bias, counts)
