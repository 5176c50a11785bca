"""Random compositions of techniques, trained beside the plain model: do they come out alike?
`python tests/compositions.py --cases 50 --seed 7`; `outcome(case_of(17))` is "parity", or one line
that says what differs. A case is saved after two steps and resumed, on another number of ranks and
in another stage. Each mistake that its layout allows, such as a forgotten group, is made as well,
and every rank refuses it with a typed error."""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ranklab.ranks import ranks
from shardlab import zero
from shardlab.common.agreement import CannotReplicate
from shardlab.common.shards import CannotShard
from shardlab.context_parallel import (
    Context,
    GatheredAttention,
    RingAttention,
    Ulysses,
    context_parallel,
)
from shardlab.experts.core import mixtures, move_biases
from shardlab.experts.hardened.apply import apply_expert_parallel
from shardlab.gpt import GPT, Block, GPTConfig, next_token_loss
from shardlab.gradient_clipping import clip_gradients
from shardlab.mesh import Mesh
from shardlab.mixed_precision.hardened.loss_scaler import LossScaler
from shardlab.pipelines.hardened.pipeline import Pipeline
from shardlab.pipelines.partition import CannotPipeline, plan_pipeline
from shardlab.pipelines.schedules import SCHEDULES, schedule
from shardlab.recompute import checkpoint, core
from shardlab.recompute.layers import checkpoint_every, checkpoint_modules
from shardlab.recompute.selective import checkpoint_selective
from shardlab.saving import resume, save
from shardlab.tensor_parallel import (
    CannotSplit,
    apply_tensor_parallel,
    gpt_plan,
    overlapped,
    sequence_parallel,
    sum_gradients,
    vocabulary_parallel_loss,
)
from shardlab.tensor_parallel.hardened.full_parameters import whole_state_dict
from shardlab.zero.hardened.full_parameters import unsharded

REFUSALS = CannotReplicate, CannotShard, CannotSplit, CannotPipeline
STEPS = 4  # the run is saved and resumed after half of them
SEQUENCE = 8
# An optimizer that divides by a root of squares turns noise of 1e-17 into a whole step where a
# gradient is zero, as of a key's bias; an eps far above the noise keeps it noise.
OPTIMIZERS = {
    "SGD": (torch.optim.SGD, dict(lr=0.2, momentum=0.9)),
    "AdamW": (torch.optim.AdamW, dict(lr=0.02, eps=1e-3)),
    "Adagrad": (torch.optim.Adagrad, dict(lr=0.05, eps=1e-3)),
}
RECOMPUTE = {
    "hooks": checkpoint,
    "function": core.checkpoint_by_function,
    "selective": checkpoint_selective,
}
MIXES = {"ring": RingAttention, "gathered": GatheredAttention, "Ulysses": Ulysses}
CLOSE = 1e-9  # relative, in float64: sums over ranks are made in another order


class Case(NamedTuple):
    before: tuple[int, int]  # (data-parallel ranks, ZeRO stage) until the save
    after: tuple[int, int]  # and from then on
    sizes: dict  # of the GPT
    seed: int = 100
    pp: int = 1
    tp: int = 1
    sequence_parallel: bool = False
    schedule: str = "1F1B"
    microbatches: int = 1  # of a pipeline
    recompute: str = ""
    clip: float = 0.5
    accumulate: int = 1
    scaler: str = ""
    optimizer: str = "SGD"
    chunks: int = 0  # of row layers whose messages overlap
    context: tuple[int, int] = (1, 1)  # context-parallel ranks, before and after
    mix: str = "ring"
    context_first: bool = True  # before tensor parallelism
    ep: tuple[int, int] = (0, 0)  # ranks that divide the experts, before and after

    @property
    def misuses(self) -> list[str]:
        """The mistakes that this layout allows."""
        cut = self.pp * self.tp > 1
        found = ["group forgotten", "saved by the ranks of one part"] * cut
        return found + ["optimizer made before"] * (self.tp > 1 or self.before[1] == 3)

    def __str__(self):
        (dp, stage), (dp_after, stage_after) = self.before, self.after
        parts = [f"dp {dp} stage {stage} -> dp {dp_after} stage {stage_after}"]
        parts += [f"tp {self.tp}" + " sp" * self.sequence_parallel] * (self.tp > 1)
        parts += [f"overlap {self.chunks}"] * bool(self.chunks)
        if self.context != (1, 1):
            order = "first" * self.context_first
            parts += [f"cp {self.context[0]} -> {self.context[1]} {self.mix} {order}"]
        parts += [f"ep {self.ep[0]} -> {self.ep[1]}"] * any(self.ep)
        parts += [f"pp {self.pp} {self.schedule} m {self.microbatches}"] * (self.pp > 1)
        parts += [f"recompute {self.recompute}"] * bool(self.recompute)
        parts += [f"clip {self.clip}"] * bool(self.clip)
        parts += [f"k {self.accumulate}", self.scaler, self.optimizer]
        parts += [f"{name} {size}" for name, size in self.sizes.items()]
        return f"{self.seed}: " + ", ".join(part for part in parts if part)


