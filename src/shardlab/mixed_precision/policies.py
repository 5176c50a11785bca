"""Which numbers compute, are kept and travel: a policy.

    policy = AUTOCAST_FP16
    model = policy.prepare(model)
    optimizer = policy.optimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    scaler = policy.scaler()
    with policy.step():                                 # a whole step
        with policy.forward(device):                    # a forward and its loss: not backward
            loss = next_token_loss(model(tokens), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

                    weights and gradients   products   bytes a parameter, with Adam
    FP32            fp32                    fp32       4 + 4 + 8
    TF32            fp32                    tf32       4 + 4 + 8
    AUTOCAST_BF16   fp32                    bf16       4 + 4 + 8, and copies of weights in a forward
    AUTOCAST_FP16   fp32                    fp16       the same, and a loss scale
    BF16            bf16, fp32 master       bf16       2 + 2 + 4 + 8
    FP16            fp16, fp32 master       fp16       the same, and a loss scale

Autocast keeps its copy of a weight until the context ends: one context for each forward. Traffic
has the type of the gradients. Everywhere in this package a rank divides by the number of ranks
before anybody adds, so that a sum does not overflow where the mean does not.
"""

from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from .hardened.loss_scaler import LossScaler
from .hardened.master_weights import MasterWeights


class Policy(NamedTuple):
    """weights: of parameters, gradients and traffic. products: of what matrix products take, where
    that is another type. tf32: fp32 products in tensor cores. instead: the policy to take where
    this one cannot run."""

    name: str
    weights: torch.dtype = torch.float32
    products: torch.dtype | None = None
    tf32: bool = False
    instead: str = "FP32"

    @property
    def computes_in(self) -> torch.dtype:
        return self.products or self.weights

    @property
    def needs_scale(self) -> bool:
        return self.computes_in is torch.float16

    def prepare(self, model: nn.Module) -> nn.Module:
        """The model with weights of the policy's type, in place; buffers as well."""
        return model.to(self.weights)

    def optimizer(self, params, of: type, **settings) -> torch.optim.Optimizer:
        if self.weights is torch.float32:
            return of(params, **settings)
        return MasterWeights(params, of, **settings)

    def scaler(self, **settings) -> torch.amp.GradScaler:
        """Without a scale one that does nothing, so that every policy has one loop."""
        return LossScaler(**settings) if self.needs_scale else torch.amp.GradScaler(enabled=False)

    def forward(self, device: torch.device | str):
        """A context for one forward and its loss."""
        if self.products is None:
            return nullcontext()
        return torch.autocast(torch.device(device).type, self.products)

    @contextmanager
    def step(self):
        """A context for a step, backward included: tf32 is a setting of all products."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


FP32 = Policy("FP32")
TF32 = Policy("TF32", tf32=True)
AUTOCAST_BF16 = Policy("AUTOCAST_BF16", products=torch.bfloat16, instead="AUTOCAST_FP16")
AUTOCAST_FP16 = Policy("AUTOCAST_FP16", products=torch.float16)
BF16 = Policy("BF16", weights=torch.bfloat16, instead="FP16")
FP16 = Policy("FP16", weights=torch.float16)
POLICIES = {p.name: p for p in (FP32, TF32, AUTOCAST_BF16, AUTOCAST_FP16, BF16, FP16)}
