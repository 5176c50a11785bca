"""What the lab on ZeRO does on its ranks: one small GPT is built, sharded, trained, weighed and
counted. Sizes are in bytes; tokens come in numbered parts of two sequences."""

import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from shardlab import collectives, zero
from shardlab.formulas import RECIPES, zero_sent_bytes, zero_states_bytes
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.ledger import Ledger
from shardlab.saving import resume, save
from shardlab.saving.resharding import flats_of, size_of

SIZES = dict(layers=3, hidden=45, heads=5, vocabulary=101, max_sequence=16, tied_head=0)
STEPS, SAVE_EVERY = 10, 3
PARTS_OF_A_STEP = 12  # however many ranks share them
RANK_KILLED = 2
STEP_COUNTER_BYTES = 4  # of PyTorch's AdamW, for each tensor that it updates


# --- one model, one step --------------------------------------------------------------------------


def build_model(dtype: torch.dtype = torch.float32) -> GPT:
    """The same GPT of three blocks on every rank."""
    torch.manual_seed(0)
    return GPT(GPTConfig(**SIZES)).to(dtype)


def shard_model(stage: int, model, optimizer_cls=torch.optim.AdamW, **settings):
    """Put the model under a stage; its optimizer. Stage 0 is the plain model, whose gradients no
    rank exchanges."""
    if stage == 0:
        return optimizer_cls(model.parameters(), **settings)
    _, optimizer = zero.shard(model, optimizer_cls, stage=stage, **settings)
    return optimizer


def tokens_of(part: int) -> torch.Tensor:
    """Two sequences of 16 tokens, the same whenever the part is asked for."""
    generator = torch.Generator().manual_seed(part)
    return torch.randint(SIZES["vocabulary"], (2, 16), generator=generator)


def training_step(model, optimizer, microbatches: int = 1, first_part: int = 0) -> float:
    """One step; this rank's part of the mean loss. Rank r of n takes the parts first_part + r,
    then n further on for each microbatch."""
    ranks, mean_loss = dist.get_world_size(), 0.0
    end = first_part + microbatches * ranks
    for part in range(first_part + dist.get_rank(), end, ranks):
        tokens = tokens_of(part)
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]) / microbatches
        loss.backward()
        mean_loss += loss.item()
    optimizer.step()
    return mean_loss


def warm_up() -> float:
    """A step of no other use: it lets PyTorch load what it needs."""
    model = build_model()
    return training_step(model, shard_model(3, model))


# --- what a rank keeps and sends ------------------------------------------------------------------


class StageBytes(NamedTuple):
    """Parameters and gradients when backward is done, the optimizer's states after its step."""

    parameters: int
    gradients: int
    optimizer: int


class FlatTensors(NamedTuple):
    """elements of each flat tensor that a stage cuts (its buckets or units), and how many tensors
    this rank's optimizer updates."""

    elements: list[int]
    updated: int


def weigh_stage(stage: int) -> StageBytes:
    """Bytes on this rank in one step of AdamW."""
    model = build_model()
    optimizer = shard_model(stage, model)
    with Ledger(model, optimizer) as ledger:
        training_step(model, optimizer)
    after_backward = [mark.bytes for mark in ledger.timeline if mark.phase == "backward"][-1]
    return StageBytes(after_backward.parameters, after_backward.gradients, ledger.bytes.optimizer)


def flat_tensors(stage: int) -> FlatTensors:
    """What a stage cuts on this rank."""
    model = build_model()
    flats = list(flats_of(model, shard_model(stage, model), None))
    elements = [size_of(flat.parameters) for flat in flats]
    return FlatTensors(elements, sum(len(flat.tensors) for flat in flats))


def states_by_formula(stage: int, flats: Sequence[FlatTensors]) -> list[int]:
    """Bytes that each rank keeps: the formula of one flat tensor, added up over them, and the step
    counters. `flats` has an entry for each rank."""
    state = dict(zero_stage=stage, data_parallel=len(flats), **RECIPES["fp32 Adam"].quantities)
    return [
        STEP_COUNTER_BYTES * flat.updated
        + sum(
            zero_states_bytes(parameters=elements, rank=rank, **state) for elements in flat.elements
        )
        for rank, flat in enumerate(flats)
    ]


