"""Tensor parallelism: every rank has a part of each weight, and all ranks see the same tokens.

    mesh = Mesh(dp=2, tp=4)
    apply_tensor_parallel(model, gpt_plan(config), mesh.tp.group)
    loss = vocabulary_parallel_loss(model(tokens), targets, config.vocabulary, mesh.tp.group)
    loss.backward()                                 # the gradients of this rank's parts

    core.py       the idea on a page; core_sequence.py has sequence parallelism

and in hardened/, for any model that a plan describes:

    pairs.py      what is sent: four functions, each with the one that is its backward
    layers.py     a linear layer cut by columns, one cut by rows, an embedding cut by tokens, and
                  dropout that does not depend on the number of ranks
    loss.py       the core's cross-entropy, where targets may be padding
    plan.py       which module is cut how: a table over the names of modules; apply.py does it,
                  checks.py says what cannot be cut, first_forward.py what ranks have alike
    sequence.py   sequence parallelism: what is still whole is cut by tokens; whole_gradients.py
                  adds up the gradients of what is whole
    overlap.py    messages that travel while the GPU multiplies
    full_parameters.py
                  the plain model's state_dict

Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053); Korthikanti et al. 2022 (arXiv 2205.05198).
"""

from .hardened.apply import apply_tensor_parallel
from .hardened.checks import CannotSplit, check_plan
from .hardened.loss import vocabulary_parallel_loss
from .hardened.overlap import overlapped
from .hardened.plan import gpt_plan
from .hardened.sequence import sequence_parallel
from .hardened.whole_gradients import sum_gradients
