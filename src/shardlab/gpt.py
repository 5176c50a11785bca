"""The plain GPT that every technique of the book is compared with. It does not know that
parallelism exists.

Letters at the end of a line give the shape that the line makes:

    B  sequences in the batch      A  query heads                    D  size of one head, H/A
    S  tokens in a sequence        G  key-value heads, one a group   R  query heads in a group, A/G
    H  hidden size                 F  inner size of the MLP          V  vocabulary

In GPT-2 every query head has its own key and value: G = A, R = 1. Llama 2 70B has A = 64 query
heads in G = 8 groups.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .experts.core import Experts, MixtureOfExperts, Router
from .gpt_checks import check_settings, check_tokens, complete, unknown_token
from .rms_norm import normalize_rms

OF_EXPERTS = ("experts", "experts_per_token", "shared_feed_forward")  # formulas assume 0
PADDING = -100  # a target that does not count, as in torch.nn.functional.cross_entropy


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT, under the names the formulas use, and how to run it. The defaults are
    GPT-2 124M; another published model is GPTConfig(**quantities(model="Llama 2 70B")), with
    quantities of coursekit.formulas."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    head_size: int = 0  # 0: hidden / heads
    key_value_heads: int | None = None  # None: as many as heads
    feed_forward: int | None = None  # None: 4 * hidden
    vocabulary: int = 50_257
    max_sequence: int = 1024
    learned_positions: int = 1  # 1: a learned table of positions, 0: rotary
    biases: int = 1  # 1: biases and LayerNorm, 0: no biases and RMSNorm
    gated_mlp: int = 0  # 1: SwiGLU, 0: GELU
    tied_head: int = 1  # 1: the head's weight is the embedding's
    experts: int = 0  # MLPs of a layer that see some tokens; 0: one MLP, which sees all
    experts_per_token: int = 0
    shared_experts: int = 0  # as wide as the others, and of all tokens
    dropout: float = 0.0
    fused_attention: bool = True  # False: attention weights [B, A, S, S] are in memory

    def __post_init__(self):
        check_settings(self.dropout, self.fused_attention)
        for name, value in complete(self.sizes()).items():
            object.__setattr__(self, name, value)  # the one way to complete a frozen dataclass

    def sizes(self) -> dict[str, int]:
        names = [field.name for field in fields(self)]
        return {name: getattr(self, name) for name in names[: names.index("dropout")]}

    def quantities(self) -> dict[str, int]:
        """The arguments of formulas: parameters(**config.quantities())."""
        found = self.sizes()
        found["shared_feed_forward"] = found.pop("shared_experts") * self.feed_forward
        return found if self.experts else {k: v for k, v in found.items() if k not in OF_EXPERTS}


class Dropout(nn.Module):
    """Zeroes a share p of the elements in training. native_dropout keeps one byte an element on
    every device."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return torch.native_dropout(x, self.p, True)[0]


class RMSNorm(nn.Module):
    """LayerNorm without a mean and without a bias (Zhang and Sennrich 2019)."""

    def __init__(self, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return normalize_rms(x, self.weight, 1e-5)


def make_norm(config: GPTConfig) -> nn.Module:
    return nn.LayerNorm(config.hidden) if config.biases else RMSNorm(config.hidden)


class PositionIds(nn.Module):
    """The tokens' positions: 0, 1, 2, ... Takes a table with a row for each position and returns
    the rows of these tokens. A rank with another part of the sequence replaces this module."""

    def forward(self, table: Tensor, sequence: int) -> Tensor:
        return table[:sequence]  # a slice: backward keeps no index


class Rotary(nn.Module):
    """Turns queries and keys by angles that grow with the position (Su et al. 2021). Elements i and
    i + D/2 of a head are a pair. The angles are computed each time: no buffer to save, move or
    fill."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.max_sequence = config.max_sequence
        self.position_ids = PositionIds()

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Turn q [B, S, G, R, D] and k [B, S, G, 1, D]."""
        sequence, size = q.shape[1], q.shape[-1]
        # bf16 cannot count beyond 256
        exact = dict(dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        speeds = 10_000 ** (-torch.arange(0, size, 2, **exact) / size)  # [D/2]
        # at a speed of 1 the angle is the position
        angles = self.position_ids(torch.arange(self.max_sequence, **exact), sequence)  # [S]
        angles = angles[:, None, None, None] * speeds  # [S, 1, 1, D/2]
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

        def turn(x):
            first, second = x.chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

        return turn(q), turn(k)


class CoreAttention(nn.Module):
    """Attention without its weights: q [B, A, S, D], k and v [B, G, S, D] to [B, A, S, D]. The only
    place where tokens see each other."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.fused = config.fused_attention
        self.dropout = Dropout(config.dropout)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused and not (self.training and self.dropout.p):
            grouped = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        # The same in small steps, with dropout on the weights. Queries that share a key are rows of
        # one product.
        rows, sequence = (*k.shape[:2], -1), q.shape[2]
        future = torch.full((sequence, sequence), -math.inf, dtype=q.dtype, device=q.device).triu(1)
        q = q / math.sqrt(q.shape[-1])
        scores = q.reshape(*rows, q.shape[-1]) @ k.transpose(-2, -1)  # [B, G, R * S, S]
        weights = torch.softmax(scores.reshape(*q.shape[:3], sequence) + future, -1)  # [B, A, S, S]
        mixed = self.dropout(weights).reshape(*rows, sequence) @ v  # [B, G, R * S, D]
        return mixed.reshape(q.shape)


class Attention(nn.Module):
    """Causal self-attention. The rows of the qkv weight are ordered by group: the R queries, the
    key and the value of one key-value head, then those of the next. A slice of the rows can
    therefore be a number of whole heads."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.head_size = config.head_size or config.hidden // config.heads
        self.queries_per_group = config.heads // config.key_value_heads
        columns = (config.heads + 2 * config.key_value_heads) * self.head_size
        self.qkv = nn.Linear(config.hidden, columns, bool(config.biases))
        self.rotary = None if config.learned_positions else Rotary(config)
        self.core = CoreAttention(config)
        self.output = nn.Linear(config.heads * self.head_size, config.hidden, bool(config.biases))

    def forward(self, x: Tensor) -> Tensor:
        # [B, S, G, R + 2, D]; G, here the -1, follows from the weight: half of the rows are half
        # of the heads
        qkv = self.qkv(x).unflatten(-1, (-1, self.queries_per_group + 2, self.head_size))
        # views: [B, S, G, R, D] and twice [B, S, G, 1, D]
        q, k, v = qkv.split([self.queries_per_group, 1, 1], dim=3)
        if self.rotary is not None:
            # q and k are new tensors; with a new v, the memory of qkv is free
            (q, k), v = self.rotary(q, k), v.contiguous()
        # [B, A, S, D] and twice [B, G, S, D]
        q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))
        mixed = self.core(q, k, v)  # [B, A, S, D]
        return self.output(mixed.transpose(1, 2).flatten(2))  # [B, S, H]


