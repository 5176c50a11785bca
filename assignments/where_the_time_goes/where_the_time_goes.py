"""Assignment: five slow programs. README.md beside this file says what to write.

Try it with `python -m shardlab grade where_the_time_goes`.
"""

import torch
from torch import Tensor
from torch.nn.functional import mse_loss


def slow_train_and_log(model, optimizer, batches) -> list[float]:
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def train_and_log(model, optimizer, batches) -> list[float]:
    """The losses, with no wait between the steps."""
    raise NotImplementedError("train_and_log is a TODO")


def slow_clip(parameters, most: float) -> Tensor:
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.zeros((), dtype=gradients[0].dtype)
    for gradient in gradients:
        total = total + gradient.pow(2).sum()
    norm = total.sqrt()
    if norm > most:
        for gradient in gradients:
            gradient.mul_(most / norm)
    return norm


def clip(parameters, most: float) -> Tensor:
    """The norm before, in a few operations for any number of parameters."""
    raise NotImplementedError("clip is a TODO")


def slow_positions(lengths: list[int], longest: int) -> Tensor:
    result = torch.full((len(lengths), longest), -1)
    for row, length in enumerate(lengths):
        for place in range(length):
            result[row, place] = place
    return result


def positions(lengths: list[int], longest: int) -> Tensor:
    """Positions as above, without a loop over rows or places."""
    raise NotImplementedError("positions is a TODO")


def slow_average(means: list[Tensor], weights: list[Tensor], decay: float):
    for mean, weight in zip(means, weights):
        mean.copy_(decay * mean + (1 - decay) * weight)


def average(means: list[Tensor], weights: list[Tensor], decay: float):
    """In place, with no tensor between."""
    raise NotImplementedError("average is a TODO")


def slow_batch(store, starts: list[int], length: int) -> Tensor:
    return torch.stack([store.read(start, length) for start in starts])


def batch(store, starts: list[int], length: int) -> Tensor:
    """Windows as above, from one read."""
    raise NotImplementedError("batch is a TODO")
