"""Functions of the lab on ZeRO: one small GPT is built, sharded, trained, weighed and counted.
Sizes are in bytes; tokens come in numbered parts of two sequences.

Functions that take a `world` run on the notebook's side and give tables and figures; the others run
on a rank.
"""

import os
import signal
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from coursekit.exercises.going_on import must_be_right
from coursekit.formulas import RECIPES, evaluate, quantities, zero_sent_bytes, zero_states_bytes
from coursekit.show.tables import Table, in_words
from coursekit.topics.zero.exercises import step_of_stage_1
from coursekit.topics.zero.figures import stages_figure
from shardlab import collectives, zero
from shardlab.gpt import GPT, GPTConfig, next_token_loss
from shardlab.measure.communication import CommunicationLog
from shardlab.measure.fake_ranks import rank_of_many
from shardlab.measure.ledger import Ledger
from shardlab.ranks import RankDied, ranks
from shardlab.saving import resume, save
from shardlab.saving.resharding import flats_of, size_of

SIZES = dict(layers=3, hidden=45, heads=5, vocabulary=101, max_sequence=16, tied_head=0)
STEPS, SAVE_EVERY = 10, 3
PARTS_OF_A_STEP = 12  # however many ranks share them
RANK_KILLED, KILLED_IN_STEP = 2, 7
STEPS_FOR_A_PEAK = 3
_STAGES = range(4)
_MICROBATCHES = (1, 4)
STEPS_BY_HAND = 4
STEP_COUNTER_BYTES = 4  # of PyTorch's AdamW, for each tensor that it updates


# --- one model, one step --------------------------------------------------------------------------


def build_model(dtype: torch.dtype = torch.float32) -> GPT:
    """One GPT of three blocks on every rank."""
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


def parameters_in_words() -> str:
    """How many parameters it has."""
    return f"{sum(parameter.numel() for parameter in build_model().parameters()):,} parameters"


# --- a step by hand -------------------------------------------------------------------------------


class ByHand(NamedTuple):
    """The results of the reader's stage 1 on this rank."""

    elements_of_the_shard: int
    optimizer_bytes: int
    bytes_sent_in_a_step: int
    difference_from_plain: float


def run_stage_1(world, step: Callable) -> list[ByHand]:
    """Four steps of AdamW with the reader's step, beside a plain model with the batch of all
    ranks. Raises NotYet unless its check passes."""
    must_be_right(step_of_stage_1, step)
    found = world.run(stage_1_on_rank, step)
    assert max(own.difference_from_plain for own in found) < 1e-9, found
    return found