class MLP(nn.Module):
    """down(gelu(up(x))), or with a gate down(silu(gate(x)) * up(x)), which is SwiGLU (Shazeer
    2020)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        hidden, inner, bias = config.hidden, config.feed_forward, bool(config.biases)
        self.up = nn.Linear(hidden, inner, bias)
        self.gate = nn.Linear(hidden, inner, bias) if config.gated_mlp else None
        self.down = nn.Linear(inner, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            inner = F.gelu(self.up(x), approximate="tanh")  # [B, S, F]
        else:
            inner = F.silu(self.gate(x)) * self.up(x)  # [B, S, F]
        return self.down(inner)  # [B, S, H]


def make_mlp(config: GPTConfig) -> nn.Module:
    """A layer's MLP, or its experts."""
    if not config.experts:
        return MLP(config)
    sizes = config.hidden, config.feed_forward, bool(config.gated_mlp), bool(config.biases)
    shared = None
    if config.shared_experts:
        shared = MLP(replace(config, feed_forward=config.shared_experts * config.feed_forward))
    router = Router(config.hidden, config.experts, config.experts_per_token)
    return MixtureOfExperts(router, Experts(config.experts, *sizes), shared)


class Block(nn.Module):
    """One layer: attention, then the MLP, each on a normalized copy and added to its input."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm, self.attention = make_norm(config), Attention(config)
        self.mlp_norm, self.mlp = make_norm(config), make_mlp(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))  # [B, S, H]
        return x + self.dropout(self.mlp(self.mlp_norm(x)))  # [B, S, H]


class Embedding(nn.Module):
    """Tokens to vectors, plus a learned vector for each position if the model has them."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.max_sequence = config.max_sequence
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = None
        if config.learned_positions:
            self.positions = nn.Parameter(torch.empty(config.max_sequence, config.hidden))
        self.position_ids = PositionIds()
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S]
        check_tokens(tokens, self.max_sequence)
        try:
            x = self.tokens(tokens)  # [B, S, H]
        except IndexError as error:
            raise unknown_token(tokens, self.tokens.num_embeddings, error) from None
        if self.positions is not None:
            x = x + self.position_ids(self.positions, tokens.shape[1])
        return self.dropout(x)


class Head(nn.Module):
    """The last norm, and a score for each token of the vocabulary."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.norm = make_norm(config)
        self.scores = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x))  # [B, S, V]


class GPT(nn.Module):
    """Embedding, an ordered list of blocks, head: each takes one tensor and returns one.

    Device and dtype are PyTorch's defaults: `with torch.device("meta"):` builds the shapes of any
    size without memory. To fill such a model, call `model.to_empty(device=...)` and then
    `model.initialise()`.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draws every parameter as GPT-2 does: standard deviation 0.02, and less where a layer adds
        to the residual stream, because 2L such additions pile up. The tie is made here because
        to_empty breaks it."""
        if self.config.tied_head:
            self.head.scores.weight = self.embedding.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            elif name.endswith(("attention.output.weight", "down.weight", "experts.down")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.layers))
            else:
                nn.init.normal_(parameter, std=0.02)
        for buffer in self.buffers():  # loads of experts
            nn.init.zeros_(buffer)

    def forward(self, tokens: Tensor) -> Tensor:  # [B, S]
        x = self.embedding(tokens)  # [B, S, H]
        for block in self.blocks:
            x = block(x)  # [B, S, H]
        return self.head(x)  # [B, S, V]


def next_token_loss(logits: Tensor, targets: Tensor, count: Tensor | float | None = None) -> Tensor:
    """Mean cross-entropy, in nats, of logits [B, S, V] against the tokens that came next, targets
    [B, S]; those of -100 are padding. With `count` the sum over it: a part of the mean over so many
    targets. In fp32 at least: bf16 has no number between 4 and 4.03, too coarse to see a loss
    fall."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    reduction = "mean" if count is None else "sum"
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    return loss if count is None else loss / count
