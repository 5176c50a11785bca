"""How large the gradients of a small GPT are: counted by powers of two, recorded for the chapter.

A scale, or a division by a power of two, moves every count by whole places, so the page computes
from one recording what any such scale does. The model trains in fp32 with a mean over b s tokens:
what a step of k microbatches divides by k is exactly the same shape, log2 k places further down.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from coursekit.recordings.races import Run
from coursekit.recordings.recordings import Row
from coursekit.topics.mixed_precision.trainings import build_model, training_data
from shardlab.gpt import next_token_loss

RECORDED_AFTER = (0, 150)  # steps
COUNTED_MICROBATCHES = 20  # at a time, so that the ends of a histogram are not left to chance


class Binades(NamedTuple):
    """Counts of the numbers of a size from 2^e on and below 2^(e+1), for e = first, first + 1, ...;
    and of zeros."""

    first: int
    counts: list[int]
    zeros: int


def count_binades(tensors: Iterable[Tensor]) -> Binades:
    """The sizes of all elements, which are finite and of any floating type."""
    found, zeros = {}, 0
    for tensor in tensors:
        zeros += int((tensor == 0).sum())
        exponents = torch.frexp(tensor[tensor != 0].double()).exponent - 1
        for exponent, count in zip(*map(Tensor.tolist, exponents.unique(return_counts=True))):
            found[exponent] = found.get(exponent, 0) + count
    if not found:
        return Binades(0, [0], zeros)
    first, last = min(found), max(found)
    return Binades(first, [found.get(place, 0) for place in range(first, last + 1)], zeros)


def watched_gradients(model: nn.Module, tokens: Tensor, targets: Tensor) -> dict[str, list[Tensor]]:
    """One backward of a mean loss: the gradients that come to the outputs of all linear layers,
    norms and tables, those of them that come to attention's qkv, and those of the parameters."""
    kinds = {"activations": [], "qkv": [], "parameters": []}

    def watch(name):
        def arrived(gradient):
            kinds["activations"].append(gradient)
            if name.endswith("qkv"):
                kinds["qkv"].append(gradient)

        return lambda module, inputs, output: output.register_hook(arrived) and None

    leaves = [(n, m) for n, m in model.named_modules() if isinstance(m, WATCHED)]
    hooks = [module.register_forward_hook(watch(name)) for name, module in leaves]
    try:
        next_token_loss(model(tokens), targets).backward()
    finally:
        for hook in hooks:
            hook.remove()
    kinds["parameters"] = [p.grad for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return kinds


WATCHED = (nn.Linear, nn.LayerNorm, nn.Embedding)


def gradients(
    device: torch.device,
    after: Iterable[int] = RECORDED_AFTER,
    microbatches: int = COUNTED_MICROBATCHES,
) -> Iterator[Row]:
    """Counts of gradients by powers of two, at the start and after training with AdamW in fp32. On
    the CPU, so that every machine records nearly the same."""
    vocabulary, windows = training_data(seed=0)
    model = build_model(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    done = 0
    for steps in after:
        for _ in range(steps - done):
            tokens, targets = next(windows)
            optimizer.zero_grad()
            next_token_loss(model(tokens), targets).backward()
            optimizer.step()
        done = steps
        optimizer.zero_grad()
        found = {}
        for _ in range(microbatches):
            for kind, tensors in watched_gradients(model, *next(windows)).items():
                found.setdefault(kind, []).extend(tensors)
        for kind, tensors in found.items():
            binades = count_binades(tensors)
            case = dict(
                of=kind,
                steps=steps,
                first=binades.first,
                counts=" ".join(map(str, binades.counts)),
                zeros=binades.zeros,
            )
            total = sum(binades.counts) + binades.zeros
            yield Row("mixed_precision.gradients", total, "count", case)


GRADIENT_RUN = Run(95, gradients, dict(after=(0, 1), microbatches=1))