def count_sent(stage: int, microbatches: int) -> int:
    """Bytes that this rank hands to the backend in one step of SGD. Stage 0 sums its gradients
    around a ring, after the last microbatch."""
    model = build_model()
    optimizer = shard_model(stage, model, torch.optim.SGD, lr=0.1)
    with CommunicationLog() as log:
        training_step(model, optimizer, microbatches)
        if stage == 0:
            for parameter in model.parameters():
                collectives.all_reduce(parameter.grad)
    return log.totals()["send"].nbytes


def sent_by_formula(stage: int, microbatches: int, flats: Sequence[FlatTensors]) -> list[int]:
    """Bytes that each rank sends in a step, in fp32. `flats` has an entry for each rank."""
    state = dict(zero_stage=stage, data_parallel=len(flats), accumulation_steps=microbatches)
    state.update(parameter_element_bytes=4, gradient_element_bytes=4)
    return [
        sum(zero_sent_bytes(parameters=elements, rank=rank, **state) for elements in flat.elements)
        for rank, flat in enumerate(flats)
    ]


# --- a rank is killed -----------------------------------------------------------------------------


def train(stage: int, folder: str, dies_in: int | None = None) -> dict[int, float]:
    """Ten steps of AdamW in float64, from what the folder has saved on: this rank's part of the
    mean loss of each step. With dies_in, the run saves after every third step, and rank 2 is
    killed before that step."""
    model = build_model(torch.float64)
    optimizer = shard_model(stage, model, lr=0.01)
    saved = resume(folder, model, optimizer)
    losses = {}
    for number in range(saved.step if saved else 0, STEPS):
        if dies_in == number and dist.get_rank() == RANK_KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        microbatches = PARTS_OF_A_STEP // dist.get_world_size()
        first_part = PARTS_OF_A_STEP * number
        losses[number] = training_step(model, optimizer, microbatches, first_part)
        if dies_in is not None and (number + 1) % SAVE_EVERY == 0:
            save(folder, model, optimizer, number + 1)
    return losses


def loss_differences(losses: Sequence[dict], plain: dict) -> list[float]:
    """Relative difference between the mean over ranks and the plain model's loss, step by step."""
    return [
        abs(sum(own[step] for own in losses) / len(losses) / plain[step] - 1) for step in losses[0]
    ]


# --- peaks ----------------------------------------------------------------------------------------


class ChainBytes(NamedTuple):
    """Whole weights at once, at most; whole weights between forward and backward; all that the
    peak has beside the shards and their gradients."""

    whole_at_most: int
    whole_between: int
    beside_the_shards: int


def weigh_chain() -> ChainBytes:
    """Bytes on this rank of six linear layers of 128 × 128 in fp32, under stage 3."""
    layers = [torch.nn.Linear(128, 128, bias=False) for _ in range(6)]
    chain = torch.nn.Sequential(*layers)
    zero.shard(chain, torch.optim.SGD, stage=3)
    with Ledger(chain) as ledger:
        loss = chain(torch.ones(1, 128)).sum()
        whole_between = ledger.bytes.gathered
        loss.backward()
    peak = ledger.peak.bytes
    whole_at_most = max(mark.bytes.gathered for mark in ledger.timeline)
    return ChainBytes(whole_at_most, whole_between, peak.total - peak.parameters - peak.gradients)


def in_gib(counted) -> dict[str, float]:
    """A row of the ledger and its total, in GiB."""
    counts = {**counted._asdict(), "total": counted.total}
    return {name: round(nbytes / 2**30, 2) for name, nbytes in counts.items()}


def peak_bytes(implementation: str) -> int:
    """Most bytes on this rank in a step of AdamW under stage 3 of "shardlab" or under "FSDP2"."""
    model = build_model()
    if implementation == "FSDP2":
        for unit in [model.embedding, *model.blocks, model.head, model]:
            fully_shard(unit)
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        optimizer = shard_model(3, model)
    with Ledger(model, optimizer) as ledger:
        training_step(model, optimizer)
    return ledger.peak.bytes.total
