"""Rank 0 of a thousand under ZeRO stage 3, weighed on one machine with fake tensors.

    gpt3 = GPTConfig(layers=96, hidden=12288, heads=96, max_sequence=2048)      # GPT-3 175B
    step = rank_of_many(gpt3, world_size=1024)
    step.peak.bytes.gathered       # bytes of gathered parameters at the fullest point of rank 0's
                                   # training step

Bytes and messages are those of a real rank, at sizes that nobody here has; run as a program, the
module prints them for GPT-3.
"""

from time import perf_counter
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ranklab.measure.communication import CommunicationLog, Total
from ranklab.measure.fake_ranks import fake_ranks
from ranklab.measure.ledger import Counts, Ledger, TimelinePoint
from shardlab.common.torch_internals import FakeTensorMode
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.zero.hardened.stage3 import fully_shard


class ShardedStep(NamedTuple):
    """A rank's training step: bytes that rest after it, the fullest point, messages by
    operation."""

    resting: Counts
    peak: TimelinePoint
    messages: dict[str, Total]


def rank_of_many(config: GPTConfig, world_size: int, *, rank: int = 0, **settings) -> ShardedStep:
    """sharded_step of one rank, without the others."""
    with fake_ranks(world_size, rank), FakeTensorMode():
        return sharded_step(config, **settings)


def sharded_step(
    config: GPTConfig,
    *,
    microbatch: int = 1,
    sequence: int | None = None,
    recompute: bool = True,
    compute_dtype: torch.dtype | None = torch.bfloat16,
    collectives=None,
) -> ShardedStep:
    """One step of ZeRO stage 3 with AdamW over fp32 shards, a unit for each block, embedding and
    head, on this rank, real or fake; with `recompute`, PyTorch's activation checkpointing around
    each block. The step is not the first one: Adam's states exist. The model is never whole: it is
    built on the meta device and sharded unit by unit. Its weights are not initialised, because only
    bytes are counted."""
    with torch.device("meta"):
        model = GPT(config)
    fully_shard(
        model,
        [model.embedding, *model.blocks, model.head],
        device="cpu",
        compute_dtype=compute_dtype,
        collectives=collectives,
    )
    if recompute:
        model.blocks = nn.ModuleList(map(Recomputed, model.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for shard in model.parameters():
        shard.grad = torch.zeros_like(shard)
    optimizer.step()
    optimizer.zero_grad()
    tokens = torch.zeros(microbatch, sequence or config.max_sequence, dtype=torch.long)
    with Ledger(model, optimizer) as ledger, CommunicationLog() as log:
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    return ShardedStep(ledger.bytes, ledger.peak, log.totals())


class Recomputed(nn.Module):
    """Activation checkpointing around a unit: backward gathers and computes the unit again."""

    def __init__(self, unit: nn.Module):
        super().__init__()
        self.unit = unit

    def forward(self, *args):
        return checkpoint(self.unit, *args, use_reentrant=False, preserve_rng_state=False)


if __name__ == "__main__":
    begin = perf_counter()
    step = rank_of_many(GPTConfig(layers=96, hidden=12288, heads=96, max_sequence=2048), 1024)
    print(
        "rank 0 of 1,024, GPT-3 175B, bf16 over fp32 shards, activation checkpointing:"
        f" {perf_counter() - begin:.0f} s here"
    )
    for name, counts in (("at rest", step.resting), ("at the peak", step.peak.bytes)):
        print(
            f"{name:12}",
            *(f"{kind} {nbytes / 2**30:.3f} GiB," for kind, nbytes in counts._asdict().items()),
            f"together {counts.total / 2**30:.3f}",
        )
    print(
        f"the peak is in {step.peak.phase}, after {step.peak.operation}, in"
        f" {step.peak.module or 'the model'}"
    )
    print(
        *(
            f"{name}: {total.messages} messages, {total.nbytes / 2**30:.1f} GiB"
            for name, total in step.messages.items()
        ),
        sep="; ",
    )
