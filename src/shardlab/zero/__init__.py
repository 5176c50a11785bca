"""ZeRO: tensors that data parallelism keeps on every rank are kept once, in shards.

    model, optimizer = zero.shard(model, torch.optim.AdamW, stage=2, lr=1e-3)     # the one door

    core.py       stages 1 and 2 on a page; core_stage3.py has stage 3

and in hardened/, for any model and optimizer that can be sharded:

    api.py        shard(): all stages behind one function
    stage1.py     the core's optimizer of shards; stage2.py the core's, too, with gradients sharded.
                  buckets.py groups parameters, offload.py has states on the host
    stage3.py     parameters sharded: which unit owns which, a unit in a step, its flat tensors, and
                  the places of parameters that are gone. ahead.py has messages under the unit
                  before, saved_tensors.py what leaves a unit's computation, full_parameters.py
                  parameters whole for a while
    flat.py       the two collectives on flat tensors: our ring, and PyTorch's

Rajbhandari et al. 2020 (arXiv 1910.02054).
"""

from .hardened.api import shard
