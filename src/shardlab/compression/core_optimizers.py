"""The core of optimizers that send less. Each has the plain model's parameters, and no data
parallelism beside it; all ranks begin with the values of the group's rank 0.

    optimizer = OneBitAdam(net.parameters(), lr=1e-3, warm_up=40)
    optimizer = DeMo(net.parameters(), lr=1e-3, keep=8)
    optimizer = DiLoCo(torch.optim.AdamW(net.parameters(), lr=1e-3), every=50)

state_dict() is this rank's: each rank saves its own.

Letters: n ranks, E trained elements, R rows of `chunk` elements, H steps between two sums.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.collective_wire import Group, all_gather_single
from ..data_parallel.core import first_rank
from .core import wait_for
from .core_bits import in_two_hops


def begin_equal(param_groups: list[dict], group: Group) -> list[nn.Parameter]:
    """The trained parameters, which all now have the values of the group's rank 0."""
    params = [p for one in param_groups for p in one["params"]]
    for p in params:
        dist.broadcast(p.detach(), first_rank(group), group=group)
    trained = [p for p in params if p.requires_grad]
    if len({(p.dtype, p.device) for p in trained}) != 1:
        raise ValueError("the trained parameters have no single dtype and device.")
    return trained


class OverRanks(torch.optim.Optimizer):
    """Steps by what all ranks have exchanged. `kept` is its state, which state_dict() has."""

    def __init__(self, params, group: Group, **settings):
        super().__init__(params, settings)
        self.group, self.n = group, dist.get_world_size(group)
        self.trained = begin_equal(self.param_groups, group)

    @property
    def kept(self) -> dict:
        return self.state[self.trained[0]]

    def shares(self) -> list[Tensor]:
        """This rank's shares of the mean gradients."""
        return [(torch.zeros_like(p) if p.grad is None else p.grad) / self.n for p in self.trained]

    def move(self, updates: list[Tensor]):
        rates = {p: one["lr"] for one in self.param_groups for p in one["params"]}
        for p, update in zip(self.trained, updates):
            if p.requires_grad:  # not frozen since the start
                p.sub_(rates[p] * update.view(p.shape))


