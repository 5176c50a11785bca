"""Mixed precision: 16 bits compute, 32 bits remember.

    model.half()
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    scaler = LossScaler()                           # bf16 needs none
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

    core.py                 the two classes on a page
    hardened/               the two for any loop, which this package gives: loss_scaler.py on
                            PyTorch's GradScaler, master_weights.py pile by pile

    policies.py             which numbers compute, are kept and travel, and what a device can do
    stochastic_rounding.py  bf16 weights without a copy

Both compose with data parallelism, ZeRO, tensor parallelism and pipelines.

Micikevicius et al. 2018.
"""

from .hardened.loss_scaler import LossScaler
from .hardened.master_weights import MasterWeights
