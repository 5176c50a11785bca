"""The model on which the pipeline is tried, and what its trials compare."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coursekit.exercises.on_a_rank import Here, demand, expect, new_groups
from shardlab.pipelines.partition import cut
from shardlab.pipelines.simulation import home_of

from .given import ASSIGNMENT, Words, actions_of

PIPELINE = "Pipeline"
CLOSE = 1e-6  # one layer computes in fp32
TOKENS = 11
SIZES = (5, 7, 6, 5, 8, 5, 4, 5)  # numbers between layers
MICROBATCHES = 4


class Layer(nn.Module):
    """[B, S, inputs] -> [B, S, outputs]."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype):
        super().__init__()
        self.linear, self.dtype = nn.Linear(inputs, outputs).to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x.to(self.dtype)))


def groups_of_all(*sizes: int) -> list[Here]:
    """This rank's groups of these sizes. All ranks are in one of each, so that all make as many:
    PyTorch names a group that only its ranks make by the number of groups that they have."""
    by_size = {4: [[0, 1, 2, 3]], 2: [[0, 2], [1, 3]], 1: [[0], [1], [2], [3]]}
    return new_groups(*(ranks for size in sizes for ranks in by_size[size]))


def nine_layers(tied: bool = False) -> list[nn.Module]:
    """Nine layers, alike on all ranks: tokens in, scores out, sizes that differ, one in fp32, one
    frozen. `tied`: the last one's weight is the first one's."""
    torch.manual_seed(4)
    made: list[nn.Module] = [nn.Embedding(TOKENS, SIZES[0]).double()]
    for number, (inputs, outputs) in enumerate(zip(SIZES, SIZES[1:])):
        dtype = torch.float32 if number == 3 else torch.float64
        made.append(Layer(inputs, outputs, dtype))
    made[2].requires_grad_(False)
    made.append(nn.Linear(SIZES[-1], TOKENS).double())
    if tied:
        made[-1].weight = made[0].weight
    return made


def batch_of(number: int = 0) -> tuple[Tensor, Tensor]:
    """(tokens, targets), each [8, 3]."""
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randint(TOKENS, (8, 3), generator=generator) for _ in range(2))


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def plain_step(layers: list[nn.Module], number: int = 0, factor: float = 1.0) -> list[Tensor]:
    """Adds gradients of the mean loss over the batch; the losses of the microbatches."""
    losses = []
    for tokens, targets in zip(*(part.chunk(MICROBATCHES) for part in batch_of(number))):
        x = tokens
        for layer in layers:
            x = layer(x)
        losses.append(mean_loss(x, targets))
        (factor * losses[-1] / MICROBATCHES).backward()
    return [loss.detach() for loss in losses]


def schedules_of(n: int) -> dict[str, Words]:
    """Schedules of n ranks, by their names."""
    made = {
        "1F1B": ASSIGNMENT.reference["one_f_one_b"](n, MICROBATCHES),
        "GPipe": ASSIGNMENT.reference["gpipe"](n, MICROBATCHES),
    }
    if MICROBATCHES % n == 0:
        made["interleaved 1F1B"] = ASSIGNMENT.reference["interleaved"](n, MICROBATCHES, 2)
    return made


def own_layers(layers: list[nn.Module], words: Words, rank: int) -> dict[int, nn.Module]:
    """The layers of the rank, by their numbers: the first stages have one more."""
    home = home_of(actions_of(words))
    cuts = cut(len(layers), len(home), None)
    return {
        number: layers[number]
        for stage, (first, end) in enumerate(cuts)
        for number in range(first, end)
        if home[stage] == rank
    }


def pipeline_of(
    mine, words: Words, here: Here, layers: list[nn.Module], loss: Callable = mean_loss
):
    return mine.Pipeline(layers, words, batch_of()[0], loss, here.group)


def compare_gradients(what: str, own: dict[int, nn.Module], plain: list[nn.Module], others=None):
    """The gradients of this rank's layers."""
    for number, layer in own.items():
        for name, parameter in layer.named_parameters():
            right = plain[number].get_parameter(name).grad
            said = f"{what}: the gradient of {name} in layer {number}"
            if right is None:
                demand(parameter.grad is None, f"{said} should be None: it is frozen.")
                continue
            instead = {
                sentence: other[number].get_parameter(name).grad
                for sentence, other in (others or {}).items()
            }
            expect(said, parameter.grad, right, instead, CLOSE)


def plain_layers(number: int = 0, factor: float = 1.0, tied: bool = False) -> list[nn.Module]:
    layers = nine_layers(tied)
    plain_step(layers, number, factor)
    return layers


def last_alone() -> list[nn.Module]:
    """The layers with the gradients of the last microbatch, as part of the mean."""
    layers = nine_layers()
    tokens, targets = (part.chunk(MICROBATCHES)[-1] for part in batch_of())
    (mean_loss(nn.Sequential(*layers)(tokens), targets) / MICROBATCHES).backward()
    return layers


def squares(y: Tensor, targets: Tensor) -> Tensor:
    return (y - targets).square().mean() + y.mean()
