"""Mixed precision: 16 bits compute, 32 bits remember.

    model.half()
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    scaler = LossScaler()                           # bf16 needs none
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

    core.py                 the two classes on a page
    hardened/               the same for any loop, which this package gives (hardened=False gives
                            the core's):
    master_weights.py       an optimizer on fp32 copies of 16-bit weights; optimizer_wrapper.py has
                            its groups, its piles and its state
    loss_scaler.py          a scale that keeps gradients in range; scaler_checks.py says what it
                            refuses
    fast.py                 the same two in less time and fewer bytes

    policies.py             which numbers compute, are kept and travel, and what a device can do
    optimizer_states.py     an optimizer's moments in bf16 or in 8 bits
    stochastic_rounding.py  bf16 weights without a copy
    fp32_reduction.py       16-bit gradients, added over ranks in fp32
    float8.py               fp8, emulated

Both compose with data parallelism, ZeRO, tensor parallelism and pipelines.

Micikevicius et al. 2018.
"""

from .hardened.loss_scaler import LossScaler
from .hardened.master_weights import MasterWeights

__all__ = ["LossScaler", "MasterWeights"]