def stage_1_on_rank(step: Callable) -> ByHand:
    """The reader's stage 1 on this rank, in float64."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, plain = build_model(torch.float64), build_model(torch.float64)
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    own = torch.nn.Parameter(flat.tensor_split(n)[rank].clone())
    optimizer = torch.optim.AdamW([own])
    plain_optimizer = torch.optim.AdamW(plain.parameters())

    def update(shard, gradient):
        own.data.copy_(shard)
        own.grad = gradient
        optimizer.step()
        shard.copy_(own.data)

    def reduce_scatter(full):
        shard = torch.empty_like(own.data)
        collectives.reduce_scatter(shard, full)
        return shard

    def all_gather(shard):
        whole = torch.empty_like(flat)
        collectives.all_gather(whole, shard)
        return whole

    for number in range(STEPS_BY_HAND):
        first_part = number * n
        for one, parts in ((model, [rank]), (plain, range(n))):
            one.zero_grad()
            for part in parts:
                tokens = tokens_of(first_part + part)
                loss = next_token_loss(one(tokens[:, :-1]), tokens[:, 1:])
                (loss / len(parts)).backward()
        plain_optimizer.step()
        gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        with CommunicationLog() as log:
            step(flat, gradients, update, rank, n, reduce_scatter, all_gather)
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
    wanted = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
    kept = sum(state.nbytes for state in optimizer.state[own].values())
    difference = ((flat - wanted).norm() / wanted.norm()).item()
    return ByHand(own.numel(), kept, log.totals()["send"].nbytes, difference)


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
    """The flat tensors that a stage cuts on this rank."""
    model = build_model()
    flats = list(flats_of(model, shard_model(stage, model)))
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


class WeighedStages(NamedTuple):
    """The bytes that each rank keeps, stage by stage, and what the stages cut."""

    kept: dict[int, list[StageBytes]]
    flats: dict[int, list[FlatTensors]]

    def of_rank_0(self) -> dict[str, int]:
        """All model states, by the names of the predictions."""
        return {f"stage {stage}, bytes": sum(on[0]) for stage, on in self.kept.items()}

    def figure(self):
        return stages_figure(
            {f"stage {stage}": on_ranks[0]._asdict() for stage, on_ranks in self.kept.items()}
        )

    def table(self) -> Table:
        """A table of rank 0 kind by kind, and of all of rank 0 and of rank 3."""
        heads = ["flat tensors", "parameters", "gradients", "states", "rank 0", "rank 3"]
        rows = [
            [
                f"stage {stage}",
                len(self.flats[stage][0].elements),
                *on_ranks[0],
                sum(on_ranks[0]),
                sum(on_ranks[3]),
            ]
            for stage, on_ranks in self.kept.items()
        ]
        return Table(["bytes", *heads], rows)


def weigh_stages(world) -> WeighedStages:
    """All ranks in all stages. Raises AssertionError if one differs from the formula by a byte."""
    kept = {stage: world.run(weigh_stage, stage) for stage in _STAGES}
    flats = {stage: world.run(flat_tensors, stage) for stage in _STAGES}
    for stage in _STAGES:
        measured = [sum(on_rank) for on_rank in kept[stage]]
        assert measured == states_by_formula(stage, flats[stage]), stage
    return WeighedStages(kept, flats)


class SentByStages(NamedTuple):
    """(stage, microbatches) -> bytes that each rank sends in a step."""

    nbytes: dict[tuple[int, int], list[int]]

    def models(self, stage: int, microbatches: int) -> float:
        """The bytes that rank 0 sends, in models."""
        model_bytes = sum(parameter.nbytes for parameter in build_model().parameters())
        return round(self.nbytes[stage, microbatches][0] / model_bytes, 3)

    def of_four_microbatches(self) -> dict[str, float]:
        """Stages 2 and 3, by the names of the predictions."""
        return {
            f"stage {stage}, 4 microbatches, models sent": self.models(stage, 4) for stage in (2, 3)
        }

    def table(self) -> Table:
        rows = []
        for stage in _STAGES:
            pairs = [
                (self.nbytes[stage, count][0], self.models(stage, count)) for count in _MICROBATCHES
            ]
            rows.append([f"stage {stage}", *(number for pair in pairs for number in pair)])
        heads = ["1 microbatch", "models", "4 microbatches", "models"]
        return Table(["sent by rank 0, bytes", *heads], rows)


def count_stages(world) -> SentByStages:
    """All stages, with one microbatch and with four. Raises AssertionError if a rank differs from
    the formula by a byte."""
    nbytes = {}
    for stage in _STAGES:
        flats = world.run(flat_tensors, stage)
        for microbatches in _MICROBATCHES:
            sent = world.run(count_sent, stage, microbatches)
            assert sent == sent_by_formula(stage, microbatches, flats), (stage, microbatches)
            nbytes[stage, microbatches] = sent
    return SentByStages(nbytes)


def given_to_explorer(world) -> dict:
    """The values with which the explorer of memory starts: the small GPT, and as points the bytes
    that rank 0 keeps."""
    kept = weigh_stages(world).kept
    points = {
        f"zero_states_bytes(zero_stage={stage})": [(4, sum(kept[stage][0]))] for stage in _STAGES
    }
    return dict(measured=points, recipe="fp32 Adam", **_small_model())


def given_to_time_explorer(world) -> dict:
    """The values with which the explorer of messages starts: the same GPT, and as points the bytes
    that rank 0 sends."""
    sent = count_stages(world).nbytes
    points = {
        f"zero_sent_bytes(zero_stage={stage})": [
            (count, sent[stage, count][0]) for count in _MICROBATCHES
        ]
        for stage in (1, 2, 3)
    }
    fp32 = dict(parameter_element_bytes=4, gradient_element_bytes=4)
    return dict(measured=points, **fp32, **_small_model())


def _small_model() -> dict:
    parameters = sum(parameter.numel() for parameter in build_model().parameters())
    return dict(data_parallel=4, zero_stage=3, parameters=parameters)


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


class GoneOn(NamedTuple):
    """The relative difference of each loss from the plain model's, by stage and step."""

    differences: dict[int, dict[int, float]]

    @property
    def first_step_again(self) -> int:
        return min(self.differences[3])

    def table(self) -> Table:
        rows = [
            [f"stage {stage}", *in_words(row.values())] for stage, row in self.differences.items()
        ]
        return Table(["relative difference in step", *self.differences[3]], rows)


