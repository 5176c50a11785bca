"""A function of a lab on ranks that torchrun has started, on one machine or on several:

torchrun --nproc-per-node 4 workshop/ranks_of_a_lab.py

In a notebook `ranks(4)` starts four processes. Under torchrun each process is a rank already, and
`ranks` returns the world that is there.
"""

import os

import torch
from torch.optim import AdamW

from ranklab.measure.ledger import Ledger
from ranklab.ranks import rank_device, ranks
from shardlab import zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss

SMALL = GPTConfig(layers=2, hidden=64, heads=4, vocabulary=256, max_sequence=64)


def states_kept():
    """Bytes of parameters and optimizer states that this rank keeps in stage 3."""
    model, optimizer = zero.shard(GPT(SMALL).to(rank_device()), AdamW, stage=3)
    with Ledger(model, optimizer) as ledger:
        tokens = torch.randint(256, (2, 64), device=rank_device())
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
    return ledger.bytes.parameters + ledger.bytes.optimizer


if __name__ == "__main__":
    with ranks(int(os.environ["WORLD_SIZE"])) as world:
        kept = world.run(states_kept)
        if os.environ["RANK"] == "0":
            print(f"{len(kept)} ranks keep {min(kept):,} to {max(kept):,} bytes")
