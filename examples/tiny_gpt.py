"""The parts that both training scripts share: a small GPT over bytes, and the part of a text that a
rank reads."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CONTEXT = 32


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x):
        # (batch, tokens, 3 hidden) -> three of (batch, heads, tokens, size of a head)
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class TinyGPT(nn.Module):
    def __init__(self, layers: int = 2, hidden: int = 64, heads: int = 4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, hidden), nn.Embedding(CONTEXT, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, 256)

    def forward(self, tokens, targets):
        """Mean cross-entropy of the next byte."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Windows(Dataset):
    """Windows of the bytes of a text: (CONTEXT bytes, the same shifted by one)."""

    def __init__(self, path: Path):
        self.text = torch.tensor(list(path.read_bytes()))

    def __len__(self):
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, i):
        window = self.text[i * CONTEXT : (i + 1) * CONTEXT + 1]
        return window[:-1], window[1:]


def microbatches(path: Path, size: int, skip: int) -> Iterator[list[torch.Tensor]]:
    """This rank's microbatches of [tokens, targets] without end, from number `skip` on. All ranks
    together read each window once in an epoch."""
    windows = Windows(path)
    sampler = DistributedSampler(windows, shuffle=True, drop_last=True)
    loader = DataLoader(windows, batch_size=size, sampler=sampler, drop_last=True)
    if not len(loader):
        raise SystemExit(f"--text {path}: {len(windows)} windows of {CONTEXT} bytes are too few.")
    for epoch in count(skip // len(loader)):
        sampler.set_epoch(epoch)  # or every epoch has the order of the first
        for number, microbatch in enumerate(loader, epoch * len(loader)):
            if number >= skip:
                yield microbatch
