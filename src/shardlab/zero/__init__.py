"""ZeRO: tensors that data parallelism keeps on every rank are kept once, in shards.

    model, optimizer = zero.shard(model, torch.optim.AdamW, stage=2, lr=1e-3)     # the one door

    core.py       stages 1 and 2 on a page; core_stage3.py has stage 3

and in hardened/, for any model and optimizer that can be sharded:

    stage1.py     optimizer states sharded: gradients are reduce-scattered and parameters gathered
                  in step(); sharded_optimizer.py has what it shares with stage 2
    stage2.py     gradients too: reduce-scattered in backward
    stage3.py     parameters too: gathered before use, freed after it. units.py cuts the model,
                  parameter_slots.py and placeholders.py are where parameters were while they are
                  gone, backward_entries.py lets backward in by any door, full_parameters.py has
                  parameters whole for a while, prefetch.py gathers the next unit while one
                  computes
    flat.py       the flat tensors that are cut, and the two collectives on them;
                  torch_collectives.py has PyTorch's, fast_ring.py a ring that is harder to read
    buckets.py    groups parameters for stages 1 and 2; checks.py says what cannot be sharded
    api.py        shard(): all stages behind one function
    offload.py    optimizer states on the host

Beside this folder: gradient_clipping.py clips by the norm of all shards; in common/,
torch_clip_and_scale.py makes PyTorch's own clipping and loss scaling know them, optimizer_checks.py
tries an optimizer that steps on flat shards.

Rajbhandari et al. 2020 (arXiv 1910.02054).
"""

from .hardened.api import shard

__all__ = ["shard"]
