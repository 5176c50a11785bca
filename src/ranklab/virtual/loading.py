"""A loader in virtual time, beside the virtual GPU that it feeds.

    with VirtualGPU(h100) as gpu, gpu.step() as step:
        for batch in virtual_batches(gpu, 10, seconds=0.04, workers=2):
            train()
    step.idle_seconds(LATE_BATCH)                             # waited for data

A worker makes whole batches, one after the other. It begins one when it is asked for: when the
batch that is workers * ahead before it has been taken, as DataLoader does with prefetch_factor.
Without workers the loop makes each batch itself.
"""

from collections.abc import Callable, Iterator

from .gpu import VirtualGPU
from .hardware import nanoseconds


def virtual_batches(
    gpu: VirtualGPU, count: int, seconds: float | Callable[[int], float], workers: int, ahead=2
) -> Iterator[int]:
    """The numbers of so many batches. `seconds` are those of one worker for a batch, a number or a
    function of the batch's number."""
    clock = gpu.clock
    begun, ready, taken = clock.host, [], []
    for number in range(count):
        asked, before = number - workers * ahead, number - workers
        begin = clock.host
        if workers:
            free = ready[before] if before >= 0 else begun
            begin = max(taken[asked] if asked >= 0 else begun, free)
        spent = seconds(number) if callable(seconds) else seconds
        ready.append(begin + nanoseconds(spent))
        clock.wait_for_data(ready[-1])
        taken.append(clock.host)
        yield number
