"""ZeRO: what data parallelism keeps on every rank is kept once, in shards. Each stage is one file;
the diff is the idea.

    stage1.py     optimizer states sharded; gradients reduce-scattered and parameters gathered in
                  step()
    stage2.py     gradients too: reduce-scattered in backward
    stage3.py     parameters too: gathered before use, freed after it. units.py cuts the model,
                  placeholders.py is there while parameters are gone, other_ways.py lets backward in
                  by any door; whole.py shows parameters whole for a while, prefetch.py gathers the
                  next unit while one computes
    moves.py      the same four ways to make a step as lists of moves, without torch: what the
                  chapter draws
    options.py    clipping, states on the host, 16 bits over fp32 shards
    flat.py       the flat tensors that are cut, and the two collectives on them; buckets.py groups
                  parameters for stages 1 and 2

Rajbhandari et al. 2020 (arXiv 1910.02054).
"""
