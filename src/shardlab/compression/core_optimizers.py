"""The core of optimizers that send less. Each has the plain model's parameters, and no data
parallelism beside it; all ranks begin with the values of the group's rank 0.

    optimizer = OneBitAdam(net.parameters(), lr=1e-3, warm_up=40)
    optimizer = DeMo(net.parameters(), lr=1e-3, keep=8)
    optimizer = DiLoCo(torch.optim.AdamW(net.parameters(), lr=1e-3), every=50)

state_dict() is this rank's, for each to save. In fp16 take LossScaler, which asks all ranks.

Letters: n ranks, E trained elements, R rows of `chunk` elements, H steps between two sums.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..common.collective_wire import Group, all_gather_single
from ..common.shards import would_mix
from ..data_parallel.core import first_rank
from .core import wait_all
from .core_bits import in_two_hops


def begin_equal(param_groups: list[dict], group: Group) -> list[nn.Parameter]:
    """The trained parameters, which all now have the values of the group's rank 0."""
    params = [p for one in param_groups for p in one["params"]]
    if why := would_mix([(f"parameter {i}", p) for i, p in enumerate(params)], group):
        raise ValueError(why)
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

    def __getstate__(self) -> dict:  # of copies
        return super().__getstate__() | dict(group=self.group, n=self.n, trained=self.trained)

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
        if warm_up < 1:
            raise ValueError(f"warm_up = {warm_up}: a variance needs a step, or there is none.")
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
            wait_all(in_two_hops(share, kept, self.group, bits=1))
            kept["momentum"] = share * (kept["variance"] > 0)
        variance = kept["variance"] / (1 - beta2 ** min(steps, warm_up))
        update = kept["momentum"] / (1 - beta**steps) / (variance.sqrt() + self.defaults["eps"])
        self.move(update.split([p.numel() for p in self.trained]))


class DeMo(OverRanks):
    """Momentum stays on each rank. Its `keep` largest waves of each `chunk` elements leave it and
    are summed; the momentum that is left is the error (Peng et al. 2024)."""

    def __init__(self, params, lr=1e-3, decay=0.999, chunk=64, keep=8, group=None):
        if not 1 <= keep <= chunk <= 256:
            raise ValueError(f"keep = {keep}, chunk = {chunk}: 1 <= keep <= chunk <= 256.")
        super().__init__(params, group, lr=lr, decay=decay, chunk=chunk, keep=keep)

    @torch.no_grad()
    def step(self):
        kept, decay, chunk, keep = self.kept, *map(self.defaults.get, ("decay", "chunk", "keep"))
        shares = self.shares()
        rows = [F.pad(g.flatten(), (0, -g.numel() % chunk)).view(-1, chunk) for g in shares]
        momentum = decay * kept.get("momentum", 0) + torch.cat(rows)  # [R, chunk]
        waves = cosines(chunk, momentum)
        places = (momentum @ waves.T).abs().topk(keep).indices
        values = (momentum @ waves.T).gather(1, places)
        sent = torch.zeros_like(momentum).scatter(1, places, values)
        kept["momentum"] = momentum - sent @ waves
        places = places.to(torch.uint8)
        all_values, all_places = (x.repeat(self.n, 1) for x in (values, places))  # [n R, keep]
        all_gather_single(all_values, values, group=self.group)
        all_gather_single(all_places, places, group=self.group)
        total = torch.zeros_like(momentum)
        for values, places in zip(
            all_values.chunk(self.n), all_places.chunk(self.n)
        ):  # rank by rank: all add in one order
            total.scatter_add_(1, places.long(), values)
        updates = (total @ waves).sign().split([len(own) for own in rows])
        self.move([update.flatten()[: g.numel()] for update, g in zip(updates, shares)])


def cosines(chunk: int, like: Tensor) -> Tensor:
    """The waves of a discrete cosine transform, one a row, orthonormal: [chunk, chunk]."""
    i = torch.arange(chunk, dtype=torch.float64, device=like.device)
    waves = torch.cos(math.pi / chunk * i.unsqueeze(1) * (i + 0.5)) * math.sqrt(2 / chunk)
    waves[0] /= math.sqrt(2)
    return waves.to(like.dtype)


class DiLoCo:
    """Ranks train alone for H = `every` steps. Then the way that they have come on average is an
    *outer gradient* for SGD with Nesterov's momentum (Douillard et al. 2023). outer_lr=1 and
    outer_momentum=0 are local SGD. With parts, each part of the parameters has its own turn
    (Streaming DiLoCo, 2025), and no message is large."""

    def __init__(self, optimizer, every, outer_lr=0.7, outer_momentum=0.9, parts=1, group=None):
        self.inner, self.every, self.group, self.steps = optimizer, every, group, 0
        trained = begin_equal(optimizer.param_groups, group)
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every = {every}: a whole number of steps, at least 1.")
        if not 1 <= parts <= min(every, len(trained)):
            raise ValueError(f"parts = {parts}: from 1 to every, {every}; none is empty.")
        self.parts = [trained[i::parts] for i in range(parts)]
        self.copies = {p: p.detach().clone() for p in trained}  # where the ranks were equal last
        self.outer = torch.optim.SGD(
            list(self.copies.values()), outer_lr, outer_momentum, nesterov=outer_momentum > 0
        )
        self.zero_grad = optimizer.zero_grad

    @property
    def param_groups(self) -> list[dict]:
        return self.inner.param_groups

    def step(self):
        self.inner.step()
        self.steps += 1
        for number, part in enumerate(self.parts):
            if self.steps % self.every == number * self.every // len(self.parts):
                self.synchronise(part)

    @torch.no_grad()
    def synchronise(self, part: list[nn.Parameter]):
        n = dist.get_world_size(self.group)
        way = torch.cat([(self.copies[p] - p).flatten() / n for p in part])
        dist.all_reduce(way, group=self.group)
        for p, gradient in zip(part, way.split([p.numel() for p in part])):
            if p.requires_grad:
                self.copies[p].grad = gradient.view(p.shape)
            else:  # frozen since the start: no momentum moves it
                self.copies[p] -= gradient.view(p.shape)
        self.outer.step()  # only copies that have a gradient move
        self.outer.zero_grad()
        for p in part:
            p.copy_(self.copies[p])

    def state_dict(self) -> dict:
        states, copies = self.inner.state_dict(), [x.clone() for x in self.copies.values()]
        return dict(steps=self.steps, inner=states, outer=self.outer.state_dict(), copies=copies)

    def load_state_dict(self, state: dict):
        self.steps = state["steps"]
        self.inner.load_state_dict(state["inner"])
        self.outer.load_state_dict(state["outer"])
        for copy, saved in zip(self.copies.values(), state["copies"], strict=True):
            copy.copy_(saved)
