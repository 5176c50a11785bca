"""The timeline of a training step of this rank: forward, backward until its last gradient, and each
message.

    trace = trace_step(model, lambda: mean_loss(model(inputs), targets))
    trace.whole_seconds - trace.last_gradient_seconds           # what backward() waited for
    # messages after its last gradient
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from torch import Tensor, nn

from ranklab.measure.communication import CommunicationLog

LATE_SECONDS = 1.0  # for the backend to report the end of a message that was waited for already


class Trace(NamedTuple):
    """Seconds since forward began."""

    forward_seconds: float  # forward has ended
    last_gradient_seconds: float  # the last gradient of backward is complete
    whole_seconds: float  # backward() has returned
    # when each message was handed to the backend, and its duration; messages with known ends
    messages: list[tuple[float, float]]


def trace_step(model: nn.Module, loss: Callable[[], Tensor]) -> Trace:
    """Call loss() and its backward(). CPU only: on a GPU a call returns before its work is done. No
    hook stays."""
    arrived = []
    arrives = lambda _: arrived.append(time.perf_counter())
    with ExitStack() as hooks, CommunicationLog() as log:
        for parameter in model.parameters():
            if parameter.requires_grad:
                hooks.callback(parameter.register_post_accumulate_grad_hook(arrives).remove)
        begin = time.perf_counter()
        value = loss()
        forward = time.perf_counter()
        value.backward()
        end = time.perf_counter()
    while (
        any(message.seconds is None for message in log.messages)
        and time.perf_counter() < end + LATE_SECONDS
    ):
        time.sleep(0.001)
    messages = [
        (message.began_seconds, message.seconds)
        for message in log.messages
        if message.seconds is not None
    ]
    return Trace(forward - begin, max(arrived, default=forward) - begin, end - begin, messages)
