"""The ground that all techniques share.

agreement.py             what all ranks must have in common
backward.py              when a backward begins, which gradient came, when it ends
outer_hooks.py           what a technique's hooks for saved tensors owe to those around them
shards.py                which tensors are parts, and among whom
before_step.py           looks at an optimizer when it steps; PyTorch's clipping and loss scaling,
                         made aware of shards
cross_node_warning.py    the warning of tensor parallelism across nodes, without torch
torch_internals.py       the private names of PyTorch that techniques use
"""
