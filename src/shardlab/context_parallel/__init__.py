"""Context parallelism: every rank has a part of each sequence, and all parameters.

    mesh = Mesh(dp=2, cp=4)
    context = Context(mesh.cp.group)
    context_parallel(model, context, RingAttention)
    group = mesh.line("dp", "cp").group                 # gradients are averaged over it
    model, optimizer = zero.shard(model, torch.optim.AdamW, stage=1, group=group)
    inputs, targets = context.own(inputs), context.own(targets)
    loss = next_token_loss(model(inputs), targets, targets_a_rank(targets, group))

core.py         the idea on a page: own tokens and positions, three mixes of tokens
core_ring.py    the ring's blocks and messages
core_masks.py   windows, sinks and tiles: blocks that are skipped

and in hardened/, under the same names:

context.py      any model with the modules of gpt.py; what ranks must have alike
mixes.py        fused kernels

Liu et al. 2023 (arXiv 2310.01889), Jacobs et al. 2023 (arXiv 2309.14509), Llama 3 (arXiv
2407.21783).
"""

from .core import targets_a_rank
from .core_masks import Causal, ChosenTiles, Window
from .hardened.context import Context, context_parallel
from .hardened.mixes import GatheredAttention, RingAttention, Ulysses
