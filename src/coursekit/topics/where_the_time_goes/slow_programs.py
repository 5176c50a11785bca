"""Training programs of which each but the first has one slow line, and busy neighbours; for lab 11,
whose reader tells them apart by counts and shares, not by reading this file."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from coursekit.lab import batches
from shardlab.gpt import next_token_loss

SPINS = "while True: pass"
_STEPS = 40
ANSWERS = {"the program with the loader": 3, "the program with the columns": 1}


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many other programs that compute all the time."""
    alone = dict(start_new_session=True)  # a cell's interrupt would print a traceback for each
    spinning = [subprocess.Popen([sys.executable, "-c", SPINS], **alone) for _ in range(count)]
    time.sleep(0.3)  # until they have started
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


class Windows(torch.utils.data.Dataset):
    def __init__(self, slow: bool):
        stream = batches(1)
        self.windows, self.slow = [next(stream)[0][0] for _ in range(4 * _STEPS)], slow

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, number: int) -> Tensor:
        if self.slow:
            time.sleep(0.002)  # a disk
        return self.windows[number]


def one_by_one(parameters: list[nn.Parameter]):
    """Clips the gradients, a column at a time."""
    for parameter in parameters:
        for column in parameter.grad.unbind(-1)[:48]:
            column.clamp_(-1, 1)


def squared_by_hand(model: nn.Module) -> Tensor:
    """The sum of all squared weights, in Python."""
    return sum(
        sum(number * number for number in p.flatten()[:150].tolist()) for p in model.parameters()
    )


def program(letter: str) -> Callable[[nn.Module], None]:
    """A training loop: A is the plain one."""

    def train(model: nn.Module):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for inputs in DataLoader(Windows(slow=letter == "D"), batch_size=4):
            optimizer.zero_grad()
            loss = next_token_loss(model(inputs), inputs)
            loss.backward()
            if letter == "B":
                one_by_one(list(model.parameters()))
            if letter == "C":
                norms = [p.grad.norm().item() for p in model.parameters()]
                F.relu(torch.tensor(norms))
            if letter == "E":
                squared_by_hand(model)
            optimizer.step()

    return train
