"""A block of the plain GPT, cut by heads and by the MLP's inner numbers."""

import torch
import torch.distributed as dist
from torch import Tensor

from coursekit.exercises.on_a_rank import (
    Here,
    demand,
    expect,
    groups,
    race_of_two,
    refuses,
    sent_at_best,
)
from shardlab.gpt import Block, GPTConfig
from shardlab.measure.communication import CommunicationLog

from .given import ASSIGNMENT, filled, random

BLOCK = "split_block"
SIZES = dict(layers=1, hidden=16, heads=8, vocabulary=11, max_sequence=6)
KINDS = {
    "GPT-2": GPTConfig(**SIZES, key_value_heads=8, feed_forward=12),
    "Llama": GPTConfig(
        **SIZES, key_value_heads=4, feed_forward=12, learned_positions=0, biases=0, gated_mlp=1
    ),
}
CUTS = {"qkv": 0, "up": 0, "gate": 0, "output": 1, "down": 1}  # dim of the weight


def _block(kind: str, seed: int = 1) -> Block:
    return filled(Block(KINDS[kind]), seed)


def _dim(name: str) -> int | None:
    """Along which dim a parameter is cut; None if it is whole."""
    module, _, own = name.rpartition(".")
    dim = CUTS.get(module.rpartition(".")[2])
    return None if own == "bias" and dim == 1 else dim


def _joined(part: Tensor, dim: int | None, here: Here) -> Tensor:
    """The whole one, of the parts of all ranks."""
    if dim is None:
        return part
    parts: list = [None] * here.n
    dist.all_gather_object(parts, part.detach(), group=here.group)
    return torch.cat(parts, dim)


@ASSIGNMENT.trial("parity", BLOCK)
def blocks(mine):
    """outputs and all gradients of GPT-2's block and of Llama's, on 2 and 4 ranks"""
    for here in groups(4, 2):
        for kind in KINDS:
            plain, block = _block(kind), _block(kind)
            cut = mine.split_block(block, here.group)
            x, y = random(2, 6, 16).requires_grad_(), random(2, 6, 16).requires_grad_()
            right, got = plain(x), cut(y)
            what = f"{kind}'s block on rank {here.me} of {here.n}"
            expect(f"the output of {what}", got, right.detach())
            right.square().sum().backward()
            got.square().sum().backward()
            expect(
                f"the gradient of the input of {what}",
                y.grad,
                x.grad,
                close=1e-8,
            )
            found, wanted = dict(cut.named_parameters()), dict(plain.named_parameters())
            demand(
                set(found) == set(wanted),
                f"the parameters of {what} should have the names of the plain block's, and"
                f" {', '.join(sorted(set(found) ^ set(wanted)))} differ.",
            )
            for name, parameter in wanted.items():
                expect(
                    f"{what}: the gradient of {name}, of all ranks' parts one after the other",
                    _joined(found[name].grad, _dim(name), here),
                    parameter.grad,
                    close=1e-8,
                )


@ASSIGNMENT.trial("bytes", BLOCK)
def bytes_of_a_block(mine):
    """two all-reduces forward and two backward; each rank has its part of the weights"""
    for here in groups(4):
        for kind in KINDS:
            block, plain = mine.split_block(_block(kind), here.group), _block(kind)
            weights = sum(p.numel() for n, p in plain.named_parameters() if _dim(n) is not None)
            more = sum(p.numel() for n, p in plain.named_parameters() if _dim(n) is None)
            found = sum(p.numel() for p in block.parameters())
            what = f"{kind}'s block on rank {here.me} of 4"
            demand(
                found <= weights // 4 + more,
                f"{what} has {found:,} parameters: a quarter of {weights:,}, and {more:,} that stay"
                f" whole, are {weights // 4 + more:,}.",
            )
            x = random(2, 6, 16).requires_grad_()
            with CommunicationLog() as log:
                y = block(x)
                forward = sent_at_best(log)
                y.sum().backward()
            each = 2 * x.nbytes * 3 / 4
            demand(
                forward <= 2 * each,
                f"the forward of {what} sends {forward:,.0f} bytes: two all-reduces of the output"
                f" are {2 * each:,.0f}, one after attention, one after the MLP.",
            )
            backward = sent_at_best(log) - forward
            demand(
                backward <= 2 * each,
                f"the backward of {what} sends {backward:,.0f} bytes: two all-reduces are"
                f" {2 * each:,.0f}, one before attention, one before the MLP. Layers that take the"
                " same input enter once.",
            )


@ASSIGNMENT.trial("faults", BLOCK)
def heads_that_cannot_be_cut(mine):
    """heads that the ranks do not divide are refused: a head is not cut"""
    for here in groups(3):
        refuses(
            f"split_block of 8 heads on {here.n} ranks",
            mine.split_block,
            _block("GPT-2"),
            here.group,
            errors=(ValueError,),
            may_send=True,  # ranks may ask each other first
        )


@ASSIGNMENT.trial("faults", BLOCK)
def frozen_parts(mine):
    """what is frozen stays frozen"""
    for here in groups(2):
        block = _block("GPT-2")
        block.attention.requires_grad_(False)
        cut = mine.split_block(block, here.group)
        trained = [name for name, p in cut.attention.named_parameters() if p.requires_grad]
        demand(
            not trained,
            f"{', '.join(trained)} of a frozen attention is trained after split_block.",
        )


@ASSIGNMENT.trial("speed", BLOCK)
def seconds_of_a_block(mine):
    """forward and backward of a block of 256, 2 x 128 tokens, on 4 ranks"""
    config = GPTConfig(layers=1, hidden=256, heads=8, vocabulary=11, max_sequence=128)
    x = torch.randn(2, 128, 256, requires_grad=True)

    def stepper(split):
        block = split(Block(config), None)
        return lambda: block(x).sum().backward()

    return race_of_two(stepper(mine.split_block), stepper(ASSIGNMENT.reference[BLOCK]))
