"""The mark of gradients that are made without autograd, for whoever tells the phases of a step
apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

made_by_hand: ContextVar[bool] = ContextVar("gradients are made without autograd", default=False)


@contextmanager
def gradients_by_hand() -> Iterator[None]:
    """A block that computes gradients without autograd: it belongs to a backward."""
    token = made_by_hand.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        made_by_hand.reset(token)
