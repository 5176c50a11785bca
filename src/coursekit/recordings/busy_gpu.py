"""The seconds of a call in which a GPU computed, by PyTorch's profiler."""

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from ranklab.measure.slim_trace import covered

# copies compute nothing, and NCCL's kernels spin while they wait for other ranks
IDLE_KERNELS = ("nccl", "Memcpy", "Memset")


def gpu_busy_seconds(work: Callable[[], object]) -> float | None:
    """Seconds of one call of `work` in which a kernel computed on the GPU. The rest of the call's
    time the GPU waited: for the host to launch kernels, for copies or for other ranks. None where
    PyTorch's profiler sees no kernel."""
    if ProfilerActivity.CUDA not in supported_activities():
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    microseconds = covered(
        (event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type == DeviceType.CUDA and not event.name.startswith(IDLE_KERNELS)
    )
    return microseconds / 1e6 or None
