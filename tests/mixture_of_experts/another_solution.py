"""The assignment on experts, as a learner may solve it: a list of ranks, and a loop."""

import copy

import torch
import torch.distributed as dist
from torch import nn


def route(scores, bias, k):
    chosen = (scores + bias).argsort(dim=-1, descending=True, stable=True)[:, :k]
    gates = torch.gather(scores, -1, chosen)
    return chosen, gates / gates.sum(-1, keepdim=True)


class Travel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, sent, received, group):
        ctx.back = received, sent, group
        got = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(got, rows.contiguous(), received, sent, group=group)
        return got

    @staticmethod
    def backward(ctx, gradient):
        received, sent, group = ctx.back
        return Travel.apply(gradient, received, sent, group), None, None, None


class ExpertParallel(nn.Module):
    def __init__(self, experts, group=None):
        super().__init__()
        self.n, self.group = dist.get_world_size(group), group
        if len(experts.up) % self.n:
            raise ValueError(f"{len(experts.up)} experts on {self.n} ranks")
        self.own = copy.deepcopy(experts)
        for parameter in self.own.parameters():
            parameter.data = parameter.data.chunk(self.n)[dist.get_rank(group)].clone()
            parameter.register_hook(lambda gradient: gradient / self.n)

    def forward(self, rows, counts):
        came = torch.empty_like(counts)
        dist.all_to_all_single(came, counts, group=self.group)
        came = came.view(self.n, -1)
        sent, received = counts.view(self.n, -1).sum(1).tolist(), came.sum(1).tolist()
        got = Travel.apply(rows, sent, received, self.group)
        runs = got.split(came.flatten().tolist())
        each = came.shape[1]
        order = [rank * each + expert for expert in range(each) for rank in range(self.n)]
        made = self.own(torch.cat([runs[place] for place in order]), came.sum(0))
        made = made.split([len(runs[place]) for place in order])
        back = torch.cat([made[order.index(place)] for place in range(len(runs))])
        return Travel.apply(back, received, sent, self.group)
