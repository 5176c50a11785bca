"""The core of a mixture of experts: a layer of many MLPs, of which each token goes through a few.

    model = GPT(GPTConfig(experts=8, experts_per_token=2))      # each block has one for its MLP
    loss = next_token_loss(model(inputs), targets)
    loss.backward()
    move_biases(model)                                # once a step, where a bias balances experts

A token's way (Shazeer et al. 2017):

    route       scores of all experts, the K largest, their shares as gates
    dispatch    a row for each expert of each token, in the order of experts
    compute     each expert its rows
    combine     the sum of a token's rows, weighted by its gates

In core_parallel.py the experts are on several ranks, and rows travel before and after `compute`.

Letters: T tokens, H hidden, F inner, E experts, K of them a token, R = TK rows, C rows that an
expert takes at most.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Routed(torch.autograd.Function):
    """The gates. Backward, a loss joins their gradient, without a way through the rest of the
    model, and the rows are counted: once each, whatever is recomputed or only looked at."""

    @staticmethod
    def forward(ctx, gates, loss, load, counts):
        ctx.load, ctx.counts = load, counts
        return gates.view_as(gates)

    @staticmethod
    def backward(ctx, gradient):
        ctx.load.add_(ctx.counts)
        return gradient, gradient.new_ones(()), None, None


class Router(nn.Module):
    """Chooses the experts of each token. `moves` [E] is the bias of DeepSeek-V3 in steps: whole
    numbers, which no dtype rounds. `load` [E] are the rows that went backward since the last
    move."""

    sigmoid = False  # scores by a softmax over experts, or each by itself
    balance = 0.0  # weight of the loss that is 1 where loads are equal
    z = 0.0  # weight of the loss that keeps logits small (Zoph et al. 2022)
    loss_scale = 1.0  # of both: 1/k for k microbatches, times the scale of a scaler
    bias_step = 0.0  # of the bias that chooses, and is in no gate; 0.001 in DeepSeek-V3

    def __init__(self, hidden: int, experts: int, per_token: int):
        super().__init__()
        self.per_token, self.total = per_token, nn.Identity()  # of counts; on ranks, TotalCounts
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.register_buffer("moves", torch.zeros(experts, dtype=torch.int64))
        self.register_buffer("load", torch.zeros(experts, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [T, H]
        """(gates [T, K] in fp32 at least, experts [T, K], rows of each expert [E])"""
        with torch.autocast(tokens.device.type, enabled=False):
            wide = torch.promote_types(tokens.dtype, torch.float32)
            logits = F.linear(tokens.to(wide), self.weight.to(wide))  # [T, E]
        scores = logits.sigmoid() if self.sigmoid else logits.softmax(-1)
        chosen = (scores + self.bias_step * self.moves).topk(self.per_token).indices
        gates = scores.gather(-1, chosen)
        if self.per_token > 1:  # a lone gate of 1 would teach the router nothing
            gates = gates / gates.sum(-1, keepdim=True)
        ones = torch.ones_like(chosen).flatten()
        counts = torch.zeros_like(self.load).scatter_add(0, chosen.flatten(), ones)
        loss = gates.new_zeros(())
        if self.balance and torch.is_grad_enabled():  # a rank may evaluate alone
            rows = self.total(counts).to(wide)  # of everyone: the loss is a product of means
            mean = (scores / scores.sum(-1, keepdim=True)).mean(0)  # [E]
            loss = loss + self.balance * len(rows) * (rows / rows.sum() * mean).sum()
        if self.z:
            loss = loss + self.z * logits.logsumexp(-1).square().mean()
        return Routed.apply(gates, self.loss_scale * loss, self.load, counts), chosen, counts


def as_autocast(x: Tensor) -> Tensor:
    """x in the dtype that autocast, if it is on, gives to products."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def groups_are_right(device: torch.device) -> bool:
    """On Blackwell grouped_mm gives a gradient to experts without rows (pytorch#172439)."""
    old = device.type != "cuda" or torch.cuda.get_device_capability(device) < (10, 0)
    return old and hasattr(F, "grouped_mm")


def product(rows: Tensor, weight: Tensor, counts: Tensor | None) -> Tensor:
    """Runs of rows [R, in], each by the weight of its expert [E, in, out]: of counts [E] rows, or,
    with None, of equally many."""
    rows, weight = as_autocast(rows), as_autocast(weight)
    if counts is None:
        return (rows.unflatten(0, (len(weight), -1)) @ weight).flatten(0, 1)
    fits = all(size % 8 == 0 for size in weight.shape[1:])  # 16 bytes
    if fits and rows.dtype is torch.bfloat16 and groups_are_right(rows.device):
        return F.grouped_mm(rows, weight, offs=counts.cumsum(0).int())
    runs = rows.split(counts.tolist())  # the host waits for the counts
    return torch.cat([run @ own for run, own in zip(runs, weight)])