def kill_and_go_on() -> GoneOn:
    """A plain model trains in one process; four ranks of their own train with stage 3 until one is
    killed; three go on from what was saved, once in each stage. Raises AssertionError if a loss
    differs from the plain model's by more than rounding."""
    with TemporaryDirectory() as folder:
        with ranks(1, device="cpu", announce=False) as one:
            plain = one.run(train, 0, f"{folder}/plain")[0]
        with ranks(4, device="cpu", announce=False) as four:
            try:
                four.run(train, 3, folder, KILLED_IN_STEP)
            except RankDied as died:
                print("killed: rank", *died.ranks)
        with ranks(3, device="cpu", announce=False) as three:
            resumed = {stage: three.run(train, stage, folder) for stage in (1, 2, 3)}
    differences = {
        stage: dict(zip(losses[0], loss_differences(losses, plain)))
        for stage, losses in resumed.items()
    }
    assert max(max(row.values()) for row in differences.values()) < 1e-12, differences
    return GoneOn(differences)


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


class ChainBesideFormula(NamedTuple):
    """A chain of layers on rank 0, and what the formula says of it."""

    measured: ChainBytes
    formula: ChainBytes

    def by_prediction(self) -> dict[str, int]:
        """Values by the names of the predictions."""
        return {
            "whole weights at a time, bytes": self.measured.whole_at_most,
            "besides the shards at the peak, bytes": self.measured.beside_the_shards,
        }

    def table(self) -> Table:
        heads = ["bytes on rank 0", "whole at most", "between", "besides the shards"]
        return Table(heads, [[name, *row] for name, row in self._asdict().items()])


def weigh_chain_beside_formula(world) -> ChainBesideFormula:
    """Raises AssertionError if more is whole at a time than the formula says."""
    given = dict(zero_unit_parameters=128 * 128, zero_root_parameters=0)
    given.update(parameter_element_bytes=4, gradient_element_bytes=4)
    gathered, transient = evaluate(
        ["zero_gathered_bytes", "zero_transient_bytes"], **given
    ).values()
    measured = world.run(weigh_chain)[0]
    assert measured.whole_at_most == gathered
    return ChainBesideFormula(measured, ChainBytes(gathered, 0, transient))


class OneOfMany(NamedTuple):
    """GiB of one rank, by kind, at rest and at its peak."""

    resting: dict[str, float]
    peak: dict[str, float]

    def by_prediction(self) -> dict[str, float]:
        """Values by the names of the predictions."""
        return {
            "rank 0 of 1,024 at rest, GiB": self.resting["total"],
            "rank 0 of 1,024 at its peak, GiB": self.peak["total"],
        }

    def table(self) -> Table:
        kinds = [kind for kind in self.resting if kind != "total"]
        rows = [
            [name, *(f"{row[kind]:.2f}" for kind in kinds)]
            for name, row in (("at rest", self.resting), ("at the peak", self.peak))
        ]
        return Table(["GiB", *kinds], rows)


def rank_0_of_many(model: str, world_size: int) -> OneOfMany:
    """A step of a known model under fake tensors, as one of so many ranks that are not there."""
    rank_0 = rank_of_many(GPTConfig(**quantities(model=model)), world_size=world_size)
    return OneOfMany(in_gib(rank_0.resting), in_gib(rank_0.peak.bytes))


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


def least_peak_bytes(implementation: str, peak: Callable[[str], int] = peak_bytes) -> int:
    """The least peak of three steps on this rank. gloo reduces a copy of a unit's gradients, and
    its thread sometimes lets go of the copy only after FSDP2 has gathered the next unit. The copy
    is not FSDP2's, and NCCL makes none."""
    return min(peak(implementation) for _ in range(STEPS_FOR_A_PEAK))


class PeaksBesideFSDP2(NamedTuple):
    """The most bytes of each rank in a step of stage 3. Of FSDP2, the least of three steps."""

    shardlab: list[int]
    FSDP2: list[int]

    @property
    def percent_below(self) -> float:
        return round(100 * (1 - max(self.shardlab) / max(self.FSDP2)), 1)

    def table(self) -> Table:
        heads = ["peak, bytes", *(f"rank {rank}" for rank in range(len(self.shardlab)))]
        return Table(heads, [[name, *peaks] for name, peaks in self._asdict().items()])


def peaks_beside_fsdp2(world) -> PeaksBesideFSDP2:
    return PeaksBesideFSDP2(world.run(peak_bytes, "shardlab"), world.run(least_peak_bytes, "FSDP2"))