def case_of(seed: int) -> Case:
    draw = random.Random(seed)
    world = draw.choice((4, 4, 8))
    tp = draw.choice((1, 2, 2, 4))
    pp = draw.choice([size for size in (1, 2, 2, 4) if tp * size <= world])
    other_world = draw.choice([size for size in (4, 8) if size >= tp * pp])
    stages = (0, 1, 2) if pp > 1 else (0, 1, 2, 3)  # stage 3 inside a pipeline is refused
    before, after = ((each // (tp * pp), draw.choice(stages)) for each in (world, other_world))
    kind = draw.choice(list(SCHEDULES))
    sizes = dict(
        layers=draw.choice((2 * pp - 1, 2 * pp)) if pp > 1 else draw.choice((1, 2, 3)),
        hidden=16,
        heads=8,
        key_value_heads=draw.choice([size for size in (4, 8) if size % tp == 0]),
        feed_forward=draw.choice((29, 32)),
        vocabulary=draw.choice((37, 40)),
        max_sequence=SEQUENCE,
        learned_positions=draw.choice((0, 1)),
        biases=draw.choice((0, 1)),
        gated_mlp=draw.choice((0, 1)),
        tied_head=draw.choice((0, 1)),
    )
    case = Case(
        seed=seed,
        pp=pp,
        tp=tp,
        sequence_parallel=tp > 1 and draw.random() < 0.5,
        before=before,
        after=after,
        schedule=kind,
        microbatches=draw.choice((4, 8)) if pp > 1 else 1,
        recompute=draw.choice(("", *RECOMPUTE)),
        clip=draw.choice((0, 0.5)),
        accumulate=draw.choice((1, 1, 2)),
        scaler=draw.choice(("", "LossScaler", "GradScaler")),
        optimizer=draw.choice(list(OPTIMIZERS)),
        sizes=sizes,
        chunks=draw.choice((0, 1, 3)),
    )
    return with_context(case, draw)


def with_context(case: Case, draw: random.Random) -> Case:
    """The case, in which half of the data-parallel ranks may share their sequences."""
    mix, first = draw.choice(list(MIXES)), draw.choice((True, False))
    splits = [draw.choice((1, 2)) if dp % 2 == 0 else 1 for dp, _ in (case.before, case.after)]
    if mix == "Ulysses" and case.sizes["key_value_heads"] % (2 * case.tp):
        splits = [1, 1]
    halves = [(dp // cp, z) for (dp, z), cp in zip((case.before, case.after), splits)]
    before, after = halves
    return case._replace(
        before=before, after=after, context=tuple(splits), mix=mix, context_first=first
    )


def layout(dp: int, stage: int, **others) -> Case:
    """A case of data-parallel ranks in a stage of ZeRO, with what else is named."""
    sizes = dict(layers=2, hidden=24, heads=8, key_value_heads=4, feed_forward=29, vocabulary=101)
    layout = dict(before=(dp, stage), after=(dp, stage), sizes=dict(sizes, max_sequence=SEQUENCE))
    return Case(**layout | others)


def drawn(case: Case, seed: int) -> GPT:
    model = GPT(GPTConfig(**case.sizes)).double()
    torch.manual_seed(seed)  # what the default dtype draws does not matter
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    balance_experts(model, case, case.accumulate)
    return model


def balance_experts(model: nn.Module, case: Case, backwards: int):
    """A balance loss is a product of means, so microbatches of a pipeline have another one."""
    for layer in mixtures(model):
        router = layer.router
        router.balance, router.z, router.bias_step = 0.1 * (case.pp == 1), 0.01, 0.05
        router.loss_scale = 1 / backwards


def batches(case: Case) -> Tensor:
    """[STEPS, k, 2, sequences, S]: inputs and targets."""
    sequences = max(case.before[0], case.after[0]) * case.microbatches
    draw = torch.Generator().manual_seed(case.seed)
    shape = STEPS, case.accumulate, 2, sequences, SEQUENCE
    return torch.randint(case.sizes["vocabulary"], shape, generator=draw)


def layers_of(model: GPT) -> list[nn.Module]:
    return [model.embedding, *model.blocks, model.head]


# --- one process ----------------------------------------------------------------------------------


def trained_plainly(case: Case) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """(losses, norms, weights under their names in the model)"""
    model = drawn(case, case.seed)
    optimizer_cls, settings = OPTIMIZERS[case.optimizer]
    optimizer = optimizer_cls(model.parameters(), **settings)
    losses, norms = [], []
    for step in batches(case):
        total = 0.0
        for inputs, targets in step:
            loss = next_token_loss(model(inputs), targets) / case.accumulate
            loss.backward()
            total += loss.item()
        losses.append(total)
        if case.clip:
            norms.append(clip_grad_norm_(model.parameters(), case.clip).item())
        optimizer.step()
        move_biases(model)
        optimizer.zero_grad()
    return losses, norms, model.state_dict()


# --- on a rank ------------------------------------------------------------------------------------


class Run:
    """The composed training of a case on this rank, built in the documented order: tensor
    parallelism, recomputation, pipeline, ZeRO."""

    def __init__(self, case: Case, half: int, group_forgotten: bool = False):
        (dp, stage), cp = (case.before, case.after)[half], case.context[half]
        ep = case.ep[half]
        self.case, self.stage = case, stage
        self.mesh = mesh = Mesh(dp=dp, pp=case.pp, cp=cp, tp=case.tp)
        first = mesh.dp.rank == mesh.cp.rank == mesh.tp.rank == 0
        self.model = model = drawn(case, case.seed if first else 1000 + dist.get_rank())
        optimizer_cls, settings = OPTIMIZERS[case.optimizer]
        self.made_before = optimizer_cls(model.parameters(), **settings)
        self.context = Context(mesh.cp.group)
        if cp > 1 and case.context_first:
            context_parallel(model, self.context, MIXES[case.mix])
        if case.tp > 1:
            cut = gpt_plan(GPTConfig(**case.sizes))
            cut = sequence_parallel(cut) if case.sequence_parallel else cut
            cut = overlapped(cut, case.chunks) if case.chunks else cut
            apply_tensor_parallel(model, cut, mesh.tp.group)
        if cp > 1 and not case.context_first:
            context_parallel(model, self.context, MIXES[case.mix])
        balance_experts(model, case, case.accumulate * case.microbatches)
        if ep:
            apply_expert_parallel(model, mesh.experts(ep))
        by = RECOMPUTE.get(case.recompute)
        if by and case.pp > 1:
            checkpoint_modules(model, Block, by)
        elif by:
            model.blocks = checkpoint_every(model.blocks, 1, by)
        self.scaler = scaler_of(case)
        self.net = self.pipeline(layers_of(model)) if case.pp > 1 else model
        self.called, self.optimizer = zero.shard(
            self.net,
            optimizer_cls,
            stage=stage,
            group=None if group_forgotten else mesh.line("dp", "cp").group,
            **settings,
        )

    @property
    def sequences(self) -> int:
        """The sequences of a data-parallel rank in one backward."""
        return batches(self.case).shape[3] // self.mesh.dp.size

    def pipeline(self, layers: list[nn.Module]) -> Pipeline:
        lists = schedule(self.case.schedule, self.case.pp, self.case.microbatches)
        sample = self.context.own(torch.zeros(self.sequences, SEQUENCE, dtype=torch.long))
        plan = plan_pipeline(layers, lists, sample)
        return Pipeline(layers, plan, self.loss, self.mesh.pp.group)

    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        if self.case.tp > 1:
            vocabulary = self.case.sizes["vocabulary"]
            loss = vocabulary_parallel_loss(scores, targets, vocabulary, self.mesh.tp.group)
        else:
            loss = next_token_loss(scores, targets)
        loss = loss / self.case.accumulate
        return self.scaler.scale(loss) if self.scaler else loss

    def backward(self, inputs: Tensor, targets: Tensor) -> float | None:
        """The rank's loss, None where a pipeline has none."""
        scale = self.scaler.get_scale() if self.scaler else 1.0
        if self.case.pp > 1:
            losses = self.net.step(inputs, targets)
            return losses.mean().item() / scale if len(losses) else None
        loss = self.loss(self.called(inputs), targets)
        loss.backward()
        return loss.item() / scale

    def step(self, step: Tensor) -> tuple[float | None, float | None]:
        """(loss, norm)"""
        case, mesh, losses = self.case, self.mesh, []
        for number, pair in enumerate(step):
            inputs, targets = map(self.context.own, pair.chunk(mesh.dp.size, dim=1)[mesh.dp.rank])
            last = number == case.accumulate - 1
            waits = self.stage == 0 and not last
            with self.called.no_sync() if waits else nullcontext():
                losses.append(self.backward(inputs, targets))
        if case.sequence_parallel:
            sum_gradients(self.optimizer, mesh.tp.group)
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        norm = self.clipped().item() if case.clip else None
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        move_biases(self.net)
        self.optimizer.zero_grad()
        return (None if None in losses else sum(losses)), norm

    def clipped(self) -> Tensor:
        """The norm, of which PyTorch's own clipping knows all in some layouts."""
        if self.stage in (0, 3) and self.case.pp == 1 and self.case.sequence_parallel:
            return clip_grad_norm_(self.called.parameters(), self.case.clip)
        return clip_gradients(self.optimizer, self.case.clip)

    def whole_weights(self) -> dict[str, Tensor]:
        """This rank's layers, joined, under their names in the plain model."""
        with unsharded(self.net) if self.stage == 3 else nullcontext():
            cut = self.case.tp > 1 or any(self.case.ep)
            weights = whole_state_dict(self.net) if cut else self.net.state_dict()
            weights = {name: tensor.clone() for name, tensor in weights.items()}
        if self.case.pp == 1:
            return weights
        last = self.case.sizes["layers"] + 1

        def plain_name(name: str) -> str:
            _, number, rest = name.split(".", 2)
            place = {"0": "embedding", str(last): "head"}.get(number, f"blocks.{int(number) - 1}")
            return f"{place}.{rest}"

        return {plain_name(name): tensor for name, tensor in weights.items()}


def scaler_of(case: Case):
    if case.scaler == "LossScaler":
        return LossScaler(init_scale=2.0**10)
    return torch.amp.GradScaler("cpu", init_scale=2.0**10) if case.scaler else None


def first_half(case: Case, above: str) -> tuple[list[tuple], list[str]]:
    """(loss and norm of each step, the answers to the misuses)"""
    torch.set_num_threads(1)
    run = Run(case, 0)
    found = [run.step(step) for step in batches(case)[: STEPS // 2]]
    save(f"{above}/run", run.net, run.optimizer, STEPS // 2)
    return found, [answer(run, misuse, f"{above}/misused") for misuse in case.misuses]


def answer(run: Run, misuse: str, folder: str) -> str:
    """The sentence by which this rank refuses a misuse, or what happened instead."""
    case = run.case
    try:
        if misuse == "group forgotten":
            Run(case, 0, group_forgotten=True).step(batches(case)[0])
        elif misuse == "saved by the ranks of one part":
            save(folder, run.net, run.optimizer, 1, group=run.mesh.line("dp", "cp").group)
        else:
            run.optimizer = run.made_before
            run.step(batches(case)[0])
    except (*REFUSALS, ValueError) as refusal:
        if not isinstance(refusal, REFUSALS) and "saved" not in misuse:
            raise
        return f"refused: {type(refusal).__name__}: {refusal}"
    return f"{misuse}: accepted on rank {dist.get_rank()}"


def second_half(case: Case, above: str) -> tuple[list[tuple], dict[str, Tensor]]:
    torch.set_num_threads(1)
    run = Run(case, 1)
    resume(f"{above}/run", run.net, run.optimizer)
    return [run.step(step) for step in batches(case)[STEPS // 2 :]], run.whole_weights()


# --- the verdict ----------------------------------------------------------------------------------


def parity_in(world, case: Case) -> str:
    """ "parity", or what differs, of a training that stays on these ranks."""
    found = world.run(in_one_layout, case)
    return difference_from_plain(
        case, [*zip(*(own for own, _ in found))], [own for _, own in found]
    )


def in_one_layout(case: Case) -> tuple[list[tuple], dict[str, Tensor]]:
    torch.set_num_threads(1)
    run = Run(case, 0)
    return [run.step(step) for step in batches(case)], run.whole_weights()


def outcome(case: Case) -> str:
    """ "parity", or what differs. Ranks are new ones: process groups of gloo keep their threads."""
    with tempfile.TemporaryDirectory() as above:
        return outcome_on(partial(ranks, device="cpu", announce=False), case, above)


def outcome_on(started: Callable, case: Case, above: str) -> str:
    """The outcome on the ranks that `with started(n)` gives, saved in a folder `run`."""
    halves = []
    data = [dp * cp for (dp, _), cp in zip((case.before, case.after), case.context)]
    for half, dp in zip((first_half, second_half), data):
        with started(dp * case.pp * case.tp) as world:
            halves.append(world.run(half, case, above))
    before, after = halves
    for told in (told for _, answers in before for told in answers):
        if not told.startswith("refused: "):
            return told
    found = [[*steps] for half in (before, after) for steps in zip(*(steps for steps, _ in half))]
    return difference_from_plain(case, found, [own for _, own in after])


def difference_from_plain(case: Case, found: list[list[tuple]], own_weights: list[dict]) -> str:
    """ "parity", or what differs of (loss, norm) of each step on each rank, and of the weights."""
    losses, norms, weights = trained_plainly(case)
    for number, of_ranks in enumerate(found):
        ranks_losses = [loss for loss, _ in of_ranks if loss is not None]
        if difference := apart(sum(ranks_losses) / len(ranks_losses), losses[number]):
            return f"the loss of step {number} is {difference:.1e} apart"
        for rank, (_, norm) in enumerate(of_ranks if case.clip else []):
            if difference := apart(norm, norms[number]):
                return f"rank {rank}: the norm of step {number} is {difference:.1e} apart"
    seen = set()
    for rank, own in enumerate(own_weights):
        seen |= set(own)
        for name, tensor in own.items():
            want = weights[name]
            difference = (tensor - want).abs().max() / want.abs().max().clamp(min=1e-9)
            if not difference <= CLOSE:
                return f"rank {rank}: {name} is {difference:.1e} apart"
    if seen != set(weights):
        return f"no rank has {sorted(set(weights) - seen)}"
    return "parity"


def apart(found: float, want: float) -> float:
    """The relative difference, or 0 if it is rounding."""
    difference = abs(found - want) / abs(want)
    return 0.0 if difference <= CLOSE else difference


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Compare random compositions with the plain model."
    )
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    asked = parser.parse_args(arguments)
    wrong = 0
    for seed in range(asked.seed, asked.seed + asked.cases):
        case = case_of(seed)
        try:
            found = outcome(case)
        except Exception as error:
            found = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        wrong += found != "parity"
        print(f"{'right' if found == 'parity' else 'WRONG'}  {case}", flush=True)
        if found != "parity":
            print(f"       {found}", flush=True)
    print(f"{asked.cases - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