def biased(rows: Tensor, bias: Tensor | None, counts: Tensor | None) -> Tensor:
    """Each run of rows with the bias of its expert [E, out]."""
    if bias is None:
        return rows
    counts = len(rows) // len(bias) if counts is None else counts
    return rows + bias.to(rows.dtype).repeat_interleave(counts, 0, output_size=len(rows))


class Experts(nn.Module):
    """E MLPs like gpt.MLP, whose weights are [E, in, out]."""

    NAMES = "up", "up_bias", "gate", "gate_bias", "down", "down_bias"  # some may be None

    def __init__(self, experts: int, hidden: int, inner: int, gated: bool, biases: bool):
        super().__init__()
        for name in ("up", "gate", "down"):
            sizes, there = (hidden, inner), gated or name != "gate"
            sizes = sizes[::-1] if name == "down" else sizes
            weight = nn.Parameter(torch.empty(experts, *sizes)) if there else None
            bias = nn.Parameter(torch.empty(experts, sizes[1])) if there and biases else None
            self.register_parameter(name, weight)
            self.register_parameter(f"{name}_bias", bias)

    def inner(self, rows: Tensor, counts: Tensor | None) -> Tensor:
        up = biased(product(rows, self.up, counts), self.up_bias, counts)  # [R, F]
        if self.gate is None:
            return F.gelu(up, approximate="tanh")
        return F.silu(biased(product(rows, self.gate, counts), self.gate_bias, counts)) * up

    def forward(self, rows: Tensor, counts: Tensor | None) -> Tensor:  # [R, H], [E]
        inner = self.inner(rows, counts)  # [R, F]
        return biased(product(inner, self.down, counts), self.down_bias, counts)  # [R, H]


def rows_at_most(capacity: float, rows: int, experts: int) -> int:
    """C. 1.1 x 100 / 10 is 11, and as floats a little more. Raises ValueError for no capacity."""
    if not 0 < capacity < math.inf:
        raise ValueError(f"capacity = {capacity}: it must be a finite number above 0, or None.")
    return math.ceil(round(capacity * rows / experts, 6))


class MixtureOfExperts(nn.Module):
    """Some experts for each token, and the MLP `shared`, if any, for all. With a `capacity` an
    expert takes C = capacity R/E rows of this rank, the first ones, and `dropped` counts the
    others: sizes of memory and messages are then known before the router has chosen, and all ranks
    have equally many tokens."""

    capacity: float | None = None
    dropped: Tensor | None = None

    def __init__(self, router: Router, experts: Experts, shared: nn.Module | None = None):
        super().__init__()
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Tensor) -> Tensor:  # [..., H]
        if x.is_meta:  # a shape, and no rows to count
            return torch.empty_like(x)
        y = self.routed(x)
        return y if self.shared is None else y + self.shared(x)

    def routed(self, x: Tensor) -> Tensor:
        gates, chosen, counts = self.router(x.flatten(0, -2))
        rows = x.flatten(0, -2).repeat_interleave(chosen.shape[1], 0)  # [R, H]
        place = chosen.flatten().argsort(stable=True).argsort()  # of each row, by experts
        if self.capacity is None:
            made = self.experts(torch.empty_like(rows).index_copy(0, place, rows), counts)
        else:
            most = rows_at_most(self.capacity, len(rows), len(counts))  # C
            number = place - (counts.cumsum(0) - counts)[chosen.flatten()]  # among its expert's
            kept = number < most
            self.dropped, gates = (~kept).sum(), gates * kept.view_as(gates)
            place = torch.where(kept, chosen.flatten() * most + number, 0)
            slots = rows.new_zeros(len(counts) * most, rows.shape[1])  # [EC, H]
            made = self.experts(slots.index_add(0, place, rows * kept.unsqueeze(1)), None)
        made = made[place].unflatten(0, chosen.shape)  # [T, K, H]
        return (gates.unsqueeze(1).to(made.dtype) @ made).view_as(x).to(x.dtype)


def mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


@torch.no_grad()
def move_biases(model: nn.Module):
    """Each expert's bias one step up where its load is below the mean, one down where it is above
    (Wang et al. 2024). `load` begins again."""
    for router in (layer.router for layer in mixtures(model)):
        load = router.total(router.load)
        router.moves += (load.sum() - load * len(load)).sign()
        router.load.zero_()
