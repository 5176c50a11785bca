"""The types of numbers that a device multiplies, and in which units: found by trying, and by time.

check_precision(AUTOCAST_FP16, device)       a device that cannot says so, and why
has_units(torch.bfloat16, device)            not so where it emulates the type
"""

import timeit

import torch

from shardlab.mixed_precision.policies import Policy

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


def check_precision(policy: Policy, device: torch.device | str, units: bool = False):
    """Raise CannotCompute where the device refuses a product of the policy's type, or has no tf32.
    With `units` also where it has to emulate the type: a result is right there, and slow."""
    device = torch.device(device)
    kind = "tf32" if policy.tf32 else policy.computes_in
    why = refusal(policy.computes_in, device)
    if policy.tf32 and not has_units("tf32", device):
        why = "it has no tf32: the mode is of NVIDIA's tensor cores, from Ampere on"
    elif not why and units and not has_units(kind, device):
        why = f"it has no units for {kind}: products are emulated, slower than fp32"
    if why:
        here = f"this {device.type}"
        if device.type == "cuda":
            here = torch.cuda.get_device_name(device)
        raise CannotCompute(f"{policy.name} on {here}: {why}. Take {policy.instead} there.")


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
