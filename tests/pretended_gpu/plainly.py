"""The plain model that each technique is compared with: trained on this rank's CPU, in one process,
in double precision and with random biases."""

from contextlib import nullcontext
from functools import cache

import torch
import torch.distributed as dist
from pretended.step import Step, watched
from torch import Tensor, nn

from shardlab.gpt import GPT, GPTConfig, next_token_loss

SIZES = dict(layers=2, hidden=16, heads=4, vocabulary=19, max_sequence=8)
STEPS, SEQUENCES = 2, 2  # in a training; of each rank
CLOSE = 1e-11  # double precision rounds to 1e-16; sums over ranks are made in another order


def model(seed: int = 0, device: str = "cuda", dtype: torch.dtype = torch.float64, **sizes) -> GPT:
    """A GPT whose vectors, biases among them, are random too."""
    torch.manual_seed(seed)
    net = GPT(GPTConfig(**{**SIZES, **sizes})).to(dtype)
    for parameter in net.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    return net.to(device)


def batch(device: str = "cuda", sequences: int = SEQUENCES) -> Tensor:
    """[n, s]: the batch of all ranks."""
    shape = (sequences * dist.get_world_size(), SIZES["max_sequence"])
    draw = torch.Generator().manual_seed(1)
    return torch.randint(SIZES["vocabulary"], shape, generator=draw).to(device)


def part(device: str = "cuda") -> Tensor:
    """This rank's part of the batch."""
    return batch(device).chunk(dist.get_world_size())[dist.get_rank()].contiguous()


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def train(backward, optimizer, before_step=lambda: None, scaler=None) -> Step:
    """Some steps, of which the last is watched. backward() fills the gradients."""
    for number in range(STEPS):
        with watched() if number == STEPS - 1 else nullcontext() as step:
            backward()
            before_step()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad()
    return step


@cache
def trained(
    clip: float = 0.0,
    optimizer=sgd,
    dtype: torch.dtype = torch.float64,
    sequences: int = SEQUENCES,
    **sizes,
) -> GPT:
    """The plain model after the steps."""
    net, tokens = model(device="cpu", dtype=dtype, **sizes), batch("cpu", sequences)
    steps = optimizer(net.parameters())

    def clipped():
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)

    train(lambda: next_token_loss(net(tokens), tokens).backward(), steps, clipped)
    return net


def assert_close(found: dict[str, Tensor], plain: nn.Module, within: float = CLOSE):
    """These parameters, by their names in the plain model, have its values."""
    names = dict(plain.named_parameters())
    assert found
    for name, value in found.items():
        error = (value.detach().cpu().double() - names[name].detach().double()).abs().max().item()
        assert error <= within, f"{name} is off by {error}"
