"""Which numbers compute, are kept and travel: a policy, and what a device can do.

    policy = AUTOCAST_FP16
    policy.check(device)                                # a device that cannot says so, and why
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
has the type of the gradients. Everywhere in this package a rank divides by the number of
ranks before anybody adds, so that a sum does not overflow where the mean does not.
"""

import timeit
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from .hardened.loss_scaler import LossScaler
from .hardened.master_weights import MasterWeights

# a tensor core multiplies the type from this compute capability on
UNITS_SINCE = {
    torch.float16: (7, 0),
    torch.bfloat16: (8, 0),
    "tf32": (8, 0),
    torch.float8_e4m3fn: (8, 9),
    torch.float8_e5m2: (8, 9),
}


class CannotCompute(RuntimeError):
    """Which policy a device cannot run, why, and which one it can."""


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

    def check(self, device: torch.device | str, units: bool = False):
        """Raise CannotCompute where the device refuses a product of this type, or has no tf32. With
        `units` also where it has to emulate the type: a result is right there, and slow."""
        device = torch.device(device)
        kind = "tf32" if self.tf32 else self.computes_in
        why = refusal(self.computes_in, device)
        if self.tf32 and not has_units("tf32", device):
            why = "it has no tf32: the mode is of NVIDIA's tensor cores, from Ampere on"
        elif not why and units and not has_units(kind, device):
            why = f"it has no units for {kind}: products are emulated, slower than fp32"
        if why:
            here = f"this {device.type}"
            if device.type == "cuda":
                here = torch.cuda.get_device_name(device)
            raise CannotCompute(f"{self.name} on {here}: {why}. Take {self.instead} there.")


FP32 = Policy("FP32")
TF32 = Policy("TF32", tf32=True)
AUTOCAST_BF16 = Policy("AUTOCAST_BF16", products=torch.bfloat16, instead="AUTOCAST_FP16")
AUTOCAST_FP16 = Policy("AUTOCAST_FP16", products=torch.float16)
BF16 = Policy("BF16", weights=torch.bfloat16, instead="FP16")
FP16 = Policy("FP16", weights=torch.float16)
POLICIES = {p.name: p for p in (FP32, TF32, AUTOCAST_BF16, AUTOCAST_FP16, BF16, FP16)}


# --- what a device can do -------------------------------------------------------------------------


def refusal(dtype: torch.dtype, device: torch.device) -> str:
    """Why the device does not multiply the type, or an empty string: found by a product."""
    try:
        ones = torch.ones(16, 16, device=device).to(dtype)
        product = (ones @ ones).float()
    except RuntimeError as error:
        return f"it refuses a product of {dtype} ({str(error).strip().splitlines()[0]})"
    return "" if (product == 16).all() else f"its product of {dtype} is wrong"


def has_units(kind: torch.dtype | str, device: torch.device) -> bool:
    """Whether the device has arithmetic units for products of the type. A GPU's compute capability
    tells; torch.cuda.is_bf16_supported() is true on a T4, which emulates. A CPU is asked by time:
    without units 16 bits are slower than fp32."""
    if kind is torch.float32:
        return True
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= UNITS_SINCE[kind]
    return kind != "tf32" and seconds_of_product(kind) < seconds_of_product(torch.float32)


def seconds_of_product(dtype: torch.dtype, size: int = 384, times: int = 5) -> float:
    """The shortest of a few products on the CPU."""
    factor = torch.ones(size, size).to(dtype)
    return min(timeit.repeat(lambda: factor @ factor, repeat=times, number=1))
