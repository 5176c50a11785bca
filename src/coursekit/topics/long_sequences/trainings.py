"""Trainings on dice: ranks that exchange heads and attend by a function of the reader's, and the
plain model. No honest loss is below ln 8."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.lab import small_gpt
from shardlab.context_parallel.core import Context, Mix, context_parallel, exchange
from shardlab.gpt import next_token_loss


class HeadsExchanged(Mix):
    """Ulysses around a function of the reader."""

    def __init__(self, config, attend: Callable):
        super().__init__(config)
        self.own_attend = attend

    def forward(self, q, k, v):
        context = self.context
        q, k, v = (exchange(x, 1, 2, context.group) for x in (q, k, v))  # [B, A/c, S, D]
        places = context.in_order(torch.arange(q.shape[2], device=q.device), 0, back=True)
        pairs = zip(q, k, v)
        mixed = torch.stack([self.own_attend(*one, places) for one in pairs])
        return exchange(mixed, 2, 1, context.group)


SYMBOLS = TOKENS = 8


def throws(sequences: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets) of dice with eight faces, the same on all ranks: no model can know
    the next throw."""
    generator = torch.Generator().manual_seed(1)
    while True:
        dice = torch.randint(SYMBOLS, (sequences, TOKENS + 1), generator=generator)
        yield dice[:, :-1], dice[:, 1:]


def dice_losses(attend: Callable | None = None, steps: int = 120) -> list[float]:
    """The losses of a training in which ranks exchange heads, with one's own attention; without
    one, of the plain model, in one process."""
    net, found = small_gpt(max_sequence=TOKENS, vocabulary=SYMBOLS), []
    context = Context() if attend else None
    if context:
        context_parallel(net, context, partial(HeadsExchanged, attend=attend))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    device = next(net.parameters()).device
    for _, batch in zip(range(steps), throws()):
        inputs, targets = (part.to(device) for part in batch)
        if context:
            inputs, targets = context.own(inputs), context.own(targets)
        loss = next_token_loss(net(inputs), targets)
        loss.backward()
        if context:
            gradients = [parameter.grad for parameter in net.parameters()]
            flat = torch.cat([loss.detach().view(1), *(grad.flatten() for grad in gradients)])
            dist.all_reduce(flat)
            loss, *means = (flat / context.ranks).split([1, *(g.numel() for g in gradients)])
            for gradient, mean in zip(gradients, means):
                gradient.copy_(mean.view_as(gradient))
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def end_of(losses: list[float]) -> float:
    return sum(losses[-10:]) / 10
