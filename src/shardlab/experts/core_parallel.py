"""The core of expert parallelism: ranks divide the experts, and rows travel to them.

    expert_parallel(model, group, everyone)   # in place: a rank of the group keeps E/e experts
    next_token_loss(model(inputs), targets).backward()          # of this rank's own sequences
    average_gradients(model, everyone, replicas)

`everyone` are the ranks that see different sequences, `group` those of them that divide the
experts, `replicas` those that keep the same ones. One module of a layer is replaced, and routers
count the rows of `everyone`. The module's way (Lepikhin et al. 2020, GShard) is

    all-to-all of counts    each rank hears how many rows come, and for which of its experts
    all-to-all of rows      as many to each rank as its experts were chosen
    compute                 own experts, on the rows of all ranks
    all-to-all of rows      back to where they came from

Letters as in core.py; e ranks.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..common.collective_wire import Group
from .core import Experts, Router, as_autocast, mixtures


class Exchange(torch.autograd.Function):
    """sent[i] rows to rank i, received[i] rows from it. Backward, the way back."""

    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.way_back = received, sent, group
        got = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(got, rows.contiguous(), received, sent, group=group)
        return got

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.way_back), None, None, None


class Scaled(torch.autograd.Function):
    """x, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class ExpertParallel(Experts):
    """This rank's experts, instead of all. They see the rows of e ranks, each of which has a mean
    loss of its own: divided by e, their gradients are those of the mean of these losses."""

    local = Experts.forward

    def __init__(self, experts: Experts, group: Group = None):
        nn.Module.__init__(self)
        self.group, self.ranks = group, dist.get_world_size(group)
        number, me = len(experts.up), dist.get_rank(group)
        if number % self.ranks:
            raise ValueError(f"{number} experts on {self.ranks} ranks: each keeps as many.")
        for name in self.NAMES:
            own, p = None, getattr(experts, name)
            if p is not None:
                own = nn.Parameter(p.detach().chunk(self.ranks)[me].clone(), p.requires_grad)
            self.register_parameter(name, own)

    def forward(self, rows: Tensor, counts: Tensor | None) -> Tensor:  # [R, H], [E]
        n, each = self.ranks, len(self.up)  # e, E/e
        if counts is None:  # as many rows for each expert: there is nothing to ask
            came = len(rows) // (n * each)
            sent = received = [came * each] * n
        else:
            came = torch.empty_like(counts)
            dist.all_to_all_single(came, counts, group=self.group)
            both = torch.stack([counts, came]).view(2, n, each)
            sent, received = both.sum(-1).tolist()  # the host waits for them
        rows = self.dispatch(as_autocast(rows), sent, received)  # rank by rank
        expert = torch.arange(each, device=rows.device).repeat(n)  # of each run of rows
        order = expert.repeat_interleave(came, output_size=len(rows)).argsort(stable=True)
        rows = Scaled.apply(rows[order], n)  # expert by expert
        made = self.local(rows, None if counts is None else came.view(n, each).sum(0))
        made = torch.empty_like(made).index_copy(0, order, Scaled.apply(made, 1 / n))
        return Exchange.apply(made, received, sent, self.group)

    def dispatch(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        return Exchange.apply(rows, sent, received, self.group)


class TotalCounts(nn.Module):
    """The counts of all ranks together: of a group, or of a grid's rows and columns."""

    def __init__(self, *groups: Group):
        super().__init__()
        self.groups = groups

    def forward(self, counts: Tensor) -> Tensor:  # [E]
        counts = counts.clone()
        for group in self.groups:
            dist.all_reduce(counts, group=group)
        return counts

    def __deepcopy__(self, memo: dict) -> "TotalCounts":
        return TotalCounts(*self.groups)  # a group is not copied


def count_everywhere(model: nn.Module, group: Group):
    """Routers count the rows of all these ranks, which see different tokens."""
    for router in model.modules():
        if isinstance(router, Router) and not isinstance(router.total, TotalCounts):
            router.total = TotalCounts(group)


def expert_parallel(model: nn.Module, group: Group = None, everyone: Group = None) -> nn.Module:
    """All mixtures of experts in a model, in place. Raises ValueError where e does not divide E."""
    for layer in mixtures(model):
        layer.experts = ExpertParallel(layer.experts, group)
    count_everywhere(model, everyone)
    return model


@torch.no_grad()
def average_gradients(model: nn.Module, everyone: Group = None, replicas: Group = None):
    """The mean over all ranks: what is whole has it over all, an expert over its replicas."""
    experts = {p for layer in mixtures(model) for p in layer.experts.parameters()}
    for p in model.parameters():
        group = replicas if p in experts else everyone
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)
