"""A loader in virtual time, beside the virtual GPU that it feeds.

    with VirtualGPU(h100) as gpu, gpu.step() as step:
        for batch in VirtualLoader(gpu, seconds=0.04, workers=2).batches(10):
            train()
    step.idle_seconds(LATE_BATCH)                             # waited for data

A worker makes whole batches, one after the other. It begins one when it is asked for: when the
batch that is workers * ahead before it has been taken, as DataLoader does with prefetch_factor.
Without workers the loop makes each batch itself.
"""

from collections.abc import Callable, Iterator

from .gpu import VirtualGPU
from .hardware import nanoseconds


class VirtualLoader:
    """seconds: of one worker for a batch, a number or a function of the batch's number."""

    def __init__(
        self, gpu: VirtualGPU, seconds: float | Callable[[int], float], workers: int, ahead: int = 2
    ):
        self.clock, self.workers, self.ahead = gpu.clock, workers, ahead
        self.seconds = seconds if callable(seconds) else lambda number: seconds

    def batches(self, count: int) -> Iterator[int]:
        begun, ready, taken = self.clock.host, [], []
        for number in range(count):
            asked, before = number - self.workers * self.ahead, number - self.workers
            if self.workers:
                begin = max(
                    taken[asked] if asked >= 0 else begun, ready[before] if before >= 0 else begun
                )
            else:
                begin = self.clock.host
            ready.append(begin + nanoseconds(self.seconds(number)))
            self.clock.wait_for_data(ready[-1])
            taken.append(self.clock.host)
            yield number