class OneBitAdam(OverRanks):
    """Adam, whose variance is frozen after `warm_up` steps. From then on a step is linear in the
    gradient, and signs of the momentum with feedback are enough (Tang et al. 2021; in DeepSpeed
    until 2026). An element without gradient until then never moves: its variance is 0."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, warm_up=100, group=None):
        super().__init__(params, group, lr=lr, betas=betas, eps=eps, warm_up=warm_up)

    @torch.no_grad()
    def step(self):
        kept, (beta, beta2), warm_up = self.kept, *map(self.defaults.get, ("betas", "warm_up"))
        steps = kept["step"] = kept.get("step", 0) + 1
        share = torch.cat([g.flatten() for g in self.shares()])  # [E]
        if steps <= warm_up:
            dist.all_reduce(share, group=self.group)
            kept["momentum"] = beta * kept.get("momentum", 0) + (1 - beta) * share
            kept["variance"] = beta2 * kept.get("variance", 0) + (1 - beta2) * share.square()
        else:
            share = beta / self.n * kept["momentum"] + (1 - beta) * share
            share = share * (kept["variance"] > 0) + kept.get("error", 0)
            wait_for(in_two_hops(share, kept, self.group, bits=1))
            kept["momentum"] = share * (kept["variance"] > 0)
        variance = kept["variance"] / (1 - beta2 ** min(steps, warm_up))
        update = kept["momentum"] / (1 - beta**steps) / (variance.sqrt() + self.defaults["eps"])
        self.move(update.split([p.numel() for p in self.trained]))


class DeMo(OverRanks):
    """Momentum stays on each rank. Its `keep` largest waves of each `chunk` elements leave it and
    are summed; the momentum that is left is the error (Peng et al. 2024)."""

    def __init__(self, params, lr=1e-3, decay=0.999, chunk=64, keep=8, group=None):
        super().__init__(params, group, lr=lr, decay=decay, chunk=chunk, keep=keep)

    @torch.no_grad()
    def step(self):
        kept, decay, chunk, keep = self.kept, *map(self.defaults.get, ("decay", "chunk", "keep"))
        shares = self.shares()
        rows = [F.pad(g.flatten(), (0, -g.numel() % chunk)).view(-1, chunk) for g in shares]
        momentum = decay * kept.get("momentum", 0) + torch.cat(rows)  # [R, chunk]
        waves = cosines(chunk).to(momentum)
        places = (momentum @ waves.T).abs().topk(keep).indices
        values = (momentum @ waves.T).gather(1, places)
        sent = torch.zeros_like(momentum).scatter(1, places, values)
        kept["momentum"] = momentum - sent @ waves
        places = places.to(torch.uint8)
        all_values, all_places = (x.new_empty(self.n, *x.shape) for x in (values, places))
        all_gather_single(all_values, values, group=self.group)
        all_gather_single(all_places, places, group=self.group)
        total = torch.zeros_like(momentum)
        for values, places in zip(all_values, all_places):  # rank by rank: all add in one order
            total.scatter_add_(1, places.long(), values)
        updates = (total @ waves).sign().split([len(own) for own in rows])
        self.move([update.flatten()[: g.numel()] for update, g in zip(updates, shares)])


def cosines(chunk: int) -> Tensor:
    """The waves of a discrete cosine transform, one a row, orthonormal: [chunk, chunk]."""
    k, i = torch.arange(chunk, dtype=torch.float64).unsqueeze(1), torch.arange(chunk)
    waves = torch.cos(math.pi / chunk * k * (i + 0.5)) * math.sqrt(2 / chunk)
    waves[0] /= math.sqrt(2)
    return waves


class DiLoCo:
    """Ranks train alone for H = `every` steps. Then the way that they have come on average is an
    *outer gradient* for SGD with Nesterov's momentum (Douillard et al. 2023). outer_lr=1 and
    outer_momentum=0 are local SGD. With parts, each part of the parameters has its own turn
    (Streaming DiLoCo, 2025), and no message is large."""

    def __init__(self, optimizer, every, outer_lr=0.7, outer_momentum=0.9, parts=1, group=None):
        if not 1 <= parts <= every:
            raise ValueError(f"parts = {parts}, every = {every}: 1 <= parts <= every.")
        self.inner, self.every, self.group, self.steps = optimizer, every, group, 0
        trained, nesterov = begin_equal(optimizer.param_groups, group), outer_momentum > 0
        self.parts = [trained[i::parts] for i in range(parts)]
        self.outer = [
            torch.optim.SGD(
                [p.detach().clone() for p in part], outer_lr, outer_momentum, nesterov=nesterov
            )
            for part in self.parts
        ]
        self.param_groups, self.zero_grad = optimizer.param_groups, optimizer.zero_grad

    def step(self):
        self.inner.step()
        self.steps += 1
        for number, (part, outer) in enumerate(zip(self.parts, self.outer)):
            if self.steps % self.every == number * self.every // len(self.parts):
                self.synchronise(part, outer)

    @torch.no_grad()
    def synchronise(self, part: list[nn.Parameter], outer: torch.optim.SGD):
        copies, n = outer.param_groups[0]["params"], dist.get_world_size(self.group)
        way = torch.cat([(copy - p).flatten() / n for copy, p in zip(copies, part)])
        dist.all_reduce(way, group=self.group)
        for copy, gradient in zip(copies, way.split([p.numel() for p in part])):
            copy.grad = gradient.view(copy.shape)
        outer.step()
        for copy, p in zip(copies, part):
            p.copy_(copy)

    def state_dict(self) -> dict:
        copies = [[copy for copy in outer.param_groups[0]["params"]] for outer in self.outer]
        states = [outer.state_dict() for outer in self.outer]
        return dict(steps=self.steps, inner=self.inner.state_dict(), copies=copies, outer=states)

    @torch.no_grad()
    def load_state_dict(self, state: dict):
        self.steps = state["steps"]
        self.inner.load_state_dict(state["inner"])
        self.param_groups = self.inner.param_groups
        for outer, saved, copies in zip(self.outer, state["outer"], state["copies"], strict=True):
            outer.load_state_dict(saved)
            for copy, value in zip(outer.param_groups[0]["params"], copies, strict=True):
                copy.copy_(value)
